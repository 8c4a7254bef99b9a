"""InMemoryScheduler: the life cycle of runs, their leases and their queue."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import count
from typing import Final, Literal

from actors.errors import IllegalTransitionError, LeaseLostError, UnknownRunError
from actors.inmemory.runs.rows import MEMORY_SHARD
from actors.kernel.basics import Clock, Entropy
from actors.kernel.runtime.ids import AgentId, HostIncarnation, RunId
from actors.kernel.runtime.scheduler import TRANSITIONS, Lease, RetryPolicy, RunStatus
from actors.kernel.runtime.waits import Wakeup
from actors.runtime.worker.ready_queue import ReadyQueue

LEASE_S: Final = 30.0
"""Seconds a lease lasts without a heartbeat."""


@dataclass(slots=True)
class _Run:
    run_id: RunId
    agent_id: AgentId
    order: int
    status: RunStatus = RunStatus.PENDING
    priority: int = 5
    tenant: str = "default"
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    attempt: int = 1
    failures: int = 0
    lease: Lease | None = None
    not_before: datetime | None = None
    triggered: bool = False
    """True if a wake-up came while it ran: it must not stay suspended."""
    is_asked_to_stop: bool = False
    has_started: bool = False


class InMemoryScheduler:
    """See `Scheduler`. Nothing survives the process; time is the clock's, so tests need not sleep.

    It is no view: here each run's lease ends by itself, and a run that failed for good may be queued
    once more under its id; a store's leases end with their shard's, and its ended runs stay ended.
    Leases, back-offs and timers that are due are found by the next `lease` or `pending_runs`.
    """

    def __init__(self, *, clock: Clock, entropy: Entropy, lease_s: float = LEASE_S) -> None:
        self._clock = clock
        self._entropy = entropy
        self._lease_s = lease_s
        self._runs: dict[RunId, _Run] = {}
        self._ready: ReadyQueue[RunId] = ReadyQueue()
        self._leased: dict[RunId, _Run] = {}
        self._timed: dict[RunId, _Run] = {}
        self._orders, self._epochs = count(), count(1)

    def register_run(self, run_id: RunId, agent_id: AgentId) -> None:
        """See `Scheduler.register_run`. A second call for the same run does nothing."""
        if run_id not in self._runs:
            self._runs[run_id] = _Run(run_id, agent_id, next(self._orders))

    async def enqueue(
        self,
        run_id: RunId,
        *,
        priority: int = 5,
        tenant: str = "default",
        wake: Wakeup | None = None,
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        """See `Scheduler.enqueue`. A run that has begun keeps its priority, tenant and policy.

        Raises:
            UnknownRunError: The run was not registered.
            IllegalTransitionError: It has completed or was cancelled.
        """
        run = self._known(run_id)
        if run.status in (RunStatus.COMPLETED, RunStatus.CANCELLED):
            raise IllegalTransitionError(run_id, run.status, RunStatus.PENDING)
        if not run.has_started and run_id not in self._ready:
            run.priority, run.tenant = priority, tenant
            run.policy = retry_policy or run.policy
        if run.status is RunStatus.RUNNING:
            run.triggered = True
        elif run.status is not RunStatus.PENDING or run.not_before is None:
            if run.status is RunStatus.FAILED:
                run.failures = 0
            self._make_ready(run)

    async def lease(self, *, worker_id: str, capacity: int) -> list[Lease]:
        """See `Scheduler.lease`. `Lease.attempt` grows with each retry and each lost lease."""
        self._catch_up()
        leases = []
        for run_id in self._ready.take(capacity):
            run = self._runs[run_id]
            run.status, run.has_started, run.triggered = RunStatus.RUNNING, True, False
            run.lease = Lease(
                MEMORY_SHARD,
                HostIncarnation(worker_id),
                next(self._epochs),
                self._expiry(),
                run_id,
                run.agent_id,
                run.attempt,
            )
            self._leased[run_id] = run
            leases.append(run.lease)
        return leases

    async def heartbeat(
        self, lease: Lease
    ) -> Literal["ok", "cancel_requested", "deadline", "lost"]:
        """See `Scheduler.heartbeat`. Never raises; a lease past its time is lost."""
        self._catch_up()
        run = self._holder_of(lease)
        if run is None or run.lease is None:
            return "lost"
        run.lease = replace(lease, expires_at=self._expiry())
        if run.is_asked_to_stop:
            return "cancel_requested"
        return "ok"

    async def release(
        self, lease: Lease, *, status: RunStatus, wake_on: Wakeup | None = None
    ) -> None:
        """See `Scheduler.release`."""
        self._catch_up()
        run = self._holder_of(lease)
        if run is None:
            raise LeaseLostError(lease.shard, lease.owner, lease.epoch)
        if status not in TRANSITIONS[run.status]:
            raise IllegalTransitionError(run.run_id, run.status, status)
        del self._leased[run.run_id]
        run.lease, run.status = None, status
        if status is RunStatus.FAILED:
            self._retry_or_die(run)
        elif status is RunStatus.PENDING or (status is RunStatus.SUSPENDED and run.triggered):
            self._make_ready(run)
        elif status is RunStatus.SUSPENDED and wake_on is not None and wake_on.at is not None:
            run.not_before = wake_on.at
            self._timed[run.run_id] = run

    async def find_run_for_agent(self, agent_id: AgentId) -> tuple[RunId, RunStatus] | None:
        """See `Scheduler.find_run_for_agent`."""
        self._catch_up()
        runs = [run for run in self._open() if run.agent_id == agent_id]
        if not runs:
            return None
        run = min(runs, key=lambda run: (not run.has_started, run.order))
        return run.run_id, run.status

    async def wake_suspended(self, run_id: RunId) -> bool:
        """See `Scheduler.wake_suspended`."""
        run = self._runs.get(run_id)
        if run is None or run.status is not RunStatus.SUSPENDED:
            return False
        self._make_ready(run)
        return True

    async def wake_agent(self, agent_id: AgentId) -> bool:
        """See `Scheduler.wake_agent`."""
        for run in self._open():
            if run.agent_id == agent_id and run.status is RunStatus.SUSPENDED:
                return await self.wake_suspended(run.run_id)
        return False

    async def pending_runs(self, *, tenant: str | None = None) -> list[RunId]:
        """See `Scheduler.pending_runs`. Runs in back-off are left out until it is over."""
        self._catch_up()
        return self._ready.waiting(tenant=tenant)

    async def get_status(self, run_id: RunId) -> RunStatus | None:
        """See `Scheduler.get_status`."""
        run = self._runs.get(run_id)
        return run.status if run else None

    def request_cancel(self, run_id: RunId) -> None:
        """Let the holder's next heartbeat say so; a run that is not executed is cancelled at once.

        Raises:
            UnknownRunError: The run was not registered.
        """
        run = self._known(run_id)
        if run.status is RunStatus.RUNNING:
            run.is_asked_to_stop = True
        elif not run.status.is_terminal:
            run.status = RunStatus.CANCELLED
            self._ready.discard(run_id)
            self._timed.pop(run_id, None)

    def _known(self, run_id: RunId) -> _Run:
        run = self._runs.get(run_id)
        if run is None:
            raise UnknownRunError(run_id)
        return run

    def _open(self) -> list[_Run]:
        return [run for run in self._runs.values() if not run.status.is_terminal]

    def _holder_of(self, lease: Lease) -> _Run | None:
        run = self._leased.get(lease.run_id)
        if run is None or run.lease is None or run.lease.epoch != lease.epoch:
            return None
        return run

    def _make_ready(self, run: _Run) -> None:
        run.status, run.not_before = RunStatus.PENDING, None
        self._timed.pop(run.run_id, None)
        self._ready.offer(run.run_id, priority=run.priority, tenant=run.tenant)

    def _retry_or_die(self, run: _Run) -> None:
        run.failures += 1
        if run.failures > run.policy.max_retries:
            return
        delay_s = run.policy.delay_s(run.failures, self._entropy.random())
        run.status, run.attempt = RunStatus.PENDING, run.attempt + 1
        run.not_before = self._clock.now() + timedelta(seconds=delay_s)
        self._timed[run.run_id] = run

    def _catch_up(self) -> None:
        now = self._clock.now()
        for run in list(self._leased.values()):
            if run.lease is not None and run.lease.expires_at <= now:
                del self._leased[run.run_id]
                run.lease, run.attempt = None, run.attempt + 1
                self._make_ready(run)
        due = [run for run in self._timed.values() if run.not_before and run.not_before <= now]
        for run in sorted(due, key=lambda run: (run.not_before or now, run.order)):
            self._make_ready(run)

    def _expiry(self) -> datetime:
        return self._clock.now() + timedelta(seconds=self._lease_s)
