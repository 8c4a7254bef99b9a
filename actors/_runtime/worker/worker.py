"""The worker: it executes the next runs of agents, and settles executions that are over.

A message enters at `Intake.offer`, or is read from the store when `Intake.mail_waits` announced it,
waits in its agent's `Mailbox`, and starts a run through the ready queue. `Execution` calls the agent's
code. Nothing here is durable: when a shard is claimed all of it is rebuilt from the store, by
`ShardAdoption` and `Intake.mail_waits`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from actors._kernel.runtime.commit import Finish, Retry, Suspend, Then
from actors._kernel.runtime.ids import AgentId, RunId, ShardId
from actors._kernel.runtime.scheduler import RunStatus, ShardLease
from actors._runtime.execution.execution import UNWIND_LIMIT_S, Execution
from actors._runtime.loop.notifications import Notifications
from actors._runtime.verbs.conversation.windows import Preparation
from actors._runtime.verbs.host_services import ExecutionResult, HostServices
from actors._runtime.worker.admission import Permit
from actors._runtime.worker.adoption import ShardAdoption
from actors._runtime.worker.dispatcher import Dispatcher
from actors._runtime.worker.held_shards import Completions, HeldShards
from actors._runtime.worker.intake import Intake
from actors._runtime.worker.launcher import Launcher
from actors._runtime.worker.mailbox import Adoption, Holding, Mailbox, MailboxCapacity
from actors._runtime.worker.worker_state import WorkerState

_log = logging.getLogger("callboard.worker")

EFFECT_LIMIT_S: Final = 2.0
"""Seconds that a stop waits, after its drain, for effects that must not happen twice."""
EFFECT_POLL_S: Final = 0.02
"""Seconds between two checks whether these effects have ended."""


class Worker:
    """Executes the runs of the shards it was given.

    Args:
        env: The services that executions share; their notifications about other agents come to this worker.
        notifications: The source of hints for agents here.
        capacity: Number of runs that may execute at once.
        mail_capacity: Number of waiting messages that may be in memory at once.

    Attributes:
        env: The services that executions share.
        held: The shards, and how far each is.
        completions: The futures of callers of this host that wait for the end of a run.
        dispatcher: The dispatcher, which starts ready agents.
        intake: The entry of what arrives.
        adoption: The entry of what is read of shards that are new.
    """

    dispatcher: Dispatcher
    held: HeldShards
    completions: Completions

    def __init__(
        self,
        env: HostServices,
        notifications: Notifications,
        *,
        capacity: int,
        mail_capacity: MailboxCapacity | None = None,
    ) -> None:
        self.mail_capacity: MailboxCapacity = mail_capacity or MailboxCapacity()
        state = self._state = WorkerState(
            env, self.mail_capacity, capacity=capacity, drive=self._drive
        )
        self._mailboxes, self.dispatcher = state.mailboxes, state.dispatcher
        self.held, self.completions = state.held, state.completions
        self._executing = state.executing
        self.intake: Intake = Intake(env, state, notifications)
        self.env: HostServices = self.intake.env
        self.adoption: ShardAdoption = ShardAdoption(state, self.intake, notifications.publish)
        self._preparation = Preparation(env.store, env.agents)
        self._launcher = Launcher(self.env, state, self.intake, self.adoption)

    def lease_of(self, agent_id: AgentId) -> ShardLease | None:
        """Return the lease of an agent's shard, or None when it is not held here."""
        return self.held.get(self.env.store.shards.shard_of(agent_id))

    def executing_in(self, shard: ShardId) -> list[Execution]:
        """Return the executions in memory of a shard's runs."""
        return [e for e in self._executing.values() if e.lease.shard == shard]

    @property
    def in_doubt_elsewhere(self) -> frozenset[ShardId]:
        """Shards whose effects under way would be in doubt on another host. May be asked in any thread."""
        # A copy: the loop's thread may change the dictionary meanwhile.
        executions = list(self._executing.values())
        return frozenset(e.lease.shard for e in executions if e.has_unrepeatable_effect)

    def keep(self, shards: Sequence[ShardId]) -> None:
        """Serve shards again that were to be released."""
        self.held.draining.difference_update(shards)
        for mailbox in self._mailboxes.in_shards(shards):
            self.dispatcher.dispatch(mailbox)

    async def _drive(self, permit: Permit[Mailbox]) -> None:
        """Execute what is next for an agent, and everything after it that can go on at once."""
        mailbox = permit.item
        self.env.counters.wake_s.observe(asyncio.get_running_loop().time() - mailbox.ready_at)
        try:
            execution = await self._launcher.prepare(mailbox)
            if execution is not None:
                self._preparation.give_up(mailbox.agent_id)
            while execution is not None and not self.dispatcher.is_stopping:
                run_id = execution.lease.run_id
                self._executing[run_id] = execution
                try:
                    result = await execution.run()
                finally:
                    # A lost execution is out of the map already, and the run may have been adopted and execute
                    # here again.
                    is_dropped = self._executing.get(run_id) is not execution
                    if not is_dropped:
                        del self._executing[run_id]
                if not result.again:  # else nobody else may come between
                    self._state.suspects.leave(mailbox)
                self._settle(mailbox, execution, result)
                if is_dropped or mailbox.adoption is Adoption.UNDER_WAY:
                    self._mailboxes.ask_anew(mailbox.agent_id)
                self._preparation.note(execution.agent, result.answered)
                execution = await self._launcher.go_on(mailbox, result)
            is_free = mailbox.holding is Holding.NOTHING and not mailbox.has_work
            is_idle = is_free or mailbox.holding is Holding.SUSPENDED
            if is_idle and not self.dispatcher.is_stopping:
                self._preparation.begin(mailbox.agent_id)
        # The host stops or was abandoned: its next owner continues the run.
        except (asyncio.CancelledError, GeneratorExit):
            raise
        # Also an error of an author's factory, or of the store: without another try the agent would never run.
        except BaseException as exc:  # noqa: BLE001 - also a factory's own: no agent may stay stuck
            _log.warning(
                "an agent is tried again", extra={"agent": str(mailbox.agent_id)}, exc_info=exc
            )
            self.dispatcher.try_later(mailbox)
        finally:
            self.dispatcher.leave(permit)

    def _settle(self, mailbox: Mailbox, execution: Execution, result: ExecutionResult) -> None:
        """Note the result of an execution."""
        then, run_id = result.then, execution.lease.run_id
        self._note_mark(mailbox, execution, is_written=then is not None)
        is_in_doubt = execution.known_seq >= 0 and mailbox.adoption is Adoption.UNDER_WAY
        # The shard is read anew: what an execution without a written outcome knew may have been rolled back.
        if is_in_doubt and then is None and not result.lost:
            self._mailboxes.forget(mailbox, keeps_queue=True)  # its row says what is next
            self.completions.complete(run_id, None)
            return
        if result.refusals:
            self._state.refusals[run_id] = result.refusals
        if result.setback is None or result.lost:
            self._state.setbacks.forget(run_id)
        if result.lost:
            self.adoption.lose(mailbox.shard, epoch=execution.lease.epoch)
            return
        if isinstance(then, Finish):
            mailbox.free()
            row = execution.loaded_run.row
            if self.completions.is_awaited(run_id):
                ended_row = replace(row, status=then.status, result=then.result, error=then.error)
                # A cancelled run's row holds the reason, which this host may not have read.
                self.completions.complete(
                    run_id, None if then.status is RunStatus.CANCELLED else ended_row
                )
            if row.parent is None:
                self.env.on_end(row.agent_id, run_id)
            return
        if then is None or result.again:
            mailbox.wants_mail = isinstance(then, Suspend) and then.wake.message
            return
        _evict(mailbox, then)
        self.dispatcher.remind(mailbox)
        # The cancel came while the suspension was written: the code did not see it, so it is ended as a waiting
        # run.
        if execution.token.is_cancelled:
            self.intake.cancel(run_id, mailbox.agent_id, execution.token.reason)
        elif mailbox.wants_mail and (mailbox.has_mail or mailbox.spilled):
            self.dispatcher.wake(mailbox)
        elif mailbox.nudged:
            self.dispatcher.wake_by_signal(mailbox)
        else:
            self._mailboxes.forget_empty(mailbox)

    def _note_mark(self, mailbox: Mailbox, execution: Execution, *, is_written: bool) -> None:
        """Note that a run that a dead host may have executed has its mark, or still needs one."""
        if execution.standing.is_marked or is_written:
            if (legacy := self.held.legacies.get(mailbox.shard)) is not None:
                legacy.settled.add(mailbox.agent_id)
        elif execution.standing.was_running:
            mailbox.recovering = True

    def has(self, run_id: RunId) -> bool:
        """Return True if the run will end in this worker, or be lost with its shard and reported."""
        return run_id in self._state.fresh or run_id in self._executing

    def abandon(self) -> None:
        """Forget everything at once, as a crash does: nothing is written any more."""
        self.dispatcher.is_stopping = True
        self._preparation.cancel()
        for execution in list(self._executing.values()):
            execution.drop("crash")
        self._state.tasks.cancel()
        self.dispatcher.clear()
        self._state.suspects.clear()
        self.held.clear()
        self._mailboxes.clear()

    async def stop(self, *, drain_s: float = 0.0) -> None:
        """Start nothing, let executions end or suspend for `drain_s` seconds, then hand over the others."""
        self.dispatcher.is_stopping = True
        await self._preparation.close()
        if drain_s > 0:
            await self._state.tasks.settle(limit_s=drain_s)
        # Not cancelled at once: what an execution has recorded can still be written before the shard is
        # released.
        await _hand_over(self._executing.values())
        await self._state.tasks.settle(limit_s=UNWIND_LIMIT_S)
        self.dispatcher.timers.close()
        await self._state.tasks.close()
        self._state.fresh.clear()
        self.completions.release_all()  # nothing ends here any more


async def _hand_over(executions: Iterable[Execution]) -> None:
    """Hand executions over to the shards' next owners, which continue them by replay.

    An effect that must not happen twice gets a moment more to end. If it is cut off, it is in doubt.
    """
    now = asyncio.get_running_loop().time
    ends_at, executions_left = now() + EFFECT_LIMIT_S, list(executions)
    while executions_left:
        doubtful_executions = []
        for execution in executions_left:
            if execution.has_unrepeatable_effect and now() < ends_at:
                doubtful_executions.append(execution)
            else:
                execution.hand_over()
        if executions_left := doubtful_executions:
            await asyncio.sleep(EFFECT_POLL_S)


def _evict(mailbox: Mailbox, then: Then) -> None:
    """Note that the executed run was evicted, and waits as was written."""
    match then:
        case Suspend(wake):
            mailbox.evict(Holding.SUSPENDED, wake_at=wake.at, wants_mail=wake.message)
        case Retry(at, release=release):
            mailbox.evict(Holding.BACKOFF, wake_at=at, wants_mail=False)
            if release:
                mailbox.spill()  # they wait before what is here
        case _:
            mailbox.evict(Holding.PARKED, wake_at=None, wants_mail=False)
