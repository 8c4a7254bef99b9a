"""The life cycle of runs, their leases and their queue: in memory, and as a view over one RunStore."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import count
from typing import Final, Literal

from actors._inmemory.runs.rows import MEMORY_SHARD
from actors._kernel.agent.message import Message
from actors._kernel.basics import Clock, Entropy
from actors._kernel.json import JsonValue
from actors._kernel.runtime.commit import Finish, Suspend, Then
from actors._kernel.runtime.ids import AgentId, HostIncarnation, RunId, ShardId
from actors._kernel.runtime.log_entry import EntryKind, NewEntry
from actors._kernel.runtime.rows import NewRun, RunRow
from actors._kernel.runtime.scheduler import (
    DEFAULT_RETRY,
    TRANSITIONS,
    Lease,
    RetryPolicy,
    RunStatus,
)
from actors._kernel.runtime.waits import WakeSet, Wakeup
from actors._kernel.stores.run_store import RunStore
from actors._runtime.parts.inbox import (
    LeaseOf,
    StoreView,
    attempt_failed,
    failure,
    run_resumed,
    run_started,
)
from actors._runtime.replay.verdict import row_of
from actors._runtime.worker.admission import ReadyQueue
from actors.errors import ConflictError, IllegalTransitionError, LeaseLostError, UnknownRunError

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
    """A `Scheduler` in memory. Nothing survives the process; time is the clock's, so tests need not sleep.

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
        """Note the agent of a run. A second call for the same run does nothing."""
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
        """Queue a run, or wake it. A run that has begun keeps its priority, tenant and policy.

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
        """Take up to `capacity` queued runs. `Lease.attempt` grows with each retry and each lost lease."""
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
        """Extend a lease, and say what its holder has to know. Never raises; a lease past its time is lost."""
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
        """Give a lease back with the new status of its run."""
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
        """Return the run that holds an agent, else its next one, with its status; None if it has none."""
        self._catch_up()
        runs = [run for run in self._open() if run.agent_id == agent_id]
        if not runs:
            return None
        run = min(runs, key=lambda run: (not run.has_started, run.order))
        return run.run_id, run.status

    async def wake_suspended(self, run_id: RunId) -> bool:
        """Queue a suspended run; return False if it is not suspended."""
        run = self._runs.get(run_id)
        if run is None or run.status is not RunStatus.SUSPENDED:
            return False
        self._make_ready(run)
        return True

    async def wake_agent(self, agent_id: AgentId) -> bool:
        """Queue the suspended run of an agent; return False if there is none."""
        for run in self._open():
            if run.agent_id == agent_id and run.status is RunStatus.SUSPENDED:
                return await self.wake_suspended(run.run_id)
        return False

    async def pending_runs(self, *, tenant: str | None = None) -> list[RunId]:
        """Return the queued runs, the next one first. Runs in back-off are left out until it is over."""
        self._catch_up()
        return self._ready.waiting(tenant=tenant)

    async def get_status(self, run_id: RunId) -> RunStatus | None:
        """Return the status of a run, or None if it is not known."""
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
        # A copy: a run whose lease has expired leaves the dictionary.
        for run in list(self._leased.values()):
            if run.lease is not None and run.lease.expires_at <= now:
                del self._leased[run.run_id]
                run.lease, run.attempt = None, run.attempt + 1
                self._make_ready(run)
        due_runs = [run for run in self._timed.values() if run.not_before and run.not_before <= now]
        for run in sorted(due_runs, key=lambda run: (run.not_before or now, run.order)):
            self._make_ready(run)

    def _expiry(self) -> datetime:
        return self._clock.now() + timedelta(seconds=self._lease_s)


_PAGE = 1000


class SchedulerView(StoreView):
    """The `Scheduler` of a store. Statuses are durable when the store is; the queue is this host's.

    A lease lasts as long as its shard's. A run that waits to be leased after a suspension is
    SUSPENDED in the store until then, and PENDING here.

    Args:
        store: The store of the rows.
        lease_of: This host's shard leases.
        shards: The shards this host holds; their runs are the ones leased.
        clock: Back-offs, timers and deadlines.
        entropy: The random part of a back-off.
        queue: The host's ready queue, if it has one already.
    """

    def __init__(
        self,
        store: RunStore,
        *,
        lease_of: LeaseOf,
        shards: Callable[[], Sequence[ShardId]],
        clock: Clock,
        entropy: Entropy,
        queue: ReadyQueue[RunId] | None = None,
    ) -> None:
        super().__init__(store, lease_of=lease_of)
        self._shards = shards
        self._clock, self._entropy = clock, entropy
        self._queue: ReadyQueue[RunId] = ReadyQueue() if queue is None else queue
        self._registered: dict[RunId, AgentId] = {}
        self._leased: dict[RunId, Lease] = {}
        self._triggered: set[RunId] = set()
        self._tenants: dict[RunId, str] = {}
        self._seen: set[ShardId] = set()

    def register_run(self, run_id: RunId, agent_id: AgentId) -> None:
        """Note the agent of a run."""
        self._registered[run_id] = agent_id

    async def enqueue(
        self,
        run_id: RunId,
        *,
        priority: int = 5,
        tenant: str = "default",
        wake: Wakeup | None = None,
        retry_policy: RetryPolicy | None = None,
    ) -> None:
        """Queue a run, or wake it.

        A registered run without a row gets one, with one message that holds `wake`. Runs that have
        a row keep their priority and policy.

        Raises:
            UnknownRunError: The run has no row and was not registered.
            IllegalTransitionError: It has ended.
        """
        self._tenants.setdefault(run_id, tenant)
        row = await self._store.reads.run(run_id)
        if row is None:
            policy = retry_policy or RetryPolicy()
            row = await self._create(run_id, priority=priority, policy=policy, wake=wake)
        if row.status.is_terminal:
            raise IllegalTransitionError(run_id, row.status, RunStatus.PENDING)
        if row.status is RunStatus.RUNNING:
            self._triggered.add(run_id)
        elif row.status is RunStatus.SUSPENDED or row.wake_at is None:
            self._offer(row)

    async def lease(self, *, worker_id: str, capacity: int) -> list[Lease]:
        """Take up to `capacity` queued runs. The holder is this host, whatever `worker_id` says."""
        del worker_id
        await self._catch_up()
        leases: list[Lease] = []
        for run_id in self._queue.take(capacity):
            row = await self._store.reads.run(run_id)
            if row is None or row.status in (RunStatus.RUNNING, *_ENDED):
                continue
            attempt = row.attempt + (row.status is RunStatus.PENDING)
            lease = self._lease(run_id, row.agent_id, attempt=attempt)
            begin = run_started(row.agent_id)
            entry = begin if row.last_seq < 0 else run_resumed("leased")
            try:
                await self._store.commits.append(lease, [entry], expected_seq=row.last_seq)
            # The run went on, or another host has leased it, since its row was read.
            except ConflictError:
                continue
            self._leased[run_id] = lease
            leases.append(lease)
        return leases

    async def heartbeat(
        self, lease: Lease
    ) -> Literal["ok", "cancel_requested", "deadline", "lost"]:
        """Extend a lease, and say what its holder has to know. The shard's own heartbeat is what extends it."""
        if not self._is_held(lease):
            return "lost"
        row = await row_of(self._store, lease.run_id)
        if row.cancel_requested is not None:
            return "cancel_requested"
        if row.deadline_at is not None and row.deadline_at <= self._clock.now():
            return "deadline"
        return "ok"

    async def release(
        self, lease: Lease, *, status: RunStatus, wake_on: Wakeup | None = None
    ) -> None:
        """Give a lease back with the new status of its run."""
        if not self._is_held(lease):
            raise LeaseLostError(lease.shard, lease.owner, lease.epoch)
        if status not in TRANSITIONS[RunStatus.RUNNING]:
            raise IllegalTransitionError(lease.run_id, RunStatus.RUNNING, status)
        row = await row_of(self._store, lease.run_id)
        entry, then = self._end_of(row, status, wake_on)
        outcome = await self._write(lease, row.last_seq, entry, then=then)
        del self._leased[lease.run_id]
        is_awake = outcome.wake_now or lease.run_id in self._triggered
        self._triggered.discard(lease.run_id)
        if isinstance(then, Suspend) and (is_awake or status is RunStatus.PENDING):
            self._offer(row)

    async def find_run_for_agent(self, agent_id: AgentId) -> tuple[RunId, RunStatus] | None:
        """Return the run that holds an agent, else its next one, with its status; None if it has none."""
        row = await self._store.lists.find_run_for_agent(agent_id)
        return None if row is None else (row.run_id, self._status(row))

    async def wake_suspended(self, run_id: RunId) -> bool:
        """Queue a suspended run; return False if it is not suspended. A parked run waits for its operator."""
        row = await self._store.reads.run(run_id)
        if row is None or row.status is not RunStatus.SUSPENDED or row.parked is not None:
            return False
        return self._offer(row)

    async def wake_agent(self, agent_id: AgentId) -> bool:
        """Queue the suspended run of an agent; return False if there is none."""
        row = await self._store.lists.find_run_for_agent(agent_id)
        return row is not None and await self.wake_suspended(row.run_id)

    async def pending_runs(self, *, tenant: str | None = None) -> list[RunId]:
        """Return the queued runs, the next one first. Of this host."""
        await self._catch_up()
        return self._queue.waiting(tenant=tenant)

    async def get_status(self, run_id: RunId) -> RunStatus | None:
        """Return the status of a run, or None if it is not known."""
        row = await self._store.reads.run(run_id)
        if row is None:
            return RunStatus.PENDING if run_id in self._registered else None
        return self._status(row)

    async def _create(
        self, run_id: RunId, *, priority: int, policy: RetryPolicy, wake: Wakeup | None
    ) -> RunRow:
        agent = self._registered.get(run_id)
        if agent is None:
            raise UnknownRunError(run_id)
        payload: JsonValue = wake.model_dump(mode="json") if wake is not None else None
        # Each run has a sender of its own: the lessee decides in which order they begin.
        message = Message(run_id, agent, payload, f"submit:{run_id}", created_at=self._clock.now())
        new_run = NewRun(run_id, agent, priority=priority, retry_policy=policy)
        await self._store.arrivals.submit(new_run, message)
        return await row_of(self._store, run_id)

    async def _catch_up(self) -> None:
        shards = list(self._shards())
        for timer in await self._store.backlog.due(shards, within_s=0):
            row = await self._store.reads.run(timer.run_id)
            if row is not None:
                self._offer(row)
        new_shards = [shard for shard in shards if shard not in self._seen]
        after: RunId | None = None
        while new_shards and (
            page := await self._store.backlog.open_runs(new_shards, after=after, limit=_PAGE)
        ):
            for row in sorted(page, key=lambda row: row.arrival):
                if row.status is RunStatus.PENDING and row.wake_at is None:
                    self._offer(row)
            after = page[-1].run_id
        self._seen.update(new_shards)

    def _offer(self, row: RunRow) -> bool:
        tenant = self._tenants.get(row.run_id, row.agent_id.tenant)
        return self._queue.offer(row.run_id, priority=row.priority, tenant=tenant)

    def _status(self, row: RunRow) -> RunStatus:
        is_next = row.status is RunStatus.SUSPENDED and row.run_id in self._queue
        return RunStatus.PENDING if is_next else row.status

    def _is_held(self, lease: Lease) -> bool:
        shard = self._lease_of(lease.agent_id)
        is_ours = shard is not None and (shard.owner, shard.epoch) == (lease.owner, lease.epoch)
        return is_ours and self._leased.get(lease.run_id) is lease

    def _end_of(
        self, row: RunRow, status: RunStatus, wake_on: Wakeup | None
    ) -> tuple[NewEntry, Then]:
        match status:
            case RunStatus.COMPLETED:
                entry = NewEntry(EntryKind.RUN_COMPLETED, "", {"output": None})
                return entry, Finish(status)
            case RunStatus.CANCELLED:
                reason = row.cancel_requested or "released as cancelled"
                return NewEntry(EntryKind.RUN_CANCELLED, "", {"reason": reason}), Finish(status)
            case RunStatus.FAILED:
                return self._failed(row)
            case _:
                wake = _wake_set(wake_on)
                if status is RunStatus.PENDING:
                    wake = WakeSet(at=self._clock.now())
                entry = NewEntry(EntryKind.RUN_SUSPENDED, "", {"wake": wake.to_json()})
                return entry, Suspend(wake)

    def _failed(self, row: RunRow) -> tuple[NewEntry, Then]:
        error = failure("released as failed")
        policy = row.retry_policy or DEFAULT_RETRY
        if row.attempt > policy.max_retries:
            entry = NewEntry(EntryKind.RUN_FAILED, "", {"status": "failed", "error": error})
            return entry, Finish(RunStatus.FAILED, error=error)
        delay_s = policy.delay_s(row.attempt, self._entropy.random())
        at = self._clock.now() + timedelta(seconds=delay_s)
        return attempt_failed(row.attempt, error, row.last_seq, at=at)


_ENDED = (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)


def _wake_set(wakeup: Wakeup | None) -> WakeSet:
    if wakeup is None:
        return WakeSet()
    return WakeSet(
        at=wakeup.at,
        signals=(wakeup.signal,) if wakeup.signal else (),
        message=wakeup.kind == "message",
        runs=(wakeup.child_run,) if wakeup.child_run else (),
    )
