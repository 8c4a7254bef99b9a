"""The durable state at one moment, read from a store, in the form from which the model continues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from actors._kernel.agent.message import Message
from actors._kernel.runtime.ids import AgentId, TopicId
from actors.errors import RegistrationError
from tests.harness.checks import received
from tests.model.memories import Shelf, shelf_of
from tests.model.reading import essential, plain_error
from tests.model.sessions import sessions_of
from tests.model.world import Answer, Left, Letter, Scene

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from actors._kernel.runtime.ids import RunId
    from actors._kernel.runtime.log_entry import RunLogEntry
    from actors._kernel.runtime.rows import RunRow
    from actors._kernel.runtime.waits import Answer as StoredAnswer
    from actors._kernel.stores.run_store import RunStore
    from tests.model.program import Case

KEYS: Final = ("a", "b")
"""Of agents that get messages."""
TOPICS: Final = ("news0/default", "news1/default")


@dataclass(frozen=True, slots=True)
class Anchor:
    """The time of the reload after a fault, and the durable state then.

    Attributes: log: Of the submitted run. is_fair: Whether the model can continue from here; it
    does not know posts in flight.
    """

    at: float
    log: list[RunLogEntry]
    counts: dict[str, int]
    scene: Scene
    is_fair: bool


def agents_of(case: Case, rows: Iterable[RunRow] = ()) -> list[AgentId]:
    """Return the agents of the cast that can have any state."""
    root = AgentId.parse(case.root)
    possible_agents = {AgentId(type_, key, root.tenant) for type_ in case.cast for key in KEYS}
    mine = {row.agent_id for row in rows if row.agent_id.tenant == root.tenant}
    return sorted(possible_agents | mine - {root})


async def anchor(
    store: RunStore, case: Case, first: RunId, *, at: float, counts: dict[str, int]
) -> Anchor:
    """Return the whole durable state; `first` is the submitted run."""
    rows = sorted(await store.lists.runs(limit=10_000), key=lambda row: row.arrival)
    root = AgentId.parse(case.root)
    lefts: list[Left] = []
    answers: list[tuple[str, str, Answer | None]] = []
    log: list[RunLogEntry] = []
    read: list[Letter] = []
    arrived: set[str] = set()
    for row in rows:
        entries = [entry async for entry in store.reads.entries(row.run_id)]
        if row.run_id == first:
            log = entries
        bound = [letter_of(m.message) for m in (await store.reads.load([row.run_id]))[0].messages]
        letters = {letter.id: letter for letter in [*bound, *_letters(entries)]}
        if row.run_id != first and row.agent_id == root:
            read += letters.values()
            continue
        arrived |= set(letters)
        status = row.status.value if row.status.is_terminal else "PARKED" if row.parked else ""
        lefts.append(
            Left(
                row.run_id,
                str(row.agent_id),
                essential(entries),
                tuple(letters.values()),
                row.parent,
                row.root,
                status,
                row.cancel_requested,
            )
        )
        answers += [(row.run_id, key, None) for key in _taken_keys(entries)]
        if not row.status.is_terminal:
            for stored_answer in await store.reads.answers(row.run_id):
                answers.append((row.run_id, stored_answer.key, _answer(stored_answer)))
    waiting: dict[str, list[Letter]] = {}
    for agent in [root, *agents_of(case, rows)]:
        mail = await store.backlog.pending_mail(agent=agent)
        if mail:
            waiting[str(agent)] = [
                letter_of(mail_row.message, alone=mail_row.alone) for mail_row in mail
            ]
            arrived |= {mail_row.message.id for mail_row in mail}
    follows, is_fair = [], True
    if case.cast:
        follows = await _follows(store)
        is_fair = not await _are_posts_behind(store, [root, *agents_of(case, rows)])
    arrived |= {letter.id for letter in read}
    scene = Scene(
        at,
        lefts,
        dict(counts),
        frozenset(arrived),
        waiting,
        [letter.payload for letter in read],
        answers,
        follows,
        await sessions_of(store, [root, *agents_of(case, rows)]) if case.retention else {},
        await shelf_of(store, root.tenant) if case.remembers else Shelf(),
    )
    return Anchor(at, log, counts, scene, is_fair)


def _letters(entries: list[RunLogEntry]) -> list[Letter]:
    bodies: list[Any] = [entry.payload["message"] for entry in received(entries)]
    return [letter_of(Message.from_json(body)) for body in bodies]


def letter_of(message: Message, *, alone: bool = False) -> Letter:
    """Return a message in the model's form."""
    return Letter(message.id, message.sender or "", message.payload, message.reply_to, alone)


def _answer(stored_answer: StoredAnswer) -> Answer:
    by = stored_answer.by or ""
    return Answer(stored_answer.status, by, stored_answer.result, plain_error(stored_answer.error))


def _taken_keys(entries: list[RunLogEntry]) -> list[str]:
    """Return keys of answers that a run has read."""
    message_ids = {
        e.position: str(e.payload["message_id"]) for e in entries if e.kind == "ask.sent"
    }
    joined = [str(e.payload["child"]) for e in entries if e.kind == "child.completed"]
    replied = [e.position for e in entries if e.kind == "ask.replied"]
    return [*joined, *(message_ids[position] for position in replied if position in message_ids)]


async def _are_posts_behind(store: RunStore, agents: Sequence[AgentId]) -> bool:
    """Return whether posts wait for fan-out in these agents' shards."""
    try:
        shards = {store.shards.shard_of(agent) for agent in agents}
    except RegistrationError:
        return False  # no host has declared their types yet, so nobody follows anything
    return bool(await store.posts.behind(sorted(shards)))


async def _follows(store: RunStore) -> list[tuple[str, str]]:
    follows: list[tuple[str, str]] = []
    for text in TOPICS:
        topic = TopicId(*text.split("/"))
        follows += [(text, str(x.follower)) async for x in store.follows.followers_of(topic)]
    return follows
