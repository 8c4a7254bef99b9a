"""The shards that this host owns: it claims them, reads their rows, renews their leases, and gives them up.

`Recovery` reads all rows of new shards, then those that no hint may have announced. `Rebalancer` gives shards
back that other hosts wait for: idle ones at once, busy ones when that does no harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import HostIncarnation, RunId, ShardId, ShardScope, scope_of
from actors._kernel.runtime.rows import RESERVED, HostReport, RunRow, Surplus
from actors._kernel.runtime.scheduler import RunStatus, ShardLease
from actors._kernel.runtime.waits import WakeSet
from actors._kernel.stores.shards import Serves
from actors._runtime.execution.execution import UNWIND_LIMIT_S
from actors._runtime.loop.notifications import Notifications
from actors._runtime.loop.tasks import TaskScope, until_free
from actors._runtime.loop.timers import HORIZON_S
from actors._runtime.worker.worker import Worker
from actors.errors import ActorsError, ContractError

_log = logging.getLogger("callboard.sharding")

DRAIN_S: Final = 30.0
"""Seconds that executions may take to end or suspend before they are handed over."""

POLL_S: Final = 0.1
"""Seconds between checks of a shard that is to be released."""

LEAVE_S: Final = UNWIND_LIMIT_S + 5.0
"""Seconds that executions may take until their eviction after it was requested."""

SCAN_S: Final = 5.0
"""Seconds between polls of the store for timers, shards and messages that no hint announced."""

LEAVE_LIMIT_S: Final = 1.0
CLAIM_LIMIT_S: Final = 5.0
"""Seconds that a host that stops waits for the answer to a claim under way."""
_CLAIM_LIMIT: Final = 10_000

CYCLE_AGE_S: Final = 15.0
"""Age of the waits that a scan looks at for cycles which two commits closed at one moment."""

_ANY_AGE_S: Final = 1e9

UNNOTICED_S: Final = 20.0
"""Age of what a scan looks at because its hint may have been lost: several scans."""

PAGE: Final = 500
MANY_SLEEPERS: Final = 2_000
"""Number of sleeping agents after which the next read is of one shard: it has their names in memory."""
READ_AGAIN_S: Final = 1.0
"""Pause before messages are read again that the store could not give."""
_SIGNALS_LIMIT_S: Final = 120.0
"""Longer than a store waits for its server before it gives up."""


class Ownership:
    """The shards of one host incarnation.

    Args:
        heartbeat_s: Seconds between heartbeats from the event loop; None when leases do not
            expire or another thread sends them and calls `on_report`.
        also_serves: Types whose shards hold no agents; claimed by a host that serves any agent.
        drain_s: Seconds in which executions of a shard that is released may end by themselves.
    """

    def __init__(
        self,
        owner: HostIncarnation,
        worker: Worker,
        notifications: Notifications,
        *,
        tasks: TaskScope,
        heartbeat_s: float | None,
        also_serves: tuple[str, ...] = (),
        drain_s: float = DRAIN_S,
    ) -> None:
        self.owner = owner
        self._store, self._registry, self._worker = worker.env.store, worker.env.agents, worker
        self._notifications, self._tasks = notifications, tasks
        self._heartbeat_s, self._also_serves = heartbeat_s, also_serves
        self._recovery = Recovery(worker, notifications, tasks)
        self._rebalancer = Rebalancer(worker, self._release, drain_s=drain_s)
        self._claiming = asyncio.Lock()
        self._declared: Serves | None = None
        self._is_stopping = False
        notifications.subscribe(self._follow, "shards", "incarnation")

    async def start(self) -> None:
        """Claim what this host serves and keep it; hints of other processes are heard from now on."""
        # Hints first: one that comes between the reads and the hook would be lost.
        self._notifications.is_open = True
        self._store.set_nudge_hook(self._notifications.publish)
        await self.claim()
        self._tasks.keep(self._scan_for_ever, name="scan")
        if self._heartbeat_s is not None:
            self._tasks.keep(partial(self._beat_for_ever, self._heartbeat_s), name="heartbeat")

    async def leave(self) -> None:
        """Serve no shards any more: heartbeats then name them all as surplus, and idle ones go at once."""
        # Before the heartbeat: a claim that ends behind it would take shards that no heartbeat names any more.
        await self.claim_no_more(limit_s=LEAVE_LIMIT_S)
        try:
            async with asyncio.timeout(LEAVE_LIMIT_S):
                await self._serve_nothing()
                self.on_report(
                    await self._store.shards.heartbeat(self.owner, self._worker.held.leases)
                )
        # Best effort: without it other hosts wait until this one has released its shards.
        except (ActorsError, TimeoutError) as exc:
            _log.warning("other hosts are not told that this one leaves", exc_info=exc)

    async def claim_no_more(self, *, limit_s: float = CLAIM_LIMIT_S) -> None:
        """Claim nothing from now on, and let a claim under way come to its end.

        Cut off, it could still be executed, behind `stop`: the shards would have no owner for a lease.
        """
        self._is_stopping = True
        await until_free(self._claiming, limit_s=limit_s)

    async def stop(self) -> None:
        """Release all shards. Other hosts no longer count on this one, also if it had none."""
        # First: a hint from now on would start reads of shards that are being released.
        self._store.set_nudge_hook(None)
        if self._declared is not None:
            await self._serve_nothing()
        await self._store.shards.release(self._worker.held.leases)

    async def _serve_nothing(self) -> None:
        await self._store.shards.claim(owner=self.owner, serves=Serves(), limit=0)

    async def claim(self) -> None:
        """Declare what is registered, take free shards, and read what is in them."""
        async with self._claiming:
            serves = self._registry.serves()
            if self._is_stopping or not (serves.types or serves.agents):
                return
            serves = replace(serves, types=(*serves.types, *self._also_serves))
            if serves != self._declared:
                await self._store.shards.declare(serves)
                self._meet(serves)
            leases = await self._store.shards.claim(
                owner=self.owner, serves=serves, limit=_CLAIM_LIMIT
            )
            for lease in leases:
                self._worker.adoption.grant(lease)
            # `claim_no_more` was called while the store answered: these shards are released soon, so their rows
            # are not read.
            if self._is_stopping:
                return
            await self._recovery.load()
        self._recovery.scan_in_background()

    def _meet(self, serves: Serves) -> None:
        """Read anew what this host owned because no host served it, and serves itself now."""
        previous, self._declared = self._declared or Serves(), serves
        types, agents = (
            set(serves.types) - set(previous.types),
            set(serves.agents) - set(previous.agents),
        )
        for lease in self._worker.held.leases:
            scope = known_scope_of(lease.shard)
            if scope is not None and (scope.type in types or scope.agent in agents):
                self._worker.held.read_anew(lease.shard)

    async def _release(self, leases: Sequence[ShardLease]) -> None:
        # Not while claiming: a shard that is no longer known here, and still ours, would be taken up.
        async with self._claiming:
            await self._store.shards.release(self._worker.adoption.give_up(leases))

    async def _scan_for_ever(self) -> None:
        while True:
            await asyncio.sleep(SCAN_S)
            try:
                shards = [lease.shard for lease in self._worker.held.loaded]
                await self.claim()
                await self._recovery.scan(shards)
            except ActorsError as exc:
                _log.warning("the scan is tried again", exc_info=exc)

    async def _beat_for_ever(self, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                report = await self._store.shards.heartbeat(self.owner, self._worker.held.leases)
            except ActorsError as exc:
                _log.warning("a heartbeat failed and is tried again", exc_info=exc)
                continue
            self.on_report(report)

    def on_report(self, report: HostReport) -> None:
        """Act on what a heartbeat said: stop acting for lost shards first."""
        # Before anything else: their new owners may execute the same runs now.
        lost_leases = self._worker.adoption.give_up(report.lost)
        if lost_leases:
            shards = [lease.shard for lease in lost_leases]
            _log.warning("shards were lost to other hosts", extra={"shards": shards})
        # The host has not started yet, and `start` claims anyway.
        if not self._notifications.is_open:
            return
        if report.unknown or report.lost:
            self._recovery.soon(self.claim, name="claim after a heartbeat")
        if report.surplus:
            self._rebalancer.follow(report.surplus, self._tasks)

    def _follow(self, nudge: Nudge) -> None:
        """Claim shards and read again: hints were lost while there was no listener, or shards are free."""
        if nudge.kind == "incarnation":  # nothing that is remembered of rows is trusted
            self._declared = None
            self._recovery.begin_anew()
        self._recovery.soon(self._poll, name=f"nudge {nudge.kind}")

    async def _poll(self) -> None:
        await self.claim()
        await self._recovery.read_again()


class Rebalancer:
    """Gives the surplus of one host back.

    Args:
        worker: The worker, which has the executions.
        release: Function that stops acting for shards, then lets other hosts take them. A lost one is ignored.
        drain_s: Seconds as of `DRAIN_S`.
    """

    def __init__(
        self,
        worker: Worker,
        release: Callable[[Sequence[ShardLease]], Awaitable[None]],
        *,
        drain_s: float = DRAIN_S,
    ) -> None:
        self._worker, self._release, self._drain_s = worker, release, drain_s
        self._releasing: set[ShardId] = set()
        self._is_draining = False

    def follow(self, surplus: Sequence[Surplus], tasks: TaskScope) -> None:
        """Begin to give back what a heartbeat named; what is on its way already counts."""
        idle: list[ShardLease] = []
        busy: list[ShardLease] = []
        for group in surplus:
            leases = self._worker.held.among(group.shards)
            staying_leases = [lease for lease in leases if lease.shard not in self._releasing]
            count = group.count - (len(group.shards) - len(staying_leases))
            is_busy = {s.shard: bool(self._worker.executing_in(s.shard)) for s in staying_leases}
            # False sorts first: idle shards go before busy ones.
            leases_to_release = sorted(staying_leases, key=lambda lease: is_busy[lease.shard])[
                : max(count, 0)
            ]
            for lease in leases_to_release:
                (busy if is_busy[lease.shard] else idle).append(lease)
        if idle:
            self._start(self._release_leases(idle), idle, tasks)
        # One drain at a time: a heartbeat names the surplus again and again while executions end.
        if busy and not self._is_draining:
            self._is_draining = True
            self._start(self._drain(busy), busy, tasks)

    def _start(
        self, releasing: Awaitable[None], leases: Sequence[ShardLease], tasks: TaskScope
    ) -> None:
        shards = [lease.shard for lease in leases]
        self._releasing.update(shards)
        self._worker.held.draining.update(shards)
        tasks.start(self._await_release(releasing, shards), name="giving shards back")

    async def _await_release(self, releasing: Awaitable[None], shards: Sequence[ShardId]) -> None:
        try:
            await releasing
        except ActorsError as exc:
            _log.warning("shards were given up without telling the store", exc_info=exc)
        finally:
            self._releasing.difference_update(shards)

    async def _release_leases(self, leases: Sequence[ShardLease]) -> None:
        await self._release(leases)
        _log.info("shards were released", extra={"shards": [lease.shard for lease in leases]})

    async def _drain(self, leases: Sequence[ShardLease]) -> None:
        """Release each shard once nothing executes in it; after a time limit evict its executions."""
        try:
            busy_leases = await self._release_idle(leases, limit_s=self._drain_s)
            released_leases = [lease for lease in busy_leases if self._hand_over_runs(lease)]
            kept_shards = [lease.shard for lease in busy_leases if lease not in released_leases]
            if kept_shards:
                # An effect that must not happen twice is under way: the shard stays, and is named again by a
                # later heartbeat.
                self._releasing.difference_update(kept_shards)
                self._worker.keep(kept_shards)
            busy_leases = await self._release_idle(released_leases, limit_s=LEAVE_S)
            if busy_leases:
                await self._release_leases(busy_leases)
        finally:
            self._is_draining = False

    async def _release_idle(
        self, leases: Sequence[ShardLease], *, limit_s: float
    ) -> list[ShardLease]:
        """Give those back in which nothing executes, or ends to within the time; return the others."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + limit_s
        busy_leases = list(leases)
        while busy_leases := [lease for lease in busy_leases if self._worker.held.holds(lease)]:
            idle_leases = [
                lease for lease in busy_leases if not self._worker.executing_in(lease.shard)
            ]
            if idle_leases:
                busy_leases = [lease for lease in busy_leases if lease not in idle_leases]
                await self._release_leases(idle_leases)
            if loop.time() >= ends_at:
                break
            if busy_leases:
                await asyncio.sleep(POLL_S)
        return busy_leases

    def _hand_over_runs(self, lease: ShardLease) -> bool:
        """Hand over the executions of a shard; return False if that would leave an effect in doubt."""
        executions = self._worker.executing_in(lease.shard)
        if any(execution.has_unrepeatable_effect for execution in executions):
            return False
        for execution in executions:
            execution.hand_over()
        return True


class Recovery:
    """Reads rows and notifies the worker of them.

    Args:
        worker: The worker, which is notified.
        notifications: The source of hints, which say what to read; lost ones are published again.
        tasks: The scope of tasks that read while agents start.
    """

    def __init__(self, worker: Worker, notifications: Notifications, tasks: TaskScope) -> None:
        self._store, self._registry, self._worker = worker.env.store, worker.env.agents, worker
        self._intake, self._adoption = worker.intake, worker.adoption
        self._publish, self._tasks = notifications.publish, tasks
        self._arrival = self._before = self._last = -1
        self._is_scanning_messages = self._is_scanning_cycles = False
        self._may_have_cycles: set[ShardId] = set()
        self._incarnations = 0
        self._failed_reads: list[Callable[[], Awaitable[None]]] = []
        """Reads that failed when a hint asked for them."""
        notifications.subscribe(self._follow, "run", "cancel")

    def begin_anew(self) -> None:
        """Discard the reads under way, because the database may have lost its last commits."""
        self._incarnations += 1
        self._adoption.invalidate()

    async def load(self) -> None:
        """Load the runs of newly claimed shards. A shard whose read failed is read again."""
        while shards := self._adoption.begin():
            # Rows that were read before a rollback must not be taken for the state after it.
            incarnation = self._incarnations
            # First: what comes for one of them from now on finds it, what came before is in the rows.
            await self._read_sleepers(shards)
            for blocking in await self._store.backlog.blockings(shards):
                self._adoption.gave_up(blocking)
            await self._read_runs(shards)
            await self._read_timers(shards)
            if incarnation != self._incarnations:
                continue  # the rows that were read first may have been rolled back
            self._adoption.loaded(shards)
            self._may_have_cycles.update(shards)
            self._publish(Nudge("held"))

    def scan_in_background(self) -> None:
        """Look, beside what starts in new shards, for messages that wait there and for cycles."""
        if not self._is_scanning_messages and self._worker.held.unscanned:
            self._is_scanning_messages = True
            self._tasks.start(self._scan_messages(), name="scan for messages")
        if not self._is_scanning_cycles and self._may_have_cycles:
            self._is_scanning_cycles = True
            self._tasks.start(self._scan_old_cycles(), name="scan for wait cycles")

    async def read_again(self) -> None:
        """Read what hints announced while there was no listener."""
        shards = [lease.shard for lease in self._worker.held.loaded]
        await self._read_runs(shards, is_new=False)
        await self._read_messages(shards, self._before)

    async def scan(self, shards: Sequence[ShardId]) -> None:
        """Read of these shards what no hint may have announced: the backstop of the nudges.

        Messages are read again from where the scan before the last one ended: numbers are drawn before
        they commit, and no transaction lives as long as two scans.
        """
        # Taken out first: a read that fails again is added again, and waits for the next scan.
        failed_reads, self._failed_reads = self._failed_reads, []
        for read in failed_reads:
            self.soon(read, name="what a hint left")
        await self._read_timers(shards)
        await self._scan_cycles(shards, younger_than_s=CYCLE_AGE_S)
        if shards:
            for nudge in await self._store.backlog.unnoticed(shards, younger_than_s=UNNOTICED_S):
                # Skip runs that this host knows: thousands of children of one parent may wait for a slot.
                if nudge.kind != "run" or not self._adoption.knows(nudge.run_id):
                    self._publish(nudge)
        # That scan reads all messages that wait, so what this one would read is among them.
        if self._is_scanning_messages:
            return
        if self._last < 0:
            self._before = self._last = self._arrival
        await self._read_messages(shards, self._before)
        self._before, self._last = self._last, self._arrival

    def soon(self, read: Callable[[], Awaitable[None]], *, name: str) -> None:
        """Read the rows that a hint names, in a task. If that fails, the next scan reads them."""
        self._tasks.start(self._or_next_scan(read), name=name)

    async def _or_next_scan(self, read: Callable[[], Awaitable[None]]) -> None:
        try:
            await read()
        except ActorsError as exc:
            self._failed_reads.append(read)
            _log.warning("a hint is left to the next scan", extra={"problem": str(exc)})

    def _follow(self, nudge: Nudge) -> None:
        self.soon(partial(self._read, nudge), name=f"nudge {nudge.kind}")

    async def _read(self, nudge: Nudge) -> None:
        agent_id, run_id = nudge.agent_id, nudge.run_id
        if run_id is None:
            return
        if nudge.kind == "run":
            reading = self._worker.held.readings
            for loaded_run in await self._store.reads.load([run_id]):
                self._adoption.adopt(loaded_run.row, loaded_run.messages, reading=reading)
        elif agent_id is not None:
            row = await self._store.reads.run(run_id)
            if row is not None and row.cancel_requested is not None:
                self._intake.cancel(run_id, agent_id, row.cancel_requested)

    async def _read_sleepers(self, shards: Sequence[ShardId]) -> None:
        """Read which agents sleep: of one shard at first, then of more while they have few."""
        begin, count = 0, 1
        while shard_group := shards[begin : begin + count]:
            sleepers = await self._store.backlog.sleepers(shard_group)
            self._adoption.sleep(sleepers)
            begin += count
            count = count * 2 if sum(map(len, sleepers.values())) < MANY_SLEEPERS else 1

    async def _read_runs(self, shards: Sequence[ShardId], *, is_new: bool = True) -> None:
        """Read open runs that do not sleep: all of new shards, else those that no hint may have announced."""
        after: RunId | None = None
        while True:
            reading = self._worker.held.readings
            page = await self._store.backlog.open_runs(
                shards, after=after, limit=PAGE, asleep=False
            )
            queued_ids = [
                run.run_id
                for run in page
                if run.status is RunStatus.PENDING and run.last_seq < 0
                if self._registry.is_served(run.agent_id)
            ]
            boot_messages_by_run_id = {
                loaded_run.row.run_id: loaded_run.messages
                for loaded_run in await self._store.reads.load(queued_ids)
            }
            for row in page:
                # A run that this worker holds already may be further than its row says.
                if is_new or row.run_id in boot_messages_by_run_id:
                    self._adoption.adopt(
                        row, boot_messages_by_run_id.get(row.run_id, ()), reading=reading
                    )
                elif row.cancel_requested is not None:
                    self._intake.cancel(row.run_id, row.agent_id, row.cancel_requested)
            await self._read_signals(page)
            if len(page) < PAGE:
                return
            after = page[-1].run_id

    async def _read_signals(self, runs: Sequence[RunRow]) -> None:
        """Wake runs whose signal or answer came while no host owned them."""
        async with TaskScope() as scope:
            for run in runs:
                wake = run.wake
                if run.parked is not None or (wake is not None and (wake.signals or wake.runs)):
                    scope.start(self._check_signals(run), name=f"signals of {run.run_id}")
            # A limit of its own: a read that never returns must not keep the shard from starting.
            await scope.settle(limit_s=_SIGNALS_LIMIT_S)

    async def _check_signals(self, run: RunRow) -> None:
        wake = run.wake or WakeSet()
        awaited_names = (*wake.signals, *wake.runs)
        try:
            names = []
            if wake.signals or run.parked is not None:
                names += [signal.name for signal in await self._store.reads.signals(run.run_id)]
            if wake.runs:
                names += [answer.key for answer in await self._store.reads.answers(run.run_id)]
        except ActorsError:
            # Woken in vain at worst: a replay polls again, and writes nothing if there is no signal.
            names = list(awaited_names)
        is_parked = run.parked is not None
        if any(
            name in awaited_names or (is_parked and name.startswith(RESERVED)) for name in names
        ):
            self._intake.signalled(run.run_id, run.agent_id)

    async def _scan_cycles(self, shards: Sequence[ShardId], *, younger_than_s: float) -> None:
        """Let waits fail that can never end, where no commit has seen that."""
        if shards:
            for cycle in await self._store.backlog.wait_cycles(
                shards, younger_than_s=younger_than_s
            ):
                self._intake.fail_cycle(cycle)

    async def _scan_old_cycles(self) -> None:
        try:
            while shards := tuple(self._may_have_cycles):
                # Before the scan: a shard that is loaded during it is scanned in the next turn.
                self._may_have_cycles.clear()
                try:
                    await self._scan_cycles(shards, younger_than_s=_ANY_AGE_S)
                except ActorsError as exc:
                    self._may_have_cycles.update(shards)
                    _log.warning("the search for wait cycles is retried", exc_info=exc)
                    await asyncio.sleep(READ_AGAIN_S)
        finally:
            self._is_scanning_cycles = False

    async def _scan_messages(self) -> None:
        try:
            while leases := self._worker.held.unscanned:
                incarnation = self._incarnations
                try:
                    await self._read_messages([lease.shard for lease in leases])
                except ActorsError as exc:
                    _log.warning("the scan for messages is retried", exc_info=exc)
                    await asyncio.sleep(READ_AGAIN_S)
                else:
                    if incarnation == self._incarnations:
                        self._adoption.mail_scanned(leases)
        finally:
            self._is_scanning_messages = False

    async def _read_messages(self, shards: Sequence[ShardId], after: int = -1) -> None:
        """Notify the worker which agents have messages; the messages stay where they are.

        A page of several shards is sorted from a page of each: where much waits, shards are read one
        by one.
        """
        while shards:
            page = await self._store.backlog.who_has_mail(shards, after=after, limit=PAGE)
            for agent_id, arrival in page:
                self._arrival = max(self._arrival, arrival)
                self._intake.mail_waits(agent_id, arrival)
            if len(page) < PAGE:
                return
            if len(shards) == 1:
                scope = known_scope_of(shards[0])
                if scope is not None and scope.agent is not None:
                    return  # all that waits is for the one agent, of which the worker knows now
            after = page[-1][1]
            if len(shards) > 1:
                half = len(shards) // 2
                await self._read_messages(shards[:half], after)
                shards = shards[half:]

    async def _read_timers(self, shards: Sequence[ShardId]) -> None:
        if shards:
            for timer in await self._store.backlog.due(shards, within_s=HORIZON_S):
                self._adoption.remind(timer)


def known_scope_of(shard: ShardId) -> ShardScope | None:
    """Return which agents a shard is for, or None if its store does not say."""
    try:
        return scope_of(shard)
    except ContractError:
        return None  # a store may have names of its own
