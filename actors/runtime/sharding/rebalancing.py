"""Gives shards back that other hosts wait for: idle ones at once, busy ones when that does no harm."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from actors.errors import ActorsError
from actors.kernel.runtime.ids import ShardId
from actors.kernel.runtime.rows import Surplus
from actors.kernel.runtime.scheduler import ShardLease
from actors.runtime.execution.execution import UNWIND_LIMIT_S
from actors.runtime.loop.tasks import TaskScope
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
