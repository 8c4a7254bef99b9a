"""The view of a session: the end of the active path by runs, the open runs, and the cursor for later events.

Where the conversation has branches, the view has the last node of the branches before and behind the path's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Final

from actors._kernel.agent.transcript import NO_CUT, Turn
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.rows import RunRow
from actors._kernel.stores.conversations import SessionRow
from actors._kernel.stores.run_store import RunStore
from actors._runtime.runtime import Runtime
from actors._sessions.artifacts import SessionArtifact, artifacts_of
from actors._sessions.events import EventCursor
from actors._sessions.run import ChildInspection, state_of
from compose._web.endpoint import FoundSession
from compose._web.pages.cards import AskedMessage, Card, Folds, RunCards, cards_of_nodes
from compose._web.resources.runs import OPEN
from compose._web.resources.sessions import MOST_QUEUED

MOST: Final = 500
"""Maximum number of nodes that are read to find branches."""
WINDOW: Final = 40
"""Maximum number of nodes of the path on a page."""
WINDOW_CHARACTERS: Final = 64 * 1024
"""Maximum number of characters of text on a page. A single node may exceed it."""
MOST_CARDS: Final = 300
"""Maximum number of cards of one run: the last ones."""
_TRIES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationView:
    """The view of a session.

    Attributes:
        row: The session.
        sections: The session's latest runs, oldest first.
        forks: The forks by node. See `Fork`.
        first: The position in the path of the first node that is shown.
        open: The open runs.
        files: All artifacts of the session.
        cursor: Events after this cursor are not part of the view.
    """

    row: SessionRow
    sections: tuple[RunSection, ...]
    forks: dict[str, Fork]
    first: int
    open: OpenRuns
    files: tuple[SessionArtifact, ...]
    cursor: str

    @property
    def title(self) -> str:
        """The session's title, or its id."""
        return self.row.title or self.row.agent_id.key


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSection:
    """A run in a conversation.

    Attributes:
        run_id: The run; empty if a program wrote the turns without a run.
        key: Id of the section in the page.
        status: The run's current status; empty if the run's row is deleted.
        parked: The reason why the run is parked for an operator; empty if it is not.
        cards: The last cards of the run, at most `MOST_CARDS`.
        left_out: Number of earlier cards that are not shown.
        files: Artifacts that the run has stored.
        parent: The node before the run's first node; empty if there is none.
        last: The run's last node; empty if there is none.
    """

    run_id: str
    key: str
    status: str
    parked: str
    cards: tuple[Card, ...]
    left_out: int
    files: tuple[SessionArtifact, ...]
    parent: str
    last: str


@dataclass(frozen=True, slots=True)
class OpenRuns:
    """The open runs of a session.

    Attributes:
        active: The open run that has started; None if none has.
        messages_by_run: The messages of open runs, by run.
        queue: The messages of queued runs, in the order of the queue.
        head: The active node, from which the started run continues; empty if there is none.
    """

    active: RunRow | None = None
    messages_by_run: Mapping[str, AskedMessage] = field(default_factory=dict)
    queue: tuple[AskedMessage, ...] = ()
    head: str = ""


@dataclass(frozen=True, slots=True)
class Fork:
    """The position of a node among the nodes with the same parent.

    Attributes:
        number: The node's number among them, from 1.
        count: The number of these nodes.
        before: The last node of the previous branch; None if the node is the first.
        behind: The last node of the next branch; None if the node is the last.
    """

    number: int
    count: int
    before: str | None
    behind: str | None


async def view_of(
    runtime: Runtime, folds: Folds, session: FoundSession, *, before: int | None
) -> ConversationView:
    """Return the view of a session: the end of its path, or the part before a position in it."""
    store, agent = runtime.store, session.agent
    row, current_runs, cursor = await _read_consistently(runtime, session)
    turns, first, prior = await _window(runtime, agent, before)
    files = tuple(await artifacts_of(store, agent).list())
    parts = [
        (RunId(id_), list(run_turns))
        for id_, run_turns in groupby(turns, key=lambda turn: turn.run_id)
    ]
    active = current_runs.active
    # A run that has written no node yet is in no turn of the path.
    if active is not None and before is None and all(id_ != active.run_id for id_, _ in parts):
        parts.append((active.run_id, []))
    sections = []
    for run_id, run_turns in parts:
        run = await store.reads.run(run_id) if run_id else None
        cards = await _cards_of(runtime, folds, agent, run, turns=run_turns)
        sections.append(
            await section_of(runtime, run_id, run, cards, files=files, current_runs=current_runs)
        )
    return ConversationView(
        row=row,
        sections=tuple(sections),
        forks=await forks_of(store, agent, turns, prior),
        first=first,
        open=current_runs,
        files=files,
        cursor=str(cursor),
    )


async def open_runs(runtime: Runtime, agent: AgentId) -> OpenRuns:
    """Return the started run of a session, and its queue."""
    rows = await runtime.store.lists.runs(agent=agent, status=OPEN, limit=MOST_QUEUED)
    if not rows:
        return OpenRuns()
    messages_by_run: dict[str, AskedMessage] = {}
    for inbound in await runtime.store.insight.inbox(agent, limit=MOST_QUEUED):
        message, run_id = inbound.message, inbound.run_id or ""
        payload = message.payload
        text = str((payload.get("text") if isinstance(payload, dict) else payload) or "")
        messages_by_run.setdefault(run_id, AskedMessage(run_id, text, message.created_at))
    ordered_rows = sorted(rows, key=lambda row: row.arrival)
    queued_ids = [row.run_id for row in ordered_rows if row.last_seq < 0]
    queue = tuple(messages_by_run[run_id] for run_id in queued_ids if run_id in messages_by_run)
    active = next((row for row in ordered_rows if row.last_seq >= 0), None)
    session_row = await runtime.store.data.sessions.get(agent)
    return OpenRuns(active, messages_by_run, queue, (session_row and session_row.head) or "")


async def run_section(
    runtime: Runtime,
    folds: Folds,
    agent: AgentId,
    row: RunRow,
    *,
    files: Sequence[SessionArtifact],
    current_runs: OpenRuns,
) -> RunSection:
    """Return the section of a run with all of its nodes."""
    cards = await _cards_of(runtime, folds, agent, row)
    return await section_of(runtime, row.run_id, row, cards, files=files, current_runs=current_runs)


async def section_of(
    runtime: Runtime,
    run_id: RunId,
    row: RunRow | None,
    run_cards: RunCards,
    *,
    files: Sequence[SessionArtifact],
    current_runs: OpenRuns,
) -> RunSection:
    """Return the section of a run.

    Args:
        runtime: The runtime.
        run_id: The run; empty if no run wrote these cards.
        row: The run's row; None if it is deleted.
        run_cards: The run's cards.
        files: Artifacts of the session.
        current_runs: The session's open runs.
    """
    if row is not None and row.last_seq >= 0:
        run_cards.begin_with(current_runs.messages_by_run.get(run_id))
    # A child's approval is not an event of its parent.
    for key, card in run_cards.cards.items():
        is_running = (card.kind, card.status) == ("child", "running")
        if is_running and await runtime.approvals.open(run_id=RunId(card.id), limit=1):
            run_cards.cards[key] = replace(card, status="waiting", text="for a decision")
    section = _section(run_id, row, run_cards, files)
    is_new = (
        current_runs.active is not None
        and current_runs.active.run_id == run_id
        and not section.last
    )
    return replace(section, parent=current_runs.head) if is_new else section


async def child_section(runtime: Runtime, row: RunRow, child: ChildInspection) -> RunSection:
    """Return the section of a child run. Its messages are not nodes of the session."""
    current_runs = await open_runs(runtime, row.agent_id)
    run_cards = RunCards()
    run_cards.take_all(child.events)
    run_cards.put_first(cards_of_nodes(turn for turn in child.nodes if turn.message.role == "user"))
    run_cards.begin_with(current_runs.messages_by_run.get(child.run_id))
    run_cards.forget_nodes()
    return _section(child.run_id, row, run_cards, ())


async def forks_of_section(
    runtime: Runtime, agent: AgentId, section: RunSection
) -> dict[str, Fork]:
    """Return the forks of a run's nodes, by the node on the path."""
    ids = [card.id for card in section.cards if card.is_node]
    node_ids = [*ids, section.parent] if section.parent else ids
    turns = await runtime.store.data.sessions.nodes(agent, node_ids)
    prior = next((turn for turn in turns if turn.id == section.parent), None)
    path_turns = [turn for turn in turns if turn is not prior]
    return await forks_of(runtime.store, agent, path_turns, prior)


async def forks_of(
    store: RunStore, agent: AgentId, path_turns: Sequence[Turn], before: Turn | None
) -> dict[str, Fork]:
    """Return the forks of a part of the active path, by the node on the path.

    Args:
        store: The store.
        agent: The session's agent.
        path_turns: The part, oldest first.
        before: The node before the part; None if the part starts the path.
    """
    if not path_turns:
        return {}
    transcripts = store.data.transcripts
    infos = await transcripts.sessions(agent)
    turn_count = next((info.turns for info in infos if info.name == agent.key), 0)
    if turn_count == await transcripts.count(agent, agent.key):
        return {}  # all nodes are on the path
    begin = NO_CUT if before is None else before.ordinal
    branch_turns = await transcripts.page(agent, agent.key, limit=MOST, after=begin, branches=True)
    path_ids = {turn.id for turn in path_turns}
    turns = await store.data.sessions.nodes(agent, [turn.id for turn in branch_turns])
    return forks_among(turns, path_ids)


def forks_among(turns: Sequence[Turn], path_ids: set[str]) -> dict[str, Fork]:
    """Return the forks among these turns, by the node on the path."""
    ids_by_parent: defaultdict[str | None, list[str]] = defaultdict(list)
    for turn in sorted(turns, key=lambda turn: turn.ordinal):
        ids_by_parent[turn.parent].append(turn.id)
    forks = {}
    for sibling_ids in ids_by_parent.values():
        index = next((n for n, node_id in enumerate(sibling_ids) if node_id in path_ids), None)
        if index is None or len(sibling_ids) == 1:
            continue
        end_ids = [_end_of(node_id, ids_by_parent) for node_id in sibling_ids]
        before = end_ids[index - 1] if index else None
        behind = end_ids[index + 1] if index + 1 < len(sibling_ids) else None
        forks[sibling_ids[index]] = Fork(index + 1, len(sibling_ids), before, behind)
    return forks


def _end_of(node_id: str, ids_by_parent: Mapping[str | None, list[str]]) -> str:
    """Return the last node of the newest branch below a node."""
    while children := ids_by_parent.get(node_id):
        node_id = children[-1]
    return node_id


async def _read_consistently(
    runtime: Runtime, session: FoundSession
) -> tuple[SessionRow, OpenRuns, EventCursor]:
    """Return the session, its open runs, and a cursor. What the session had at the cursor was read later."""
    row, current_runs, fact = session.row, OpenRuns(), session.row.last_fact
    for _ in range(_TRIES):
        fact = row.last_fact
        current_runs = await open_runs(runtime, session.agent)
        row = await runtime.store.data.sessions.get(session.agent) or row
        if row.last_fact == fact:
            active = current_runs.active
            cursor = EventCursor(fact, -1 if active is None else active.last_seq)
            return row, current_runs, cursor
    # The session changes with each read. The runs may lack the facts after the last one that was read before
    # them, so the client gets these facts, and all entries of the run that was active then, some of them again.
    return row, current_runs, EventCursor(fact)


async def _window(
    runtime: Runtime, agent: AgentId, before: int | None
) -> tuple[list[Turn], int, Turn | None]:
    """Return a part of the active path, the position of its first node, and the node before it."""
    transcripts = runtime.store.data.transcripts
    count = await transcripts.count(agent, agent.key)
    end = count if before is None else max(0, min(before, count))
    first = max(0, end - WINDOW)
    begin = max(0, first - 1)
    page = await transcripts.page(agent, agent.key, limit=end - begin, offset=begin)
    turns = await runtime.store.data.sessions.nodes(agent, [turn.id for turn in page])
    window = _last_turns(turns[first - begin :])
    offset = len(turns) - len(window)
    return window, begin + offset, turns[offset - 1] if offset else None


def _last_turns(turns: Sequence[Turn]) -> list[Turn]:
    """Return the last turns that have at most `WINDOW_CHARACTERS` characters together, but at least one."""
    count = size = 0
    for turn in reversed(turns):
        size += len(turn.message.text)
        if count and size > WINDOW_CHARACTERS:
            break
        count += 1
    return list(turns[len(turns) - count :])


async def _cards_of(
    runtime: Runtime,
    folds: Folds,
    agent: AgentId,
    row: RunRow | None,
    *,
    turns: Sequence[Turn] = (),
) -> RunCards:
    """Return a run's cards from its events, or from its turns if the events are deleted.

    With `turns`, the cards have only the nodes on the path; else all nodes of the run.
    """
    is_on_path = bool(turns) and (row is None or row.status.is_terminal)
    turns_by_id = {turn.id: turn for turn in turns}

    async def path_nodes(ids: Sequence[str]) -> list[Turn]:
        return [turns_by_id[id_] for id_ in ids if id_ in turns_by_id]

    async def load_nodes(ids: Sequence[str]) -> list[Turn]:
        return await runtime.store.data.sessions.nodes(agent, ids)

    run_cards = RunCards()
    if row is not None and not row.swept:
        run_cards = await folds.cards_of(
            runtime, agent, row, path_nodes if is_on_path else load_nodes
        )
        if is_on_path:
            run_cards.keep_messages(set(turns_by_id))
    missing_ids = [id_ for id_ in run_cards.node_ids if id_ not in turns_by_id]
    if missing_ids:
        turns_by_id |= {turn.id: turn for turn in await load_nodes(missing_ids)}
    if not run_cards.node_ids:
        run_cards.put_first(cards_of_nodes(turns))
    run_cards.follow({turn.id: turn.parent for turn in turns_by_id.values()})
    return run_cards


def _section(
    run_id: str, row: RunRow | None, run_cards: RunCards, files: Sequence[SessionArtifact]
) -> RunSection:
    cards = list(run_cards.cards.values())
    node_cards = [card for card in cards if card.is_node]
    return RunSection(
        run_id=run_id,
        key=run_id or (node_cards[0].id if node_cards else "none"),
        status="" if row is None else state_of(row),
        parked="" if row is None else row.parked or "",
        cards=tuple(cards[-MOST_CARDS:]),
        left_out=max(0, len(cards) - MOST_CARDS),
        files=tuple(file for file in files if run_id and file.run_id == run_id),
        parent=(node_cards[0].parent or "") if node_cards else "",
        last=node_cards[-1].id if node_cards else "",
    )
