"""The take-over of a shard by a host, and its release."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import RunId, ShardId
from actors._kernel.runtime.rows import Arrived, RunRow, Timer
from actors._kernel.runtime.scheduler import RunStatus, ShardLease
from actors._kernel.stores.runs import Blocking
from actors._runtime.execution.start import queue_item_of
from actors._runtime.worker.intake import Intake
from actors._runtime.worker.mailbox import Adoption, Mailbox
from actors._runtime.worker.worker_state import WorkerState

_log = logging.getLogger("callboard.worker")


class ShardAdoption:
    """Rebuilds from rows what a worker knows, shard by shard.

    Args:
        state: What the worker knows.
        intake: Queued runs and cancels take the way of those from notifications.
        publish: Function that is called when shards were lost or given up.
    """

    def __init__(
        self, state: WorkerState, intake: Intake, publish: Callable[[Nudge], None]
    ) -> None:
        self._state, self._intake, self._publish = state, intake, publish
        self._held, self._mailboxes = state.held, state.mailboxes
        self._dispatcher, self._executing = state.dispatcher, state.executing
        self.sleep: Callable[[Mapping[ShardId, Mapping[str, int]]], None] = state.mailboxes.sleep
        """Called with sleeping agents, before the other runs of their shards: `MailboxTable.sleep`."""
        self.mail_scanned: Callable[[Iterable[ShardLease]], None] = state.mailboxes.mail_scanned
        """Called when all waiting messages of shards were offered: `MailboxTable.mail_scanned`."""

    def grant(self, lease: ShardLease) -> None:
        """Hold a shard; nothing starts in it before its runs were passed to `adopt` and `loaded` says so."""
        if (older := self._held.get(lease.shard)) is not None:
            self.give_up([older])  # it was lost, and claimed again before a heartbeat could say so
        self._held.grant(lease, at=self._intake.env.clock.now())

    def begin(self) -> list[ShardId]:
        """Return the shards whose open runs have to be read now.

        Those that are new, and those with work of agents that are served only since.
        """
        return sorted(self._held.loading | self._mailboxes.begin_adoption())

    def adopt(self, run: RunRow, messages: tuple[Arrived, ...] = (), *, reading: int) -> None:
        """Take over an open run: a queued one at any time, others while their shard is read.

        A row of a `reading` from before its shard had to be read anew is ignored: see `HeldShards`.
        """
        is_queued = run.status is RunStatus.PENDING and run.last_seq < 0
        mailbox = self._mailboxes.of(run.agent_id, reading=reading)
        # The row was read before the run ended here: adopted, it would hold its agent for ever.
        if mailbox is None or run.run_id in mailbox.ended:
            return
        mailbox = self._give_way(mailbox, run, is_queued=is_queued)
        if run.run_id == mailbox.run_id or run.run_id in self._executing:
            return
        if is_queued:
            for arrived in messages or (queue_item_of(run),):
                self._intake.offer(arrived, priority=run.priority)
        elif mailbox.adoption is Adoption.UNDER_WAY and not run.status.is_terminal:
            if (legacy := self._held.legacies.get(mailbox.shard)) is not None:
                legacy.awake.add(run.agent_id)
            self._dispatcher.hold(mailbox, run)
            return
        # A run that this worker has seen may be further than its row said when that was read.
        if run.cancel_requested is not None:
            self._intake.cancel(run.run_id, run.agent_id, run.cancel_requested)
        self._mailboxes.forget_empty(mailbox)

    def knows(self, run_id: RunId | None) -> bool:
        """Return True if a queued run was offered with all that it begins with, or has begun."""
        return run_id in self._state.fresh or run_id in self._executing

    def _give_way(self, mailbox: Mailbox, run: RunRow, *, is_queued: bool) -> Mailbox:
        """Forget what holds the agent here if that is not what its row, as the store has it, says."""
        if mailbox.run_id is None or mailbox.adoption is not Adoption.UNDER_WAY:
            return mailbox
        execution = self._executing.get(mailbox.run_id)
        if mailbox.run_id == run.run_id:
            is_forgotten = execution is not None and run.last_seq < execution.known_seq
            if execution is not None and not is_forgotten:
                execution.known_seq = -1  # the store still has what it had of the log
        else:
            is_forgotten = not is_queued
        if not is_forgotten:
            return mailbox
        if execution is not None:
            del self._executing[mailbox.run_id]
            execution.drop("the store has forgotten it")
        self._state.completions.complete(mailbox.run_id, None)
        self._mailboxes.forget(mailbox, keeps_queue=True)
        return self._mailboxes.of(run.agent_id) or mailbox

    def invalidate(self) -> None:
        """Read everything again, as the store may have lost its last commits.

        An execution with a durable entry continues. Its next write, or `adopt`, shows whether the store
        still has that entry. Other executions have had no effect yet and are dropped.
        """
        # A copy: executions without a durable entry leave the map in the loop.
        for run_id, execution in list(self._executing.items()):
            if not execution.invalidate():
                del self._executing[run_id]
                execution.drop("the store may have forgotten it")
        for lease in self._held.leases:
            self._held.read_anew(lease.shard)
        self._mailboxes.invalidate({e.lease.agent_id for e in self._executing.values()})
        # Rows of runs that were submitted here may have been rolled back: what is in memory must not start
        # them.
        self._state.fresh.clear()
        self._state.refusals.clear()
        self._state.completions.release_all()

    def loaded(self, shards: Sequence[ShardId]) -> None:
        """Note that all open runs of these shards were offered, and start what waited for that."""
        self._held.loading.difference_update(shards)
        for mailbox in self._mailboxes.in_shards(shards):
            if mailbox.adoption is Adoption.UNDER_WAY:
                self._mailboxes.adopted(mailbox)
                self._dispatcher.dispatch(mailbox)
            else:
                self._mailboxes.forget_empty(mailbox)

    def lose(self, shard: ShardId, *, epoch: int) -> None:
        """Stop acting for a shard's agents at once, as another host owns the shard.

        A lease of another epoch, claimed since, stays.
        """
        lease = self._held.get(shard)
        # A late answer about the old epoch must not take away the shard that was claimed since.
        if lease is not None and lease.epoch == epoch:
            _log.warning("a shard was lost to another host", extra={"shard": shard})
            self.give_up([lease])

    def give_up(self, leases: Sequence[ShardLease]) -> list[ShardLease]:
        """Stop acting for shards, at once; return those that were held until now."""
        if not (lost_leases := [lease for lease in leases if self._held.remove(lease)]):
            return lost_leases
        shards = {lease.shard for lease in lost_leases}
        for execution in list(self._executing.values()):
            if execution.lease.shard in shards:
                # Out of the map at once: the run may be adopted again before its code has unwound.
                del self._executing[execution.lease.run_id]
                execution.drop("the shard was lost")
        for mailbox in self._mailboxes.in_shards(shards):
            if mailbox.run_id is not None:
                self._state.forget(mailbox.run_id)
        self._mailboxes.forget_shards(shards)
        new_runs, shard_of = self._state.fresh, self._state.store.shards.shard_of
        for run_id in [i for i, run in new_runs.items() if shard_of(run.agent_id) in shards]:
            del new_runs[run_id]
        self._state.completions.release_all()
        self._publish(Nudge("held"))
        return lost_leases

    def gave_up(self, blocking: Blocking) -> None:
        """Note, before the run starts here, that hosts gave up its shard because it blocked them."""
        self._state.blockings[blocking.run_id] = blocking

    def remind(self, timer: Timer) -> None:
        """Set the timer of a waiting run that is due soon."""
        mailbox = self._mailboxes.presumed(timer.agent_id, timer.run_id)
        if mailbox is None:
            return
        # Of such a run nothing but a hint is known, so its mailbox has no time to wake it at.
        if mailbox.presumed and mailbox.is_evicted:
            mailbox.evict(mailbox.holding, wake_at=timer.at, wants_mail=False)
        self._dispatcher.remind(mailbox)
