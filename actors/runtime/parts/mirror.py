"""Notifications of a foreign Scheduler, so that its statuses and leases follow the store's."""

from __future__ import annotations

import logging

from actors.errors import ConflictError, IllegalTransitionError
from actors.kernel.runtime.commit import Continue, Finish, Park, Retry, Suspend, Then
from actors.kernel.runtime.ids import RunId
from actors.kernel.runtime.rows import RunRow
from actors.kernel.runtime.scheduler import Lease, RunStatus, Scheduler
from actors.kernel.runtime.waits import WakeSet, Wakeup

_log = logging.getLogger("callboard.parts")


class SchedulerMirror:
    """Enqueues, leases and releases runs on a foreign scheduler as they go on here.

    The store decides which host executes a run: a run that the scheduler would hand out later is taken
    from it when it begins here. What it refuses is logged, because the commit has happened.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._held: dict[RunId, Lease] = {}

    async def queued(self, row: RunRow) -> None:
        """A run was created or woken."""
        self._scheduler.register_run(row.run_id, row.agent_id)
        try:
            await self._scheduler.enqueue(
                row.run_id,
                priority=row.priority,
                tenant=row.agent_id.tenant,
                retry_policy=row.retry_policy,
            )
        except IllegalTransitionError as exc:
            _log.debug("the scheduler refused a run", extra={"run": row.run_id}, exc_info=exc)

    async def executing(self, row: RunRow, worker_id: str) -> None:
        """The run executes: take its lease, and those of the runs before it in the queue."""
        held = self._held.get(row.run_id)
        if held is not None and await self._scheduler.heartbeat(held) != "lost":
            return
        self._held.pop(row.run_id, None)
        await self.queued(row)
        while row.run_id not in self._held:
            leases = await self._scheduler.lease(worker_id=worker_id, capacity=1)
            if not leases:
                return
            self._held.update({lease.run_id: lease for lease in leases})

    async def became(self, run_id: RunId, then: Then) -> None:
        """A commit ended: give the lease back with the run's new status."""
        status, wake_on = _release_of(then)
        lease = None if status is None else self._held.pop(run_id, None)
        if lease is None or status is None:
            return
        try:
            await self._scheduler.release(lease, status=status, wake_on=wake_on)
        except (ConflictError, IllegalTransitionError) as exc:
            _log.debug("the scheduler refused a release", extra={"run": run_id}, exc_info=exc)


def _release_of(then: Then) -> tuple[RunStatus | None, Wakeup | None]:
    match then:
        case Continue():
            return None, None
        case Suspend(wake):
            return RunStatus.SUSPENDED, _wakeup(wake)
        case Retry():
            return RunStatus.FAILED, None
        case Park():
            return RunStatus.SUSPENDED, None
        case Finish(status):
            return status, None


def _wakeup(wake: WakeSet) -> Wakeup | None:
    """Return the set's first cause in the order timer, signal, child, message: a `Wakeup` has only one."""
    if wake.at is not None:
        return Wakeup(kind="timer", at=wake.at)
    if wake.signals:
        return Wakeup(kind="signal", signal=wake.signals[0])
    if wake.runs:
        return Wakeup(kind="child_done", child_run=wake.runs[0])
    return Wakeup(kind="message") if wake.message else None
