"""The shards that this host owns: it claims them, renews their leases, and gives them up.

Gives shards back that other hosts wait for: idle ones at once, busy ones when that does no harm.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from actors.errors import ActorsError
from actors.kernel.runtime.hints import Nudge
from actors.kernel.runtime.ids import HostIncarnation, ShardId
from actors.kernel.runtime.rows import HostReport, Surplus
from actors.kernel.runtime.scheduler import ShardLease
from actors.kernel.stores.shards import Serves
from actors.runtime.execution.execution import UNWIND_LIMIT_S
from actors.runtime.loop.notifications import Notifications
from actors.runtime.loop.tasks import TaskScope, until_free
from actors.runtime.sharding.recovery import Recovery, known_scope_of
from actors.runtime.worker.worker import Worker

_log = logging.getLogger("callboard.sharding")

DRAIN_S: Final = 30.0
"""Seconds that executions may take to end or suspend before they are handed over."""

POLL_S: Final = 0.1
"""Seconds between checks of a shard that is to be released."""

LEAVE_S: Final = UNWIND_LIMIT_S + 5.0
"""Seconds that executions may take until their eviction after it was requested."""


class Rebalancer:
    """Gives the surplus of one host back.

    Args:
        worker: Has the executions.
        release: Stops acting for shards, then lets other hosts take them. A lost one is ignored.
        drain_s: See `DRAIN_S`.
    """

    def __init__(
        self,
        worker: Worker,
        release: Callable[[Sequence[ShardLease]], Awaitable[None]],
        *,
        drain_s: float = DRAIN_S,
    ) -> None:
        self._worker, self._release, self._drain_s = worker, release, drain_s
        self._leaving: set[ShardId] = set()
        self._is_draining = False

    def follow(self, surplus: Sequence[Surplus], tasks: TaskScope) -> None:
        """Begin to give back what a heartbeat named; what is on its way already counts."""
        idle: list[ShardLease] = []
        busy: list[ShardLease] = []
        for group in surplus:
            held = self._worker.held.among(group.shards)
            stay = [lease for lease in held if lease.shard not in self._leaving]
            count = group.count - (len(group.shards) - len(stay))
            is_busy = {s.shard: bool(self._worker.executing_in(s.shard)) for s in stay}
            # False sorts first: idle shards go before busy ones.
            chosen = sorted(stay, key=lambda lease: is_busy[lease.shard])[: max(count, 0)]
            for lease in chosen:
                (busy if is_busy[lease.shard] else idle).append(lease)
        if idle:
            self._start(self._give(idle), idle, tasks)
        if busy and not self._is_draining:
            self._is_draining = True
            self._start(self._drain(busy), busy, tasks)

    def _start(
        self, giving: Awaitable[None], leases: Sequence[ShardLease], tasks: TaskScope
    ) -> None:
        shards = [lease.shard for lease in leases]
        self._leaving.update(shards)
        self._worker.held.draining.update(shards)
        tasks.start(self._until_given(giving, shards), name="giving shards back")

    async def _until_given(self, giving: Awaitable[None], shards: Sequence[ShardId]) -> None:
        try:
            await giving
        except ActorsError as exc:
            _log.warning("shards were given up without telling the store", exc_info=exc)
        finally:
            self._leaving.difference_update(shards)

    async def _give(self, leases: Sequence[ShardLease]) -> None:
        await self._release(leases)
        _log.info("shards were released", extra={"shards": [lease.shard for lease in leases]})

    async def _drain(self, leases: Sequence[ShardLease]) -> None:
        """Release each shard once nothing executes in it; after a time limit evict its executions."""
        try:
            left = await self._give_idle(leases, limit_s=self._drain_s)
            leaving = [lease for lease in left if self._hand_over_runs(lease)]
            kept = [lease.shard for lease in left if lease not in leaving]
            if kept:
                self._leaving.difference_update(kept)
                self._worker.keep(kept)
            left = await self._give_idle(leaving, limit_s=LEAVE_S)
            if left:
                await self._give(left)
        finally:
            self._is_draining = False

    async def _give_idle(self, leases: Sequence[ShardLease], *, limit_s: float) -> list[ShardLease]:
        """Give those back in which nothing executes, or ends to within the time; return the others."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + limit_s
        left = list(leases)
        while left := [lease for lease in left if self._worker.held.holds(lease)]:
            idle = [lease for lease in left if not self._worker.executing_in(lease.shard)]
            if idle:
                left = [lease for lease in left if lease not in idle]
                await self._give(idle)
            if loop.time() >= ends_at:
                break
            if left:
                await asyncio.sleep(POLL_S)
        return left

    def _hand_over_runs(self, lease: ShardLease) -> bool:
        """Hand over the executions of a shard; return False if that would leave an effect in doubt."""
        executing = self._worker.executing_in(lease.shard)
        if any(execution.has_unrepeatable_effect for execution in executing):
            return False
        for execution in executing:
            execution.hand_over()
        return True


SCAN_S: Final = 5.0
"""Seconds between polls of the store for timers, shards and messages that no hint announced."""

LEAVE_LIMIT_S: Final = 1.0
CLAIM_LIMIT_S: Final = 5.0
"""Seconds that a host that stops waits for the answer to a claim under way."""
_CLAIM_LIMIT: Final = 10_000


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
        notifications.subscribe(self._follow, "shards", "life")

    async def start(self) -> None:
        """Claim what this host serves and keep it; hints of other processes are heard from now on."""
        self._notifications.is_open = True
        self._store.set_nudge_hook(self._notifications.publish)
        await self.claim()
        self._tasks.keep(self._scan_for_ever, name="scan")
        if self._heartbeat_s is not None:
            self._tasks.keep(partial(self._beat_for_ever, self._heartbeat_s), name="heartbeat")

    async def leave(self) -> None:
        """Want no shards any more: heartbeats then name them all as surplus, idle ones go at once."""
        await self.claim_no_more(limit_s=LEAVE_LIMIT_S)
        try:
            async with asyncio.timeout(LEAVE_LIMIT_S):
                await self._serve_nothing()
                self.on_report(
                    await self._store.shards.heartbeat(self.owner, self._worker.held.leases)
                )
        except (ActorsError, TimeoutError) as exc:
            _log.warning("other hosts are not told that this one leaves", exc_info=exc)

    async def claim_no_more(self, *, limit_s: float = CLAIM_LIMIT_S) -> None:
        """Claim nothing from now on, and let a claim under way come to its end.

        Cut off, it could still be executed, behind `stop`: the shards would have no owner for a lease.
        """
        self._is_stopping = True
        await until_free(self._claiming, limit_s=limit_s)

    async def stop(self) -> None:
        """Give all shards up. Other hosts no longer count on this one, also if it had none."""
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
            if self._is_stopping:
                return
            await self._recovery.load()
        self._recovery.scan_in_background()

    def _meet(self, serves: Serves) -> None:
        """Read anew what this host owned because no host served it, and serves itself now."""
        known, self._declared = self._declared or Serves(), serves
        types, agents = set(serves.types) - set(known.types), set(serves.agents) - set(known.agents)
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
        lost = self._worker.adoption.give_up(report.lost)
        if lost:
            shards = [lease.shard for lease in lost]
            _log.warning("shards were lost to other hosts", extra={"shards": shards})
        if not self._notifications.is_open:
            return
        if report.unknown or report.lost:
            self._recovery.soon(self.claim, name="claim after a heartbeat")
        if report.surplus:
            self._rebalancer.follow(report.surplus, self._tasks)

    def _follow(self, nudge: Nudge) -> None:
        """Look for shards; also said when hints are heard again: some were lost while there was no listener."""
        if nudge.kind == "life":  # nothing that is remembered of rows is trusted
            self._declared = None
            self._recovery.begin_anew()
        self._recovery.soon(self._poll, name=f"nudge {nudge.kind}")

    async def _poll(self) -> None:
        await self.claim()
        await self._recovery.read_again()
