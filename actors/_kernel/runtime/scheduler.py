"""Runs in their life cycle, the right to execute them, and the queue of those that can."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import ClassVar, Final, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, field_validator

from actors._kernel.basics import MAX_WAIT_S, bounded_s
from actors._kernel.runtime.ids import AgentId, HostIncarnation, RunId, ShardId
from actors._kernel.runtime.waits import Wakeup


class RunStatus(StrEnum):
    """PENDING → RUNNING → (SUSPENDED → PENDING)* → COMPLETED | FAILED | CANCELLED."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_terminal(self) -> bool:
        """True if the run has ended for good."""
        return self in TERMINAL


TERMINAL: Final = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})

TRANSITIONS: Final[dict[RunStatus, frozenset[RunStatus]]] = {
    RunStatus.PENDING: frozenset({RunStatus.RUNNING, RunStatus.CANCELLED, RunStatus.FAILED}),
    RunStatus.RUNNING: frozenset(set(RunStatus) - {RunStatus.RUNNING}),
    RunStatus.SUSPENDED: frozenset({RunStatus.PENDING, RunStatus.RUNNING, RunStatus.CANCELLED}),
    RunStatus.COMPLETED: frozenset(),
    RunStatus.FAILED: frozenset({RunStatus.PENDING}),
    RunStatus.CANCELLED: frozenset(),
}
"""Legal changes of status. FAILED → PENDING is a redrive by an operator."""


class RetryPolicy(BaseModel):
    """The number and the delays of a failed run's retries. There is one counter: the run's.

    Attributes:
        max_retries: Attempts after the first; 0 means one attempt.
        backoff_s: Seconds before the first retry.
        factor: Each further wait is this much longer.
        max_backoff_s: Upper limit of one wait in seconds. No wait is longer than ten years.
        jitter: Random part of each wait, as a fraction of it (0.2 = ±20 %).
        non_retryable: Class names of errors that end the run at once.
        within_s: Only failures of the last so many seconds count (restart intensity), or None for all.
        on_exhausted: What happens when no retry is left: the run fails, is parked for an
            operator, or fails with its messages dead-lettered.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    max_retries: int = Field(default=3, ge=0)
    backoff_s: float = Field(default=5.0, ge=0)
    factor: float = Field(default=2.0, ge=1)
    max_backoff_s: float = Field(default=300.0, ge=0)
    jitter: float = Field(default=0.2, ge=0, le=1)
    non_retryable: tuple[str, ...] = ()
    within_s: float | None = Field(default=None, gt=0)
    on_exhausted: Literal["fail", "pause", "dead_letter"] = "dead_letter"

    @field_validator("backoff_s", "factor", "max_backoff_s", "within_s", mode="after")
    @classmethod
    def _bounded(cls, value: float | None) -> float | None:
        return None if value is None else min(value, MAX_WAIT_S)

    def delay_s(self, attempt: int, chance: float) -> float:
        """Return the wait in seconds after `attempt` (1 = the first) failed; `chance` in [0, 1)."""
        try:
            wait = min(self.backoff_s * self.factor ** (attempt - 1), self.max_backoff_s)
        except OverflowError:  # doubled a thousand times
            wait = self.max_backoff_s
        return bounded_s(wait * (1 + self.jitter * (2 * chance - 1)))


DEFAULT_RETRY: Final = RetryPolicy()
"""The retry policy of runs for which neither the caller nor the agent gives one."""


@dataclass(frozen=True, slots=True)
class ShardLease:
    """The right to act for all agents of one shard, until it is given up or taken.

    `broken_at` is set if the owner before died: the number of the next arrival then. What arrived before may
    have been executing.
    """

    shard: ShardId
    owner: HostIncarnation
    epoch: int
    expires_at: datetime
    broken_at: int | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to execute one run: its shard's lease plus the run. Every write carries it."""

    shard: ShardId
    owner: HostIncarnation
    epoch: int
    expires_at: datetime
    run_id: RunId
    agent_id: AgentId
    attempt: int

    @property
    def worker_id(self) -> str:
        """The lease's holder."""
        return self.owner


class Scheduler(Protocol):
    """The queue of runs that can go on, and the leases of those that do."""

    def register_run(self, run_id: RunId, agent_id: AgentId) -> None:
        """Bind a run to its agent; must come before the first `enqueue`."""

    async def enqueue(
        self,
        run_id: RunId,
        *,
        priority: int = 5,
        tenant: str = "default",
        wake: Wakeup | None = None,
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        """Make a run leasable. A run that is pending already is not queued twice.

        Tenants in rotation; inside a tenant lower priority numbers first, and order of arrival inside
        one priority.
        """

    async def lease(self, *, worker_id: str, capacity: int) -> list[Lease]:
        """Hand out at most `capacity` pending runs, none of them leased to anybody else."""

    async def heartbeat(
        self, lease: Lease
    ) -> Literal["ok", "cancel_requested", "deadline", "lost"]:
        """Extend a lease, and learn whether the run should stop or was lost to another host."""

    async def release(
        self, lease: Lease, *, status: RunStatus, wake_on: Wakeup | None = None
    ) -> None:
        """Give a lease back with the run's new status. FAILED is retried by the run's policy.

        Raises:
            LeaseLostError: The lease was lost before; nothing is changed.
            IllegalTransitionError: The life cycle has no such change.
        """

    async def find_run_for_agent(self, agent_id: AgentId) -> tuple[RunId, RunStatus] | None:
        """Return the run that holds the agent, else the oldest queued one, else None."""

    async def wake_suspended(self, run_id: RunId) -> bool:
        """Move a suspended run to pending; return False and do nothing for any other."""

    async def wake_agent(self, agent_id: AgentId) -> bool:
        """Wake the agent's suspended run, if it has one."""

    async def pending_runs(self, *, tenant: str | None = None) -> list[RunId]:
        """Return the runs that wait to be leased, in the order they will be."""

    async def get_status(self, run_id: RunId) -> RunStatus | None:
        """Return the run's status, or None if it was never registered."""
