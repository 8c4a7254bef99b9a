"""Reads of this host's shards: all of new ones, then rows that no hint may have announced."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from actors.errors import ActorsError, ContractError
from actors.kernel.runtime.hints import Nudge
from actors.kernel.runtime.ids import RunId, ShardId, ShardScope, scope_of
from actors.kernel.runtime.rows import RESERVED, RunRow
from actors.kernel.runtime.scheduler import RunStatus
from actors.kernel.runtime.waits import WakeSet
from actors.runtime.loop.notifications import Notifications
from actors.runtime.loop.tasks import TaskScope
from actors.runtime.loop.timers import HORIZON_S
from actors.runtime.worker.worker import Worker

_log = logging.getLogger("callboard.sharding")

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


class Recovery:
    """Reads rows and notifies the worker of them.

    Args:
        worker: Is notified.
        notifications: Hints say what to read; those that may have been lost are published again.
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
        self._left: list[Callable[[], Awaitable[None]]] = []
        """Reads that failed when a hint asked for them."""
        notifications.subscribe(self._follow, "run", "cancel")

    def begin_anew(self) -> None:
        """Discard the reads under way, because the database may have lost its last commits."""
        self._incarnations += 1
        self._adoption.invalidate()

    async def load(self) -> None:
        """Load the runs of newly claimed shards. A shard whose read failed is read again."""
        while shards := self._adoption.begin():
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
        held = [lease.shard for lease in self._worker.held.loaded]
        await self._read_runs(held, is_new=False)
        await self._read_messages(held, self._before)

    async def scan(self, shards: Sequence[ShardId]) -> None:
        """Read of these shards what no hint may have announced: the backstop of the nudges.

        Messages are read again from where the scan before the last one ended: numbers are drawn before
        they commit, and no transaction lives as long as two scans.
        """
        left, self._left = self._left, []
        for read in left:
            self.soon(read, name="what a hint left")
        await self._read_timers(shards)
        await self._scan_cycles(shards, younger_than_s=CYCLE_AGE_S)
        if shards:
            for nudge in await self._store.backlog.unnoticed(shards, younger_than_s=UNNOTICED_S):
                # Skip runs that this host knows: thousands of children of one parent may wait for a slot.
                if nudge.kind != "run" or not self._adoption.knows(nudge.run_id):
                    self._publish(nudge)
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
            self._left.append(read)
            _log.warning("a hint is left to the next scan", extra={"problem": str(exc)})

    def _follow(self, nudge: Nudge) -> None:
        self.soon(partial(self._read, nudge), name=f"nudge {nudge.kind}")

    async def _read(self, nudge: Nudge) -> None:
        agent_id, run_id = nudge.agent_id, nudge.run_id
        if run_id is None:
            return
        if nudge.kind == "run":
            reading = self._worker.held.readings
            for found in await self._store.reads.load([run_id]):
                self._adoption.adopt(found.row, found.messages, reading=reading)
        elif agent_id is not None:
            row = await self._store.reads.run(run_id)
            if row is not None and row.cancel_requested is not None:
                self._intake.cancel(run_id, agent_id, row.cancel_requested)

    async def _read_sleepers(self, shards: Sequence[ShardId]) -> None:
        """Read which agents sleep: of one shard at first, then of more while they have few."""
        begin, count = 0, 1
        while some := shards[begin : begin + count]:
            found = await self._store.backlog.sleepers(some)
            self._adoption.sleep(found)
            begin += count
            count = count * 2 if sum(map(len, found.values())) < MANY_SLEEPERS else 1

    async def _read_runs(self, shards: Sequence[ShardId], *, is_new: bool = True) -> None:
        """Read open runs that do not sleep: all of new shards, else those that no hint may have announced."""
        after: RunId | None = None
        while True:
            reading = self._worker.held.readings
            page = await self._store.backlog.open_runs(
                shards, after=after, limit=PAGE, asleep=False
            )
            queued = [run.run_id for run in page if self._is_to_start(run)]
            boot = {
                found.row.run_id: found.messages for found in await self._store.reads.load(queued)
            }
            for row in page:
                # A run that this worker holds already may be further than its row says.
                if is_new or row.run_id in boot:
                    self._adoption.adopt(row, boot.get(row.run_id, ()), reading=reading)
                elif row.cancel_requested is not None:
                    self._intake.cancel(row.run_id, row.agent_id, row.cancel_requested)
            await self._read_signals(page)
            if len(page) < PAGE:
                return
            after = page[-1].run_id

    def _is_to_start(self, run: RunRow) -> bool:
        is_queued = run.status is RunStatus.PENDING and run.last_seq < 0
        return is_queued and self._registry.is_served(run.agent_id)

    async def _read_signals(self, runs: Sequence[RunRow]) -> None:
        """Wake runs whose signal or answer came while no host owned them."""
        async with TaskScope() as scope:
            for run in runs:
                wake = run.wake
                if run.parked is not None or (wake is not None and (wake.signals or wake.runs)):
                    scope.start(self._check_signals(run), name=f"signals of {run.run_id}")
            await scope.settle(limit_s=_SIGNALS_LIMIT_S)

    async def _check_signals(self, run: RunRow) -> None:
        wake = run.wake or WakeSet()
        awaited = (*wake.signals, *wake.runs)
        try:
            found = []
            if wake.signals or run.parked is not None:
                found += [signal.name for signal in await self._store.reads.signals(run.run_id)]
            if wake.runs:
                found += [answer.key for answer in await self._store.reads.answers(run.run_id)]
        except ActorsError:
            found = list(awaited)  # a replay polls again, and writes nothing when there is none
        is_parked = run.parked is not None
        if any(name in awaited or (is_parked and name.startswith(RESERVED)) for name in found):
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
            if len(page) < PAGE or (len(shards) == 1 and _is_one_agent(shards[0])):
                return
            after = page[-1][1]
            if len(shards) > 1:
                half = len(shards) // 2
                await self._read_messages(shards[:half], after)
                shards = shards[half:]

    async def _read_timers(self, shards: Sequence[ShardId]) -> None:
        if shards:
            for timer in await self._store.backlog.due(shards, within_s=HORIZON_S):
                self._adoption.remind(timer)


def _is_one_agent(shard: ShardId) -> bool:
    scope = known_scope_of(shard)
    return scope is not None and scope.agent is not None


def known_scope_of(shard: ShardId) -> ShardScope | None:
    """Return which agents a shard is for, None where its store does not say."""
    try:
        return scope_of(shard)
    except ContractError:
        return None  # a store may have names of its own
