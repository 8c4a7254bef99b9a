"""Conversations of one store: transcripts, sessions with their facts, and lists of sessions for people.

A transcript is the chat turns of one agent in one session, each tagged with its run. Anybody reads it;
commits of runs write it. A session is a serial agent; its conversation has the name of the agent's key. Its
nodes are the turns of that conversation, see `TranscriptStore`. Its facts are those of its runs that no log
has, and the node that the next run goes on from. People name sessions by title and metadata, find them in
pages, and see ids of deleted ones.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol, runtime_checkable

from actors._kernel.agent.agent import FactKind
from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.transcript import NO_CUT, NewTurn, SessionInfo, SessionView, Turn
from actors._kernel.hidden import metadata_text
from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.text import check_text_of


class TranscriptStore(Protocol):
    """Sessions by agent. A session begins with its first turn, and belongs to one agent.

    What runs add is part of their commits (`Commit.turns`), under their leases. `append` is for who has no run.
    """

    async def view(
        self, agent: AgentId, session: str, *, limit: int, whole: bool = False
    ) -> SessionView:
        """Return the active path from its last cut on: at most the `limit` newest turns, oldest first.

        A cut holds for the paths that its last turn is on.

        With `whole` the cut is returned, and turns before it, too.
        """

    async def page(
        self,
        agent: AgentId,
        session: str,
        *,
        limit: int | None = None,
        offset: int = 0,
        after: int = NO_CUT,
        branches: bool = False,
    ) -> list[Turn]:
        """Return at most `limit` turns with ordinals above `after`, oldest first, without the first `offset`.

        Only turns of the active path are returned, unless `branches` is true. A conversation has other paths
        only if it is the conversation of a session, see `SessionStore.switch`.

        A reader that passes the last ordinal of a page as `after` pays the same for each page, and misses no
        turn if others are cleared meanwhile. The result is shorter than `limit` only at the end of the
        conversation: a turn whose bytes were removed meanwhile is skipped, and the next turn takes its place.
        """

    async def count(self, agent: AgentId, session: str) -> int:
        """Return how many turns the session's active path has."""

    async def append(self, agent: AgentId, turns: Sequence[NewTurn], *, run_id: str = "") -> None:
        """Put turns at the end of their sessions, in their order, all or none; known ids are left out.

        Safe to send again, from any process.

        Raises:
            PersistenceError: The store could not be asked.
        """

    async def clear(self, agent: AgentId, session: str) -> None:
        """Forget the whole session and its cuts, and no other one."""

    async def clear_run(self, agent: AgentId, session: str | None, run_id: str) -> None:
        """Forget one run's turns in this session, or in all of the agent's if it is None.

        The other turns keep their order.
        A cut that covers one of them goes with them. An empty `run_id` is that of no run.
        """

    async def sessions(self, agent: AgentId, *, limit: int = 100) -> list[SessionInfo]:
        """Return the agent's sessions, the one that was written last first."""


@runtime_checkable
class HistoryProvider(Protocol):
    """Every turn of every session, in order. Nothing is summarised or trimmed: compaction makes views.

    A turn may have an id, `ChatMessage.turn`. A provider drops a turn whose id the session already has,
    so that a replay, a retry or a redelivery never doubles one. Turns without an id are always kept; a
    provider may give them one.
    A turn may also name the turn before it, `ChatMessage.parent`, which is kept like all metadata.
    """

    async def append(
        self, agent_id: AgentId, message: ChatMessage, *, session_id: str, run_id: str = ""
    ) -> None:
        """Put one turn at the end of the session. See `append_many`."""

    async def append_many(
        self,
        agent_id: AgentId,
        messages: Sequence[ChatMessage],
        *,
        session_id: str,
        run_id: str = "",
    ) -> None:
        """Put turns at the end of the session, in their order and next to each other.

        The batch is atomic: after an error or a crash all of its turns are there, or none.
        """

    async def get_messages(
        self, agent_id: AgentId, *, session_id: str, limit: int | None = None, offset: int = 0
    ) -> list[ChatMessage]:
        """Return turns, oldest first: at most `limit`, after the first `offset`.

        A page after the end is empty. Changing the returned list does not change the history.

        Raises:
            ContractError: `limit` or `offset` is negative.
        """

    async def clear(self, agent_id: AgentId, *, session_id: str) -> None:
        """Remove all turns of the session, and of no other one."""

    async def clear_run(self, agent_id: AgentId, *, session_id: str, run_id: str) -> None:
        """Remove one run's turns from the session. The others keep their order.

        An empty `run_id` is that of no run, and nothing is removed.
        """

    async def count_messages(self, agent_id: AgentId, *, session_id: str) -> int:
        """Return how many turns `get_messages` without a limit returns."""


NO_FACT: Final = 0
"""The number before the first fact of a session."""


@dataclass(frozen=True, slots=True)
class SessionFact:
    """A change of a session's runs.

    Attributes:
        number: Counts from 1 within its session, in commit order, without gaps.
        kind: ``queued``: the run was submitted. ``started`` and ``ended``: its first and its last entry were
            written. One that is cancelled before it began has no ``started``. ``cancelling``: a client asked
            it to stop, for the first time.
        run_id: The run.
        ahead: For ``queued``: the number of open runs of the session before it.
        at: When it was written, aware UTC.
    """

    number: int
    kind: FactKind
    run_id: RunId
    ahead: int
    at: datetime


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session, as lists show it.

    Attributes:
        agent_id: The session's agent; its key is the session's id.
        project: The label that its first submit gave.
        last_fact: Number of its last fact.
        open_runs: Number of its runs that have not ended, queued ones included.
        head: Id of the active node, or None if there is none.
        created_at: When its first run was submitted.
        last_at: When its last fact was written.
        title: See `SessionLabel`, as for the next one.
        metadata: See `SessionLabel`.
        owner: The principal of the tenant that it belongs to, or None if it belongs to none.
    """

    agent_id: AgentId
    project: str
    last_fact: int
    open_runs: int
    head: str | None
    created_at: datetime
    last_at: datetime
    title: str = ""
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)
    owner: str | None = None


class SessionStore(Protocol):
    """The sessions. What runs change rides in commits (`Commit.session`) and submits (`NewRun.session`)."""

    async def get(self, agent: AgentId) -> SessionRow | None:
        """Return a session, or None if there is none, or it was deleted."""

    async def recent(
        self, tenant: str, type_: str, *, limit: int = 100, before: datetime | None = None
    ) -> list[SessionRow]:
        """Return sessions of an app, the one that changed last first.

        Args:
            tenant: The owner.
            type_: The type of the sessions' agents.
            limit: Maximum number of rows.
            before: Only sessions whose last fact is older.
        """

    async def facts(
        self, agent: AgentId, *, after: int = NO_FACT, limit: int = 1000
    ) -> list[SessionFact]:
        """Return facts with numbers above `after`, oldest first. An unknown session has none."""

    async def queued(self, agent: AgentId, run_id: RunId) -> SessionFact | None:
        """Return the fact that a run was submitted, or None if a message began it, or there is no such run."""

    def tail(self, agent: AgentId, *, after: int = NO_FACT) -> AsyncIterator[SessionFact]:
        """Yield facts with numbers above `after`, then new ones as they come, until closed.

        May begin before the session is there.
        """

    async def path(
        self,
        agent: AgentId,
        *,
        after: int = NO_CUT,
        limit: int | None = None,
        branches: bool = False,
    ) -> list[Turn]:
        """Return the nodes from the first one to the active one, each with its parent's id, oldest first.

        With `branches`, the nodes of all branches. At most `limit` of them, with ordinals above `after`;
        fewer only if there are no more. A node whose bytes were removed meanwhile is left out.
        """

    async def nodes(self, agent: AgentId, ids: Sequence[str]) -> list[Turn]:
        """Return those of these nodes that the session has, oldest first, each with its parent's id."""

    async def switch(self, agent: AgentId, node: str) -> None:
        """Make a node the active one, or none for `ROOT`: the next run goes on from it. All nodes stay.

        Raises:
            UnknownSessionError: There is no such session.
            UnknownNodeError: The session has no such node.
            SessionActiveError: A run of the session is open.
        """

    async def page(
        self,
        tenant: str,
        type_: str,
        *,
        project: str | None = None,
        owner: str | None = None,
        after: AgentId | None = None,
        limit: int = 100,
    ) -> list[AgentId]:
        """Return sessions of an app by id, of any project and owner or of one; at most `limit` of them."""

    async def idle(
        self, tenant: str, type_: str, *, before: datetime, limit: int = 100
    ) -> list[AgentId]:
        """Return sessions without an open run whose last fact is older, the oldest first.

        Those whose deletion began are among them, so that a later call ends it.
        """

    async def begin_delete(self, agent: AgentId, *, unless_since: datetime | None = None) -> bool:
        """Refuse new runs of the session from now on; return False if there is no such session.

        Safe to call again, after a crash, too: a session whose deletion began stays refused until it is done.

        Args:
            agent: The session.
            unless_since: Return False, and change nothing, if its last fact is of this instant or later.

        Raises:
            SessionActiveError: A run of the session is open.
        """

    async def finish_delete(self, agent: AgentId) -> int:
        """Remove a session that is being deleted, and its facts; return how many rows.

        A tombstone keeps the number of its last fact: a later submit begins the session anew, and its facts
        go on counting from there.
        """


MAX_TITLE_BYTES: Final = 1_024
MOST_READ: Final = 10_000
"""Sessions that a page of a list reads, however few of them are wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLabel:
    """The words of people about a session.

    Attributes:
        title: At most 1,024 bytes.
        metadata: A JSON object of at most 64 KiB.

    Raises:
        InvalidTextError: The title is too long, or no text.
        NotSerializableError: The metadata is no JSON object, or too large.
    """

    title: str = ""
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_text_of("title of a session", self.title, limit_bytes=MAX_TITLE_BYTES)
        metadata_text(self.metadata, what="metadata of a session")


@dataclass(frozen=True, slots=True)
class SessionPlace:
    """The position of a session in a list, the one that changed last first; those of one instant by id."""

    last_at: datetime
    agent_id: AgentId


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFilter:
    """A filter of the sessions of one app. A field that is None does not filter.

    Attributes:
        tenant: The owner.
        app: The type of the sessions' agents.
        is_active: True if a run of it is open.
        title: A part of the title, in upper or lower case.
        owner: Only this principal's.
        after: Position of the last row of the previous page.
    """

    tenant: str
    app: str
    is_active: bool | None = None
    title: str | None = None
    owner: str | None = None
    after: SessionPlace | None = None


@dataclass(frozen=True, slots=True)
class FoundSessions:
    """A page of a list of sessions.

    Attributes:
        rows: The session that changed last first.
        read_until: The last session that was read, if the page has fewer than its limit because it may read
            no more. Those behind it are not looked at yet. None if the page is full, or there are no more.
    """

    rows: list[SessionRow]
    read_until: SessionPlace | None = None


class SessionDirectory(Protocol):
    """The sessions as people name and find them. What their runs change is in `SessionStore`."""

    async def create(
        self, agent: AgentId, label: SessionLabel, *, project: str = "", owner: str | None = None
    ) -> bool:
        """Make a session without a run; return False if there is one, which stays, or was one of another owner.

        An id stays its first owner's, also when the session was deleted: readers of its events who were
        there before see nothing of anybody else.

        Args:
            agent: The session.
            label: What people call it.
            project: A label of another kind.
            owner: The principal that it belongs to, or None if it belongs to none, or to its earlier owner if
                it is made anew.

        Raises:
            SessionDeletingError: It is being deleted.
        """

    async def relabel(
        self,
        agent: AgentId,
        *,
        title: str | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> bool:
        """Replace the title, the metadata, or both, if not None; return False if there is no such session.

        Raises:
            InvalidTextError: See `SessionLabel`, as for the next one.
            NotSerializableError: See `SessionLabel`.
        """

    async def find(
        self, wanted: SessionFilter, *, limit: int = 100, most_read: int = MOST_READ
    ) -> FoundSessions:
        """Return at most `limit` sessions of the first `most_read` of the app (of the owner, if one is given).

        There are indexes of position and owner, but none of title and state. So the number of sessions that are
        read is bounded, and a page may have few hits, or none, though there are more behind.
        """

    async def is_deleted(self, agent: AgentId, *, owner: str | None = None) -> bool:
        """Return True if such a session, of this owner if one is given, was deleted, or its deletion began."""
