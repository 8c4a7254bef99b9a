"""A conversation, read from the logs: the runs, their causes, and their times of waiting and executing.

A run causes another run when it spawns or asks an agent, sends it a message, or publishes to a topic. The
stores' rows have these facts, so that no tracing backend is needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from actors._kernel.runtime.ids import AgentId, RunId, TopicId, message_id_of_post
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.log_entry import RunLogEntry
from actors._kernel.runtime.rows import RunRow
from actors._kernel.runtime.waits import GRAPH_WAITS
from actors._runtime.loop.clock import SystemClock
from actors._runtime.verbs.question import CLIENT, PERSON
from actors.errors import InvalidNameError

if TYPE_CHECKING:
    from actors._runtime import Runtime

MOST_STEPS_UP: Final = 1000
"""Greatest length of a chain of causes that is followed. A longer chain is a mistake in the rows."""
MOST_FOLLOWERS: Final = 50
"""Number of followers of a topic that are checked for a post."""

_WAIT_ENDS: Final = frozenset(
    {
        K.RUN_SUSPENDED,
        K.RUN_PARKED,
        K.ASK_REPLIED,
        K.ASK_TIMEOUT,
        K.CHILD_COMPLETED,
        K.SIGNAL_RECEIVED,
        K.TIMER_FIRED,
    }
)

Verb: TypeAlias = Literal["spawn", "ask", "send", "publish", "approval", "tool", "wait"]
_OUTSIDE: Final[dict[str, Verb]] = {
    PERSON: "approval",
    CLIENT: "tool",
    **dict.fromkeys(GRAPH_WAITS, "wait"),
}
"""Verbs of questions whose target is not an agent, by target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The time of a run by cause, in seconds, up to its end or to the last entry.

    Attributes:
        queued: Time from the run's creation to its first entry.
        executing: Time of executing code.
        waiting: Time of waits for answers, children, signals, messages, timers or an operator.
        backing_off: Time between a failed attempt and the next one.
        attempts: Number of attempts.
        moves: Number of take-overs by another host, or by the same host after a restart.
    """

    queued: float = 0.0
    executing: float = 0.0
    waiting: float = 0.0
    backing_off: float = 0.0
    attempts: int = 0
    moves: int = 0


@dataclass(slots=True)
class Node:
    """A run in a conversation, with links to the runs that it caused, in the order of its log."""

    row: RunRow
    timing: Timing
    began_at: datetime | None
    ended_at: datetime | None
    links: list[CausalLink]


@dataclass(slots=True)
class CausalLink:
    """An effect of a run on another run, an agent, a topic or a person.

    Attributes:
        verb: Kind of the effect.
        target: The agent, topic or person.
        position: Position of the effect in the run.
        at: Instant of the effect's entry.
        message_id: Id of the sent message; empty for a spawn.
        child: Id of the spawned run; empty for other effects.
        took_s: Seconds until the answer or the child's end; None if there is none, or none yet.
        outcome: Outcome of the answer or of the child in the log; empty while it is open.
        nodes: Caused runs that are met here first.
        runs_elsewhere: Caused runs that are at another place in the conversation.
        unread: True if caused runs were left out, because there were too many.
    """

    verb: Verb
    target: str
    position: str
    at: datetime
    message_id: str = ""
    child: str = ""
    took_s: float | None = None
    outcome: str = ""
    nodes: list[Node] = field(default_factory=list)
    runs_elsewhere: list[RunId] = field(default_factory=list)
    unread: bool = False


@dataclass(frozen=True, slots=True)
class Conversation:
    """The tree of runs below a root. `left_out` is the number of runs that the limit left out."""

    root: Node
    count: int
    left_out: int


async def find_root(runtime: Runtime, row: RunRow) -> RunRow:
    """Return the first run of the conversation, by the parents of runs and the causes of their messages."""
    seen_ids = {row.run_id}
    for _ in range(MOST_STEPS_UP):
        cause = row.parent or await _cause_of(runtime, row)
        cause_row = await runtime.store.reads.run(cause) if cause is not None else None
        if cause_row is None or cause_row.run_id in seen_ids:
            return row
        row = cause_row
        seen_ids.add(row.run_id)
    return row


async def _cause_of(runtime: Runtime, row: RunRow) -> RunId | None:
    """Return the run that sent the first message of this run, or None."""
    async for entry in runtime.entries(row.run_id):
        message = entry.payload.get("message")
        if entry.kind == K.MSG_RECEIVED and isinstance(message, dict):
            cause = message.get("causation_id") or message.get("reply_to")
            return RunId(str(cause)) if cause else None
    return None


async def read_conversation(
    runtime: Runtime, root: RunRow, *, limit: int, count: Callable[[int], None]
) -> Conversation:
    """Return the tree of the runs that `root` caused, directly or not, at most `limit` runs, nearest first."""
    top = await _read(runtime, root)
    seen_ids, left_out = {root.run_id}, 0
    todo = deque([top])
    while todo:
        node = todo.popleft()
        for link in node.links:
            for run_id in await _caused(runtime, node.row, link):
                if run_id in seen_ids:
                    link.runs_elsewhere.append(run_id)
                elif len(seen_ids) >= limit:
                    link.unread = True
                    left_out += 1
                elif (row := await runtime.store.reads.run(run_id)) is not None:
                    seen_ids.add(run_id)
                    child = await _read(runtime, row)
                    link.nodes.append(child)
                    todo.append(child)
        count(len(seen_ids))
    return Conversation(top, len(seen_ids), left_out)


async def _read(runtime: Runtime, row: RunRow) -> Node:
    entries = [entry async for entry in runtime.entries(row.run_id)]
    began_at = entries[0].ts if entries else None
    ended_at = entries[-1].ts if entries and entries[-1].is_terminal else None
    if row.swept:  # the log is removed, and only the row has the instant of the end
        ended_at = row.updated_at
    timing = timing_of(row, entries, now=SystemClock().now())
    return Node(row, timing, began_at, ended_at, links_of(entries))


def timing_of(row: RunRow, entries: Sequence[RunLogEntry], *, now: datetime) -> Timing:
    """Return the times of a run by its log. The last phase of an open run lasts until now.

    The entries that a fork copied have one instant, so they add no time.
    """
    seconds = {"executing": 0.0, "waiting": 0.0, "backing_off": 0.0}
    moves = 0
    for before, after in pairwise(entries):
        seconds[_phase(before, after)] += (after.ts - before.ts).total_seconds()
        moves += after.kind == K.RUN_RESUMED and after.payload.get("reason") == "recovered"
    queued = 0.0
    if entries and row.created_at is not None:
        queued = max(0.0, (entries[0].ts - row.created_at).total_seconds())
    if entries and not row.status.is_terminal:
        phase = _phase(entries[-1], None)
        seconds[phase] += max(0.0, (now - entries[-1].ts).total_seconds())
    return Timing(queued=queued, attempts=row.attempt, moves=moves, **seconds)


def _phase(before: RunLogEntry, after: RunLogEntry | None) -> str:
    """Return the phase between two entries. A short wait has no entry at its start, only one at its end."""
    if before.kind in (K.RUN_SUSPENDED, K.RUN_PARKED):
        return "waiting"
    if before.kind == K.RUN_ATTEMPT_FAILED:
        return "backing_off"
    is_wait = after is not None and (
        after.kind in _WAIT_ENDS
        or (after.kind == K.MSG_RECEIVED and not after.position.startswith("in."))
    )
    return "waiting" if is_wait else "executing"


def links_of(entries: Sequence[RunLogEntry]) -> list[CausalLink]:
    """Return the links of a run in the order of its log, each with its outcome."""
    links: list[CausalLink] = []
    asks_by_position: dict[str, CausalLink] = {}
    spawns_by_child: dict[str, CausalLink] = {}
    for entry in entries:
        payload, position = entry.payload, entry.position
        message_id = str(payload.get("message_id") or "")
        match entry.kind:
            case K.CHILD_SPAWNED:
                child_id = str(payload["child"])
                link = CausalLink(
                    "spawn", str(payload["agent"]), position, entry.ts, child=child_id
                )
                spawns_by_child[child_id] = link
                links.append(link)
            case K.ASK_SENT:
                verb = _OUTSIDE.get(str(payload["target"]), "ask")
                link = CausalLink(verb, str(payload["target"]), position, entry.ts, message_id)
                asks_by_position[position] = link
                links.append(link)
            case K.MSG_SENT:
                target = str(payload["target"])
                links.append(CausalLink("send", target, position, entry.ts, message_id))
            case K.CHILD_COMPLETED:
                _close(spawns_by_child.get(str(payload["child"])), entry, str(payload["status"]))
            case K.ASK_REPLIED | K.ASK_TIMEOUT:
                _close(asks_by_position.get(position), entry, str(payload["outcome"]))
            case _:
                pass
    return links


def _close(link: CausalLink | None, entry: RunLogEntry, outcome: str) -> None:
    if link is not None and link.took_s is None:
        link.took_s = (entry.ts - link.at).total_seconds()
        link.outcome = outcome


async def _caused(runtime: Runtime, row: RunRow, link: CausalLink) -> list[RunId]:
    """Return the ids of the runs that a link caused."""
    if link.verb == "spawn":
        return [RunId(link.child)]
    if link.verb in _OUTSIDE.values():
        return []
    sender = f"agent:{row.agent_id}"
    try:
        agent = AgentId.parse(link.target)
    except InvalidNameError:
        return [RunId(link.target)]  # a question to a run, not to an agent
    run_id = await _run_of(runtime, agent, sender, link.message_id)
    if run_id is not None or link.verb == "ask":
        return [] if run_id is None else [run_id]
    return await _runs_of_post(runtime, agent, sender, link)


async def _runs_of_post(
    runtime: Runtime, name: AgentId, sender: str, link: CausalLink
) -> list[RunId]:
    """Return the runs of followers that received a post. The log does not distinguish a topic from an agent."""
    topic = TopicId(name.type, name.key, name.tenant)
    post_id = message_id_of_post(sender, link.message_id)
    run_ids: list[RunId] = []
    checked_count = 0
    async for subscription in runtime.follow_graph.followers_of(topic):
        link.verb = "publish"
        checked_count += 1
        if checked_count > MOST_FOLLOWERS:
            link.unread = True
            break
        run_id = await _run_of(runtime, subscription.follower, f"topic:{topic}", post_id)
        if run_id is not None:
            run_ids.append(run_id)
    return run_ids


async def _run_of(runtime: Runtime, agent: AgentId, sender: str, message_id: str) -> RunId | None:
    row = await runtime.store.lists.run_of_message(agent, sender, message_id)
    if row is None:
        return None
    # A message that has no run yet may name the run that holds its agent. The run's log decides.
    async for entry in runtime.entries(row.run_id):
        message = entry.payload.get("message")
        if isinstance(message, dict) and message.get("id") == message_id:
            return row.run_id
    return row.run_id if row.last_seq < 0 else None
