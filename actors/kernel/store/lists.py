"""Lists: runs and what belongs to them, for those who do not know their ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from actors.kernel.runtime.ids import AgentId, RunId
from actors.kernel.runtime.rows import DeadLetter, RunRow
from actors.kernel.runtime.scheduler import RunStatus
from actors.kernel.runtime.waits import OpenWait, WaitPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """A filter of runs. A field that is None does not filter.

    Attributes:
        type: Only runs of agents of this type.
        tenant: Only runs of this tenant's agents.
        since: Created at this instant or later.
        until: Created before this instant.
        parent: Spawned by this run.
        after: Id of the last run of the previous page; the list has the newest first.
    """

    type: str | None = None
    tenant: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    parent: RunId | None = None
    after: RunId | None = None


ANY_RUN: Final = RunFilter()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalFilter:
    """A filter of what waits for a person. A field that is None does not filter.

    Attributes:
        run_id: Only approvals of this run.
        tenant: Only approvals of runs of this tenant.
        owner: Only approvals of runs of this principal's sessions, and of runs below them.
        key: Its key begins so.
        after: Position of the last row of the previous page.
    """

    run_id: RunId | None = None
    tenant: str | None = None
    owner: str | None = None
    key: str | None = None
    after: WaitPlace | None = None


ANY_APPROVAL: Final = ApprovalFilter()


@dataclass(frozen=True, slots=True)
class TaskRun:
    """An ended run that was spawned, and what its log takes.

    Attributes:
        run_id: The run.
        agent_id: Its agent.
        task: The id of the card that it was for; empty: for none.
        status: The run's end status.
        ended_at: The instant of the end, aware UTC.
        entries: Number of entries of its log.
        size_bytes: Size of their payloads as JSON.
    """

    run_id: RunId
    agent_id: AgentId
    task: str
    status: RunStatus
    ended_at: datetime
    entries: int
    size_bytes: int


class ListStore(Protocol):
    """Lists of runs, waits and dead letters, by their attributes."""

    async def runs(
        self,
        *,
        status: Sequence[RunStatus] = (),
        agent: AgentId | None = None,
        parked: bool | None = None,
        among: RunFilter = ANY_RUN,
        limit: int = 100,
    ) -> list[RunRow]:
        """Return runs, newest first. An unknown run as `among.after` gives nothing."""

    async def children(self, run_id: RunId) -> list[RunRow]:
        """Return the runs spawned by this one that are still its children, in the order of creation."""

    async def tasks(
        self, agent_id: AgentId, *, status: Sequence[RunStatus], every: bool = False
    ) -> list[TaskRun]:
        """Return ended runs below those of an agent that were spawned for a task and have logs, by id.

        Args:
            agent_id: The agent of runs at the top of trees.
            status: Only runs that ended with this status.
            every: Also runs that were spawned for no task, and those whose logs were swept.
        """

    async def find_run_for_agent(self, agent_id: AgentId) -> RunRow | None:
        """Return the run that holds the agent (it has started), else the oldest queued one."""

    async def run_of_message(
        self, agent_id: AgentId, sender: str, message_id: str
    ) -> RunRow | None:
        """Return the run that got this message, else the one that holds the agent, else None."""

    async def waits(self, run_id: RunId, *, limit: int = 100) -> list[OpenWait]:
        """Return the waits of an open run that have no answer yet, oldest first."""

    async def approvals(
        self, among: ApprovalFilter = ANY_APPROVAL, *, limit: int = 100
    ) -> list[OpenWait]:
        """Return what open runs wait for a person to decide, oldest first. A page costs what it shows.

        With `owner` it is found by looking through the approvals of others, too.
        """

    async def pending_count(self, agent_id: AgentId) -> int:
        """Return how many messages of the agent are not done: pending ones and those of open runs."""

    async def dead_letters(
        self, *, agent: AgentId | None = None, ids: Sequence[int] = (), limit: int = 100
    ) -> list[DeadLetter]:
        """Return messages that were given up and not redriven, newest first; of `ids`, if any are given."""
