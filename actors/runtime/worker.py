"""The worker: which agent goes on next, and what follows when an execution is over.

A message enters at `offer` (or by a nudge), waits in its agent's `Mailbox`, and starts a run through
the ready queue. `Execution` calls the agent's code. Nothing here is durable: all of it is rebuilt
from the store by `adopt` when a shard is claimed.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from actors.errors import RegistrationError
from actors.kernel.runtime.commit import (
    Arrived,
    Commit,
    Committed,
    Finish,
    LoadedRun,
    NewRun,
    Retry,
    RunRow,
    Suspend,
)
from actors.kernel.runtime.ids import run_id_of_mail
from actors.kernel.runtime.scheduler import Lease, RunStatus, ShardLease
from actors.runtime.endings import Endings
from actors.runtime.execution import UNWIND_LIMIT_S, Ended, Environment, Execution
from actors.runtime.mailbox import Holding, Mailbox, StartMail, StartRun, WaitingMail
from actors.runtime.outcome import cancelled
from actors.runtime.ready_queue import ReadyQueue
from actors.runtime.signals import RESERVED
from actors.runtime.tasks import TaskScope
from actors.runtime.timers import Timers

if TYPE_CHECKING:
    from actors.kernel.runtime.ids import AgentId, RunId, ShardId
    from actors.runtime.registry import Registry

_log = logging.getLogger(__name__)

RELOAD_WAIT_S: Final = 1.0
"""Seconds before a run is tried again when the store could not be read or written."""


class Worker:
    """Executes the runs of the shards it was given.

    Args:
        env: What executions share; `mail_of` and `on_routed` are this worker's.
        registry: The agents served here.
        capacity: How many runs are in memory at once; hot waiting ones count.
    """

    def __init__(self, env: Environment, registry: Registry, *, capacity: int) -> None:
        self._env = env
        self._store = env.store
        self._registry = registry
        self._capacity = capacity
        self._shards: dict[ShardId, ShardLease] = {}
        self._mailboxes: dict[AgentId, Mailbox] = {}
        self._executing: dict[RunId, Execution] = {}
        self._fresh: dict[RunId, NewRun] = {}
        self._ready: ReadyQueue[Mailbox] = ReadyQueue()
        self._busy = 0
        self.endings = Endings()
        self._tasks = TaskScope()
        self._stopping = False
        self.timers = Timers(env.clock, self._on_timer)

    # --- shards ---------------------------------------------------------------------------------

    @property
    def shards(self) -> tuple[ShardLease, ...]:
        """What this worker may act for."""
        return tuple(self._shards.values())

    def lease_of(self, agent_id: AgentId) -> ShardLease | None:
        """Return the lease of an agent's shard, or None when it is not held here."""
        return self._shards.get(self._store.shard_of(agent_id))

    def grant(self, lease: ShardLease) -> None:
        """Act for a shard from now on; `adopt` then tells what is in it."""
        self._shards[lease.shard] = lease

    def lose(self, shard: ShardId, *, epoch: int) -> None:
        """The shard belongs to somebody else: stop acting for its agents, at once.

        A lease of another epoch, claimed since, stays.
        """
        lease = self._shards.get(shard)
        if lease is None or lease.epoch != epoch:
            return
        del self._shards[shard]
        _log.warning("a shard was lost to another host", extra={"shard": shard})
        for execution in list(self._executing.values()):
            if execution.lease.shard == shard:
                execution.drop("the shard was lost")
                self.endings.tell(execution.lease.run_id, None)
        for agent_id in [a for a, m in self._mailboxes.items() if m.shard == shard]:
            del self._mailboxes[agent_id]

    def adopt(self, run: RunRow, messages: tuple[Arrived, ...] = ()) -> None:
        """Take over an open run of a shard that was claimed."""
        mailbox = self._mailbox(run.agent_id)
        if mailbox is None or run.run_id in self._executing or mailbox.run_id == run.run_id:
            return
        if run.status is RunStatus.PENDING and run.last_seq < 0:
            for arrived in messages:
                self.offer(arrived, priority=run.priority)
            if run.cancel_requested is not None:
                self.cancel(run.run_id, run.agent_id, run.cancel_requested)
            return
        mailbox.run_id, mailbox.priority = run.run_id, run.priority
        mailbox.recovering = run.status is RunStatus.RUNNING
        wants_mail = run.wake is not None and run.wake.message
        mailbox.rest(_rest_of(run), wake_at=run.wake_at, wants_mail=wants_mail)
        if run.cancel_requested is not None or mailbox.recovering:
            self._wake(mailbox)
        elif run.wake_at is not None:
            self.timers.add(run.wake_at, run.agent_id)

    def reconsider(self) -> None:
        """New agents are served, or a shard was adopted whole: look at every idle mailbox."""
        for mailbox in list(self._mailboxes.values()):
            self._consider(mailbox)
            if mailbox.nudged:
                self._wake(mailbox)

    # --- what comes in --------------------------------------------------------------------------

    def offer(
        self, arrived: Arrived, *, new_run: NewRun | None = None, priority: int | None = None
    ) -> None:
        """Here a message enters: a row that is durable already. Ignored if the shard is not ours."""
        mailbox = self._mailbox(arrived.agent_id)
        if mailbox is None or not mailbox.add(arrived):
            return
        if new_run is not None:
            self._fresh[new_run.run_id] = new_run
            priority = new_run.priority
        elif arrived.run_id is not None:
            self._fresh.pop(arrived.run_id, None)  # it joined a queued run: load all its messages
        if mailbox.holding is Holding.NOTHING and priority is not None:
            mailbox.priority = priority
        if arrived.run_id is None and mailbox.run_id is not None:
            execution = self._executing.get(mailbox.run_id)
            if execution is not None and not execution.poke_mail():
                mailbox.nudged = True
            if mailbox.holding is Holding.SUSPENDED and mailbox.wants_mail:
                self._wake(mailbox)
        self._consider(mailbox)

    def signalled(self, run_id: RunId, agent_id: AgentId) -> None:
        """A signal for a run is in the store."""
        mailbox = self._mailboxes.get(agent_id)
        execution = self._executing.get(run_id)
        if execution is not None:
            if not execution.poke_signals() and mailbox is not None:
                mailbox.nudged = True
        elif mailbox is not None and mailbox.run_id == run_id:
            self._wake_by_signal(mailbox)

    def cancel(self, run_id: RunId, agent_id: AgentId, reason: str) -> None:
        """A run of ours has to end; the flag is in the store already."""
        execution = self._executing.get(run_id)
        if execution is not None:
            execution.cancel(reason)
            return
        mailbox = self._mailbox(agent_id)
        if mailbox is not None:
            self._tasks.start(self._cancel_waiting(mailbox, run_id), name=f"cancel {run_id}")

    def mail_of(self, agent_id: AgentId) -> WaitingMail:
        """Return the waiting messages of an agent that executes here, for `ctx.receive`."""
        return WaitingMail(self._mailboxes[agent_id])

    def routed(self, arrived: tuple[Arrived, ...]) -> None:
        """A turn wrote these inbox rows."""
        for item in arrived:
            self.offer(item)

    def _mailbox(self, agent_id: AgentId) -> Mailbox | None:
        mailbox = self._mailboxes.get(agent_id)
        if mailbox is None:
            try:
                shard = self._store.shard_of(agent_id)
            except RegistrationError:
                return None  # not declared here: this is a client, or a host of other types
            if shard not in self._shards:
                return None
            mailbox = self._mailboxes[agent_id] = Mailbox(agent_id, shard)
        return mailbox

    # --- whose turn it is -----------------------------------------------------------------------

    def _consider(self, mailbox: Mailbox) -> None:
        if mailbox.holding is Holding.NOTHING and mailbox.queue:
            self._make_ready(mailbox)

    def _wake(self, mailbox: Mailbox) -> None:
        if mailbox.is_at_rest:
            self._make_ready(mailbox)

    def _wake_by_signal(self, mailbox: Mailbox) -> None:
        if mailbox.holding is Holding.SUSPENDED:
            self._wake(mailbox)
        elif mailbox.holding is Holding.PARKED:
            self._tasks.start(self._look_for_decision(mailbox), name="look for a decision")

    async def _look_for_decision(self, mailbox: Mailbox) -> None:
        """Wake a parked run if an operator's signal is there; others wait with it."""
        run_id = mailbox.run_id
        found = await self._store.signals(run_id) if run_id is not None else []
        is_decided = any(signal.name.startswith(RESERVED) for signal in found)
        if is_decided and mailbox.run_id == run_id and mailbox.holding is Holding.PARKED:
            self._wake(mailbox)

    def _make_ready(self, mailbox: Mailbox) -> None:
        if not self._registry.is_served(mailbox.agent_id):
            mailbox.nudged = True
            return  # its mail and runs wait as rows; registering the agent looks again
        mailbox.holding = Holding.READY
        self._ready.offer(mailbox, priority=mailbox.priority, tenant=mailbox.agent_id.tenant)
        self._start_ready()

    def _on_timer(self, agent_id: AgentId) -> None:
        mailbox = self._mailboxes.get(agent_id)
        if mailbox is None or mailbox.wake_at is None or mailbox.wake_at > self._env.clock.now():
            return
        self._wake(mailbox)

    def _start_ready(self) -> None:
        while self._ready and self._busy < self._capacity and not self._stopping:
            [mailbox] = self._ready.take(1)
            if mailbox.shard not in self._shards:
                continue
            self._busy += 1
            self._tasks.start(self._drive(mailbox), name=f"agent {mailbox.agent_id}")

    async def _drive(self, mailbox: Mailbox) -> None:
        """Execute what is next for an agent, and everything after it that can go on at once."""
        try:
            execution = await self._prepare(mailbox)
            while execution is not None and not self._stopping:
                run_id = execution.lease.run_id
                self._executing[run_id] = execution
                try:
                    ended = await execution.run()
                finally:
                    self._executing.pop(run_id, None)
                self._settle(mailbox, execution, ended)
                execution = await self._next(mailbox, ended)
        except Exception as exc:  # noqa: BLE001 - also a factory's own: no agent may stay stuck
            _log.warning(
                "an agent is tried again", extra={"agent": str(mailbox.agent_id)}, exc_info=exc
            )
            self._try_later(mailbox)
        finally:
            self._busy -= 1
            self._start_ready()

    async def _next(self, mailbox: Mailbox, ended: Ended) -> Execution | None:
        if self._stopping or ended.lost or mailbox.shard not in self._shards:
            return None
        if mailbox.holding is Holding.EXECUTING and mailbox.run_id is not None and ended.again:
            return await self._resume(mailbox, mailbox.run_id, broke_off=ended.then is None)
        if mailbox.holding is Holding.NOTHING and mailbox.queue and not self._ready:
            return await self._prepare(mailbox)
        self._consider(mailbox)
        self._forget_empty(mailbox)
        return None

    def _forget_empty(self, mailbox: Mailbox) -> None:
        if mailbox.is_empty and self._mailboxes.get(mailbox.agent_id) is mailbox:
            del self._mailboxes[mailbox.agent_id]

    async def _prepare(self, mailbox: Mailbox) -> Execution | None:
        """Return the execution of what is next for the agent."""
        if mailbox.run_id is not None:
            mailbox.holding = Holding.EXECUTING
            broke_off = mailbox.taken is not None
            return await self._resume(mailbox, mailbox.run_id, broke_off=broke_off)
        mailbox.holding = Holding.NOTHING
        turn = mailbox.next_turn()
        if turn is None:  # what was queued has been cancelled
            self._forget_empty(mailbox)
            return None
        mailbox.holding = Holding.EXECUTING
        match turn:
            case StartRun(run_id=run_id, first=first):
                mailbox.run_id = run_id
                fresh = self._fresh.pop(run_id, None)
                if fresh is None:
                    return await self._resume(mailbox, run_id)
                return self._execution(mailbox, LoadedRun(_row_of(fresh), (), (first,)))
            case StartMail(mail=mail):
                agent_id = mailbox.agent_id
                run = NewRun(run_id_of_mail(agent_id, mail[0].sender, mail[0].message.id), agent_id)
                mailbox.run_id = run.run_id
                loaded = LoadedRun(_row_of(run), ())
                return self._execution(mailbox, loaded, create=run, mail=mail)

    async def _resume(
        self, mailbox: Mailbox, run_id: RunId, *, broke_off: bool = False
    ) -> Execution | None:
        if broke_off:  # what the execution had taken may not have been written: it waits again
            waiting = await self._store.pending_mail(agent=mailbox.agent_id)
            mailbox.taken = None
            for arrived in waiting:
                mailbox.add(arrived)
        found = await self._store.load([run_id])
        if not found or found[0].row.status.is_terminal:
            mailbox.free()
            return await self._next(mailbox, Ended(None))
        loaded = found[0]
        if broke_off and loaded.row.status is RunStatus.PENDING and loaded.row.wake_at is not None:
            mailbox.free()  # that it backs off was written, the answer was lost
            self.adopt(loaded.row)
            return None
        if loaded.row.cancel_requested is not None:
            await self._cancel_waiting(mailbox, run_id)
            return None
        was_running, mailbox.recovering = mailbox.recovering, False
        mailbox.nudged = False
        return self._execution(mailbox, loaded, was_running=was_running)

    def _execution(
        self,
        mailbox: Mailbox,
        loaded: LoadedRun,
        *,
        create: NewRun | None = None,
        mail: tuple[Arrived, ...] = (),
        was_running: bool = False,
    ) -> Execution | None:
        agent = self._registry.find(mailbox.agent_id)
        lease = self._shards.get(mailbox.shard)
        if agent is None or lease is None:
            mailbox.holding = Holding.SUSPENDED
            return None
        return Execution(
            self._env, agent, _run_lease(lease, loaded.row), loaded, create, mail, was_running
        )

    # --- what follows -----------------------------------------------------------------------------

    def _settle(self, mailbox: Mailbox, execution: Execution, ended: Ended) -> None:
        """Note what became of the run that was executed."""
        then, run_id = ended.then, execution.lease.run_id
        if ended.lost:
            self.lose(mailbox.shard, epoch=execution.lease.epoch)
            return
        if isinstance(then, Finish):
            mailbox.free()
            row = execution.loaded.row
            row = replace(row, status=then.status, result=ended.output, error=then.error)
            # A cancelled run's row holds the reason, which this host may not have read.
            self.endings.tell(run_id, None if then.status is RunStatus.CANCELLED else row)
            return
        if then is None or ended.again:
            return
        match then:
            case Suspend(wake):
                mailbox.rest(Holding.SUSPENDED, wake_at=wake.at, wants_mail=wake.message)
            case Retry(at):
                mailbox.rest(Holding.BACKOFF, wake_at=at, wants_mail=False)
            case _:
                mailbox.rest(Holding.PARKED, wake_at=None, wants_mail=False)
        if mailbox.wake_at is not None:
            self.timers.add(mailbox.wake_at, mailbox.agent_id)
        if execution.token.is_cancelled:
            self.cancel(run_id, mailbox.agent_id, execution.token.reason)
        elif mailbox.wants_mail and mailbox.has_mail:
            self._wake(mailbox)
        elif mailbox.nudged:
            self._wake_by_signal(mailbox)

    def _try_later(self, mailbox: Mailbox) -> None:
        if self._stopping or mailbox.shard not in self._shards:
            return
        mailbox.holding = Holding.BACKOFF if mailbox.run_id is not None else Holding.NOTHING
        loop = asyncio.get_running_loop()
        look = self._wake if mailbox.run_id is not None else self._consider
        loop.call_later(RELOAD_WAIT_S, look, mailbox)

    async def _cancel_waiting(self, mailbox: Mailbox, run_id: RunId) -> None:
        """End a run that is not in memory: its terminal entry is written without its code."""
        found = await self._store.load([run_id])
        lease = self._shards.get(mailbox.shard)
        if not found or lease is None:
            return
        row = found[0].row
        if not row.status.is_terminal:
            verdict = cancelled(row.cancel_requested or "")
            outcome = await self._store.commit(
                Commit(
                    _run_lease(lease, row), row.last_seq, verdict.entries, verdict.then,
                    attempt=row.attempt,
                )
            )  # fmt: skip
            if not isinstance(outcome, Committed):
                _log.warning(
                    "a cancel met a change of the run", extra={"run": run_id, "why": str(outcome)}
                )
                return
        self._fresh.pop(run_id, None)
        mailbox.forget(run_id)
        self.endings.tell(run_id, None)
        self._consider(mailbox)
        self._forget_empty(mailbox)

    def has(self, run_id: RunId) -> bool:
        """Whether the run is certain to end here, or to be lost with its shard, aloud."""
        return run_id in self._fresh or run_id in self._executing

    # --- stopping ---------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Forget everything at once, as a crash does: nothing is written any more."""
        self._stopping = True
        for execution in list(self._executing.values()):
            execution.drop("crash")
        self._tasks.cancel()
        self.timers.close()
        self._shards.clear()
        self._mailboxes.clear()
        self._ready.clear()

    async def stop(self, *, drain_s: float = 0.0) -> None:
        """Start nothing, let executions end or suspend for `drain_s` seconds, then drop the rest.

        What is dropped writes nothing and goes on, by replay, where its shard goes.
        """
        self._stopping = True
        if drain_s > 0:
            await self._tasks.settle(limit_s=drain_s)
        self.timers.close()
        for execution in list(self._executing.values()):
            execution.drop("the worker stops")
        await self._tasks.settle(limit_s=UNWIND_LIMIT_S)
        await self._tasks.close()

    @property
    def load(self) -> int:
        """How many runs are in memory."""
        return self._busy


def _row_of(run: NewRun) -> RunRow:
    return RunRow(
        run.run_id, run.agent_id, RunStatus.PENDING, priority=run.priority,
        retry_policy=run.retry_policy, parent=run.parent, root=run.root, depth=run.depth,
        deadline_at=run.deadline_at, version=run.version, trace=run.trace,
    )  # fmt: skip


def _run_lease(lease: ShardLease, row: RunRow) -> Lease:
    return Lease(
        lease.shard, lease.owner, lease.epoch, lease.expires_at, row.run_id, row.agent_id,
        max(row.attempt, 1),
    )  # fmt: skip


def _rest_of(run: RunRow) -> Holding:
    if run.parked is not None:
        return Holding.PARKED
    return Holding.BACKOFF if run.status is RunStatus.PENDING else Holding.SUSPENDED
