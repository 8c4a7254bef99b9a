"""The worker: which agent goes on next, and what follows when an execution is over.

A message enters at `offer`, or is read from the store when `mail_waits` told of it, waits in its
agent's `Mailbox`, and starts a run through the ready queue. `Execution` calls the agent's code.
Nothing here is durable: when a shard is claimed all of it is rebuilt from the store, by `adopt` and
`mail_waits`.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from actors.kernel.runtime.commit import Arrived, Finish, NewRun, Retry, RunRow, Suspend
from actors.kernel.runtime.scheduler import RunStatus
from actors.runtime.beginning import place_of, place_of_child
from actors.runtime.cancelling import end_cancelled
from actors.runtime.dispatch import Dispatch
from actors.runtime.endings import Endings
from actors.runtime.execution import UNWIND_LIMIT_S, circle_of
from actors.runtime.leaving import hand_over
from actors.runtime.mailbox import Adoption, Holding, Mailbox, Room, WaitingMail, holding_of
from actors.runtime.mailboxes import Mailboxes
from actors.runtime.refill import Refill
from actors.runtime.shards import Shards
from actors.runtime.starting import Starts
from actors.runtime.tasks import TaskScope

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from actors.kernel.runtime.blocking import Blocking
    from actors.kernel.runtime.commit import LoadedRun, Spawned, Then, WaitCycle
    from actors.kernel.runtime.ids import AgentId, RunId, ShardId
    from actors.kernel.runtime.scheduler import ShardLease
    from actors.runtime.admission import Entry
    from actors.runtime.environment import Ended, Environment
    from actors.runtime.execution import Execution
    from actors.runtime.meters import Meters
    from actors.runtime.secrets import Secrets

_log = logging.getLogger(__name__)


class Worker:
    """Executes the runs of the shards it was given.

    Args:
        env: What executions share; `mail_of` and `on_routed` are this worker's.
        capacity: How many runs are in memory at once; hot waiting ones count.
        room: How many waiting messages are in memory at once.
    """

    def __init__(self, env: Environment, *, capacity: int, room: Room | None = None) -> None:
        self._env = env
        self._store = env.store
        self.room = room or Room()
        self.held = Shards()
        """The shards, and how far each is."""
        self.on_lost: Callable[[], None] = lambda: None
        """Called after a shard was lost or given up."""
        self.on_end: Callable[[AgentId, RunId], None] = lambda agent_id, run_id: None
        """Called when a run that nobody spawned has ended here."""
        self._mailboxes = Mailboxes(self._store, env.agents, self.held, self.room)
        self._executing: dict[RunId, Execution] = {}
        self.endings = Endings()
        self._tasks = TaskScope()
        self._dispatch = Dispatch(
            self._store, self._mailboxes, env.clock, self._tasks,
            capacity=capacity, drive=self._drive,
        )  # fmt: skip
        self.admission = self._dispatch.admission
        """See `Dispatch`."""
        self.start_ready = self._dispatch.start_ready
        """See `Dispatch.start_ready`."""
        self._refill = Refill(self._store, self._tasks, self._on_mail_read)
        self._starts = Starts(env, self._mailboxes, self._refill, host=self)

    # --- shards ---------------------------------------------------------------------------------

    @property
    def shards(self) -> tuple[ShardLease, ...]:
        """What this worker may act for. May be asked in any thread."""
        return self.held.leases

    @property
    def loaded_shards(self) -> tuple[ShardLease, ...]:
        """Those of them whose open runs are known: new mail may be read for them."""
        return self.held.loaded

    def lease_of(self, agent_id: AgentId) -> ShardLease | None:
        """Return the lease of an agent's shard, or None when it is not held here."""
        return self.held.get(self._store.shard_of(agent_id))

    def grant(self, lease: ShardLease) -> None:
        """Hold a shard; nothing starts in it before its runs were told to `adopt` and `loaded` says so."""
        older = self.held.get(lease.shard)
        if older is not None:
            self.give_up([older])  # it was lost, and claimed again before a heartbeat could say so
        self.held.grant(lease)

    def begin_adoption(self) -> list[ShardId]:
        """Return the shards whose open runs have to be read now.

        Those that are new, and those with work of agents that are served only since.
        """
        return sorted(self.held.loading | self._mailboxes.begin_adoption())

    def adopt(self, run: RunRow, messages: tuple[Arrived, ...] = ()) -> None:
        """Take over an open run: a queued one at any time, others while their shard is read."""
        is_queued = run.status is RunStatus.PENDING and run.last_seq < 0
        self._give_way(run, is_queued=is_queued)
        mailbox = self._mailboxes.of(run.agent_id)
        if mailbox is None or run.run_id in self._executing or mailbox.run_id == run.run_id:
            return
        if is_queued:
            for arrived in messages or (place_of(run),):
                self.offer(arrived, priority=run.priority)
        elif mailbox.adoption is Adoption.UNDER_WAY and not run.status.is_terminal:
            self.hold(mailbox, run)
            return
        # A run that this worker has seen may be further than its row said when that was read.
        if run.cancel_requested is not None:
            self.cancel(run.run_id, run.agent_id, run.cancel_requested)
        self._mailboxes.forget_empty(mailbox)

    def _give_way(self, run: RunRow, *, is_queued: bool) -> None:
        """Forget what holds the agent here if that is not what its row, as the store has it, says."""
        mailbox = self._mailboxes.find(run.agent_id)
        if mailbox is None or mailbox.run_id is None or mailbox.adoption is not Adoption.UNDER_WAY:
            return
        execution = self._executing.get(mailbox.run_id)
        if mailbox.run_id == run.run_id:
            is_forgotten = execution is not None and run.last_seq < execution.known_seq
            if execution is not None and not is_forgotten:
                execution.known_seq = -1  # in doubt no more
        else:
            is_forgotten = not is_queued
        if not is_forgotten:
            return
        if execution is not None:
            del self._executing[mailbox.run_id]
            execution.drop("the store has forgotten it")
        self._mailboxes.forget(mailbox)

    def doubt(self) -> None:
        """The store may be behind what it said before: have everything read again.

        Executions of which something is durable go on, and their next write, or `adopt`, tells whether
        the store still knows. Others have done nothing outside yet: they are left.
        """
        for run_id, execution in list(self._executing.items()):
            if not execution.doubt():
                del self._executing[run_id]
                execution.drop("the store may have forgotten it")
        for lease in self.held.leases:
            self.held.read_anew(lease.shard)
        self._mailboxes.doubt({e.lease.agent_id for e in self._executing.values()})
        self._starts.fresh.clear()
        self._starts.refusals.clear()
        self.endings.look_again()

    def hold(self, mailbox: Mailbox, run: RunRow) -> None:
        """A run that has started holds its agent, and waits as its row says."""
        mailbox.run_id, mailbox.priority = run.run_id, run.priority
        mailbox.recovering = run.status is RunStatus.RUNNING
        wants_mail = run.wake is not None and run.wake.message
        mailbox.rest(holding_of(run), wake_at=run.wake_at, wants_mail=wants_mail)
        has_mail = wants_mail and mailbox.missed
        if has_mail or mailbox.recovering or run.cancel_requested is not None:
            self._dispatch.wake(mailbox)
        else:
            self._dispatch.remind(mailbox)

    def loaded(self, shards: Sequence[ShardId]) -> None:
        """All open runs of these shards were told: what waited for that starts."""
        self.held.loading.difference_update(shards)
        for mailbox in self._mailboxes.in_shards(shards):
            if mailbox.adoption is Adoption.UNDER_WAY:
                mailbox.adoption = Adoption.DONE
                self._dispatch.look_at(mailbox)

    def lose(self, shard: ShardId, *, epoch: int) -> None:
        """The shard belongs to somebody else: stop acting for its agents, at once.

        A lease of another epoch, claimed since, stays.
        """
        lease = self.held.get(shard)
        if lease is not None and lease.epoch == epoch:
            _log.warning("a shard was lost to another host", extra={"shard": shard})
            self.give_up([lease])

    def give_up(self, leases: Sequence[ShardLease]) -> list[ShardLease]:
        """Stop acting for shards, at once; return those that were held until now."""
        gone = [lease for lease in leases if self.held.remove(lease)]
        if not gone:
            return gone
        shards = {lease.shard for lease in gone}
        for execution in list(self._executing.values()):
            if execution.lease.shard in shards:
                # Out of the map at once: the run may be adopted again before its code has unwound.
                del self._executing[execution.lease.run_id]
                execution.drop("the shard was lost")
        self._mailboxes.forget_shards(shards)
        shard_of = self._store.shard_of
        for run_id in [
            i for i, run in self._starts.fresh.items() if shard_of(run.agent_id) in shards
        ]:
            del self._starts.fresh[run_id]
        self.endings.look_again()
        self.on_lost()
        return gone

    def gave_up(self, blocking: Blocking) -> None:
        """Hosts gave up the shard of a run that blocked them: told before the run starts here."""
        self._starts.blockings[blocking.run_id] = blocking

    def remind(self, agent_id: AgentId) -> None:
        """The time of an agent's waiting run comes soon."""
        mailbox = self._mailboxes.find(agent_id)
        if mailbox is not None:
            self._dispatch.remind(mailbox)

    def looked_through(self, leases: Sequence[ShardLease]) -> None:
        """All mail that waits in these shards was told by `mail_waits`."""
        self._mailboxes.looked_through(leases)

    # --- giving shards back ---------------------------------------------------------------------

    def executing_in(self, shard: ShardId) -> list[Execution]:
        """Return what is in memory of a shard."""
        return [e for e in self._executing.values() if e.lease.shard == shard]

    @property
    def in_doubt_elsewhere(self) -> frozenset[ShardId]:
        """Shards whose effects under way would be in doubt on another host. May be asked in any thread."""
        executing = list(self._executing.values())
        return frozenset(e.lease.shard for e in executing if e.has_unrepeatable_effect)

    def drain(self, shards: Sequence[ShardId]) -> None:
        """Start nothing in these shards until they are given up, or `keep` is called."""
        self.held.draining.update(shards)

    def keep(self, shards: Sequence[ShardId]) -> None:
        """Go on in shards that were drained."""
        self.held.draining.difference_update(shards)
        for mailbox in self._mailboxes.in_shards(shards):
            self._dispatch.look_at(mailbox)

    # --- what comes in --------------------------------------------------------------------------

    def offer(
        self, arrived: Arrived, *, new_run: NewRun | None = None, priority: int | None = None
    ) -> None:
        """Here a message enters: a row that is durable already. Ignored if the shard is not ours."""
        mailbox = self._mailboxes.of(arrived.agent_id)
        if mailbox is None or not mailbox.add(arrived):
            return
        if new_run is not None:
            self._starts.fresh[new_run.run_id] = new_run
            priority = new_run.priority
        elif arrived.run_id is not None:
            # It joined a queued run: load all its messages.
            self._starts.fresh.pop(arrived.run_id, None)
        if mailbox.holding is Holding.NOTHING and priority is not None:
            mailbox.priority = priority
        if arrived.run_id is None:
            self._tell_of_mail(mailbox)
        self._dispatch.consider(mailbox)

    def spawned(self, children: Sequence[tuple[Spawned, int]]) -> None:
        """A turn created these runs: each takes its place in its agent's queue."""
        for child, arrival in children:
            place = place_of_child(child, arrival)
            new_run = child.run if child.boot is not None else None
            self.offer(place, new_run=new_run, priority=child.run.priority)

    def mail_waits(self, agent_id: AgentId, arrival: int | None = None) -> None:
        """An agent has mail in the store: this message, or some; it is read when it is needed."""
        mailbox = self._mailboxes.of(agent_id)
        if mailbox is not None and (arrival is None or not mailbox.knows(arrival)):
            mailbox.note_mail()
            self._on_mail_read(mailbox)
            self._dispatch.consider(mailbox)

    def lazy_mail_waits(self, shard: ShardId) -> None:
        """Agents of a shard have mail in the store that starts nothing by itself."""
        self._mailboxes.have_lazy_mail(shard)

    def lazy_mail_is_only_in(
        self, shards: Collection[ShardId], *, among: Sequence[ShardLease]
    ) -> None:
        """Of shards that are held, these have such mail, and the others none."""
        none = {lease.shard for lease in among if self.held.holds(lease)}.difference(shards)
        self.held.lazy.difference_update(none)

    def _on_mail_read(self, mailbox: Mailbox) -> None:
        if self._mailboxes.is_known(mailbox):
            self._tell_of_mail(mailbox)

    def _tell_of_mail(self, mailbox: Mailbox) -> None:
        """Tell the run that holds the agent of plain mail."""
        if mailbox.run_id is None:
            return
        execution = self._executing.get(mailbox.run_id)
        if execution is not None and not execution.poke_mail():
            mailbox.nudged = True
        if mailbox.holding is Holding.SUSPENDED and mailbox.wants_mail:
            self._dispatch.wake(mailbox)

    def signalled(self, run_id: RunId, agent_id: AgentId) -> None:
        """A signal or an answer for a run is in the store."""
        mailbox = self._mailboxes.find(agent_id)
        execution = self._executing.get(run_id)
        if execution is not None:
            if not execution.poke_signals() and mailbox is not None:
                mailbox.nudged = True
        elif mailbox is not None and mailbox.run_id == run_id:
            self._dispatch.wake_by_signal(mailbox)

    def in_circle(self, cycle: WaitCycle) -> None:
        """A wait of a run of ours can never end: it fails, in this execution or the next one."""
        mailbox = self._mailboxes.find(cycle.agent_id)
        if mailbox is None or mailbox.run_id != cycle.run_id:
            return
        execution = self._executing.get(cycle.run_id)
        if execution is not None and execution.fail_wait(cycle):
            return
        self._starts.refusals[cycle.run_id] = {cycle.position: circle_of(cycle)}
        if execution is not None:
            mailbox.nudged = True
        elif mailbox.holding is Holding.SUSPENDED:
            self._dispatch.wake(mailbox)

    def look_before_start(self, run_id: RunId) -> None:
        """A run was flagged: should it start before anybody has read that, its row is read first."""
        self._starts.fresh.pop(run_id, None)

    def cancel(self, run_id: RunId, agent_id: AgentId, reason: str) -> None:
        """A run of ours has to end; the flag is in the store already."""
        execution = self._executing.get(run_id)
        if execution is not None:
            execution.cancel(reason)
            return
        mailbox = self._mailboxes.of(agent_id)
        if mailbox is not None:
            self._tasks.start(self.cancel_waiting(mailbox, run_id), name=f"cancel {run_id}")

    def mail_of(self, agent_id: AgentId) -> WaitingMail:
        """Return the waiting messages of an agent that executes here, for `ctx.receive`."""
        mailbox = self._mailboxes.find(agent_id)
        assert mailbox is not None, "an agent that executes has a mailbox"
        return WaitingMail(mailbox, self._refill.beside)

    def routed(self, arrived: tuple[Arrived, ...]) -> None:
        """A turn wrote these inbox rows."""
        for item in arrived:
            self.offer(item)

    # --- executing ------------------------------------------------------------------------------

    async def _drive(self, entry: Entry[Mailbox]) -> None:
        """Execute what is next for an agent, and everything after it that can go on at once."""
        mailbox = entry.item
        waited_s = asyncio.get_running_loop().time() - mailbox.ready_at
        self._env.meters.wake_s.observe(waited_s)
        try:
            execution = await self._starts.prepare(mailbox)
            while execution is not None and not self._dispatch.is_stopping:
                run_id = execution.lease.run_id
                self._executing[run_id] = execution
                try:
                    ended = await execution.run()
                finally:
                    if self._executing.get(run_id) is execution:
                        del self._executing[run_id]
                self._settle(mailbox, execution, ended)
                execution = await self.go_on(mailbox, ended)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as exc:  # noqa: BLE001 - also a factory's own: no agent may stay stuck
            _log.warning(
                "an agent is tried again", extra={"agent": str(mailbox.agent_id)}, exc_info=exc
            )
            self._dispatch.try_later(mailbox)
        finally:
            self._dispatch.leave(entry)

    async def go_on(self, mailbox: Mailbox, ended: Ended) -> Execution | None:
        """Return the execution that follows one that is over, if it can begin at once."""
        if self._dispatch.is_stopping or ended.lost or not self._mailboxes.is_known(mailbox):
            return None
        if mailbox.holding is Holding.EXECUTING and mailbox.run_id is not None and ended.again:
            setback = ended.setback
            pause_s = (
                0.0 if setback is None else self._starts.setbacks.note(mailbox.run_id, setback)
            )
            if pause_s > 0:
                mailbox.broke_off()
                self._dispatch.try_later(mailbox, pause_s)
                return None
            if self._mailboxes.may_start(mailbox):
                return await self._starts.resume(
                    mailbox, mailbox.run_id, broke_off=ended.then is None
                )
            mailbox.set_aside()
            return None
        if self._dispatch.goes_on(mailbox):
            return await self._starts.prepare(mailbox)
        self._dispatch.consider(mailbox)
        self._mailboxes.forget_empty(mailbox)
        return None

    # --- what follows -----------------------------------------------------------------------------

    def _settle(self, mailbox: Mailbox, execution: Execution, ended: Ended) -> None:
        """Note what became of the run that was executed."""
        then, run_id = ended.then, execution.lease.run_id
        is_in_doubt = execution.known_seq >= 0 and mailbox.adoption is Adoption.UNDER_WAY
        if is_in_doubt and then is None and not ended.lost:
            self._mailboxes.forget(mailbox)  # its row, which is being read, says what is next
            return
        if ended.refusals:
            self._starts.refusals[run_id] = ended.refusals
        if ended.setback is None or ended.lost:
            self._starts.setbacks.forget(run_id)
        if ended.lost:
            self.lose(mailbox.shard, epoch=execution.lease.epoch)
            return
        if isinstance(then, Finish):
            mailbox.free()
            row = execution.loaded.row
            row = replace(row, status=then.status, result=ended.output, error=then.error)
            # A cancelled run's row holds the reason, which this host may not have read.
            self.endings.tell(run_id, None if then.status is RunStatus.CANCELLED else row)
            if row.parent is None:
                self.on_end(row.agent_id, run_id)
            return
        if then is None or ended.again:
            mailbox.wants_mail = isinstance(then, Suspend) and then.wake.message
            return
        _rest(mailbox, then)
        self._dispatch.remind(mailbox)
        if execution.token.is_cancelled:
            self.cancel(run_id, mailbox.agent_id, execution.token.reason)
        elif mailbox.wants_mail and (mailbox.has_mail or mailbox.spilled):
            self._dispatch.wake(mailbox)
        elif mailbox.nudged:
            self._dispatch.wake_by_signal(mailbox)

    async def cancel_waiting(self, mailbox: Mailbox, run_id: RunId) -> None:
        """End a run that is not in memory: its terminal entry is written without its code."""
        found = await self._store.load([run_id])
        lease = self.held.get(mailbox.shard)
        if not found or lease is None:
            self._mailboxes.forget_empty(mailbox)
            return
        is_over = await end_cancelled(
            self._store, lease, found[0],
            on_nudges=self._env.on_nudges, on_end=self._on_cancelled,
        )  # fmt: skip
        if not is_over:
            return
        self._starts.fresh.pop(run_id, None)
        self._starts.refusals.pop(run_id, None)
        execution = self._executing.get(run_id)
        if execution is not None:
            # It has begun meanwhile, in vain, and learns that at its next flush.
            execution.cancel(found[0].row.cancel_requested or "")
            return
        mailbox.forget(run_id)
        self.endings.tell(run_id, None)
        self.on_end(mailbox.agent_id, run_id)
        self._dispatch.consider(mailbox)
        self._mailboxes.forget_empty(mailbox)

    def _on_cancelled(self, found: LoadedRun, then: Finish) -> None:
        env = self._env
        env.meters.ended(then)
        if env.tracing is not None:
            env.tracing.run_ended(found.row, found.entries, then, at=env.clock.now())

    def has(self, run_id: RunId) -> bool:
        """Whether the run is certain to end here, or to be lost with its shard, aloud."""
        return run_id in self._starts.fresh or run_id in self._executing

    # --- stopping ---------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Forget everything at once, as a crash does: nothing is written any more."""
        self._dispatch.is_stopping = True
        for execution in list(self._executing.values()):
            execution.drop("crash")
        self._tasks.cancel()
        self._dispatch.clear()
        self.held.clear()
        self._mailboxes.clear()

    async def stop(self, *, drain_s: float = 0.0) -> None:
        """Start nothing, let executions end or suspend for `drain_s` seconds, then hand over the rest."""
        self._dispatch.is_stopping = True
        if drain_s > 0:
            await self._tasks.settle(limit_s=drain_s)
        await hand_over(self._executing.values())
        await self._tasks.settle(limit_s=UNWIND_LIMIT_S)
        self._dispatch.timers.close()
        await self._tasks.close()
        self._starts.fresh.clear()
        self.endings.look_again()  # nothing ends here any more

    @property
    def backlog(self) -> int:
        """How many agents are ready and do not execute yet."""
        return self._dispatch.backlog

    @property
    def load(self) -> int:
        """How many runs are in memory."""
        return self._dispatch.load

    @property
    def meters(self) -> Meters:
        """What this host counts."""
        return self._env.meters

    @property
    def secrets(self) -> Secrets:
        """Where calls that name a secret have it from."""
        return self._env.secrets

    @property
    def may_act(self) -> bool:
        """Whether the lease is good enough to touch the outside world."""
        return self._env.may_act()


def _rest(mailbox: Mailbox, then: Then) -> None:
    """The run that was executed is rows only, and waits for what was written."""
    match then:
        case Suspend(wake):
            mailbox.rest(Holding.SUSPENDED, wake_at=wake.at, wants_mail=wake.message)
        case Retry(at, release=release):
            mailbox.rest(Holding.BACKOFF, wake_at=at, wants_mail=False)
            if release:
                mailbox.spill()  # they wait before what is here
        case _:
            mailbox.rest(Holding.PARKED, wake_at=None, wants_mail=False)
