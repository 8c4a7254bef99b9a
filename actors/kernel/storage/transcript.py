"""The transcripts of one store: sessions of agents, read by anybody, written in the commits of their runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from actors.kernel.agent.transcript import NO_CUT, NewTurn, SessionInfo, SessionView, Turn
from actors.kernel.runtime.ids import AgentId


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
        """Forget one run's turns in this session, None: in all of the agent's; the others keep their order.

        A cut that covers one of them goes with them. An empty `run_id` is that of no run.
        """

    async def sessions(self, agent: AgentId, *, limit: int = 100) -> list[SessionInfo]:
        """Return the agent's sessions, the one that was written last first."""
