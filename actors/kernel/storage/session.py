"""Sessions of one store: the facts of their runs that no log has, and the node that the next run goes on from.

A session is a serial agent; its conversation has the name of the agent's key. Its nodes are the turns of that
conversation, see `TranscriptStore`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol

from actors.kernel.agent.session import FactKind
from actors.kernel.agent.transcript import NO_CUT, Turn
from actors.kernel.json import JsonValue
from actors.kernel.runtime.ids import AgentId, RunId

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
        head: Id of the active node; None: there is none.
        created_at: When its first run was submitted.
        last_at: When its last fact was written.
        title: See `SessionLabel`, as for the next one.
        metadata: See `SessionLabel`.
        owner: The principal of the tenant that it belongs to; None: it belongs to none.
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
        """Return a session; None: there is none, or it was deleted."""

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
        """Return the fact that a run was submitted; None: it began by a message, or there is no such run."""

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
        """Refuse new runs of the session from now on; False: there is no such session.

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
