"""The service by which the owner of an agent fires its schedules."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from actors._kernel.json import check_readable
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import ShardId
from actors._kernel.runtime.scheduler import ShardLease
from actors._kernel.stores.schedule import Schedule, Tick
from actors._runtime.loop.notifications import Notifications
from actors._runtime.loop.tasks import happens
from actors._runtime.loop.timers import HORIZON_S
from actors._runtime.schedules.api import tick_after
from actors._runtime.worker.worker import Worker
from actors.errors import ActorsError, ContractError, StoreRefusedError

_log = logging.getLogger("callboard.schedules")

POLL_S: Final = 5.0
"""Seconds between polls of the store for schedules that no hint announced."""

PAGE: Final = 500
"""Number of schedules that are read, and fired in one commit, at most."""

REFUSED_PAUSE_S: Final = 0.2
"""Pause after a firing that moved nothing: the shard is another host's, or another host was faster."""

AWAY_PAUSE_S: Final = 1.0
"""Pause after the store could not do something."""

KEEP_DONE_S: Final = 8 * 86_400.0
"""Seconds that a schedule is known after its last tick, as ids of messages are."""

FORGET_EVERY_S: Final = 600.0


def tick_of(schedule: Schedule, now: datetime) -> Tick:
    """Return how a schedule moves on that is fired now: to its next tick, if there is one."""
    assert schedule.next_at is not None
    if schedule.cron is None:
        return Tick(schedule, schedule.base_at, None)
    base = schedule.next_at if schedule.catch_up == "all" else max(schedule.next_at, now)
    return Tick(schedule, base, tick_after(schedule, base))


class ScheduleService:
    """Fires the schedules of agents whose shards this worker holds.

    The store's clock alone decides what is due: how far a tick is away is said by the store and
    waited for by this machine's monotonic clock, so a step of the machine's clock moves nothing.
    """

    def __init__(self, worker: Worker, notifications: Notifications) -> None:
        self._store, self._worker, self._clock = worker.env.store, worker, worker.env.clock
        self._notified = asyncio.Event()
        self._reviewed_shards: set[tuple[ShardId, int]] = set()
        self._logged_problems: set[tuple[str, str, int]] = set()
        self._forget_at = 0.0
        notifications.subscribe(self._follow, "schedule", "held", "incarnation")

    def _follow(self, nudge: Nudge) -> None:
        """Poll at once, because a schedule was written or this host has claimed shards."""
        # The database may have lost commits: zones are reviewed again, and nothing read before is fired.
        if nudge.kind == "incarnation":
            self._reviewed_shards.clear()
        self._notified.set()

    async def run(self) -> None:
        """Fire until cancelled; to be run as a task. What cannot be written is tried again."""
        while True:
            self._notified.clear()
            try:
                pause_s = await self._round()
            except ActorsError as exc:
                _log.warning(
                    "schedules could not be fired and are retried", extra={"problem": str(exc)}
                )
                pause_s = AWAY_PAUSE_S
            if pause_s > 0:
                await asyncio.sleep(pause_s)

    async def _round(self) -> float:
        """Poll once, fire what becomes due until the next poll; return how long to pause then."""
        leases = self._worker.held.loaded
        if not leases:
            await self._until(self._clock.monotonic() + POLL_S)
            return 0.0
        await self._review(leases)
        shards = [lease.shard for lease in leases]
        page = await self._store.schedules.due(shards, within_s=HORIZON_S, limit=PAGE)
        read_at = self._clock.monotonic()
        poll_at = read_at + POLL_S
        waiting = deque((read_at + entry.in_s, entry.schedule) for entry in page)
        while not self._notified.is_set():
            now = self._clock.monotonic()
            due_schedules = []
            while waiting and waiting[0][0] <= now:
                due_schedules.append(waiting.popleft())
            if due_schedules:
                next_due_s = await self._fire(leases, due_schedules, now)
                if next_due_s is None:
                    return REFUSED_PAUSE_S
                poll_at = min(poll_at, now + next_due_s)
            elif now >= poll_at or (not waiting and len(page) == PAGE):
                break
            else:
                await self._until(min(poll_at, waiting[0][0]) if waiting else poll_at)
        now = self._clock.monotonic()
        if now >= self._forget_at:  # what is done and over goes now and then
            self._forget_at = now + FORGET_EVERY_S
            await self._store.schedules.forget_done(older_than_s=KEEP_DONE_S)
        return 0.0

    async def _until(self, deadline: float) -> None:
        """Return at this time of the monotonic clock, or on the next notification."""
        await happens(self._notified, within_s=max(deadline - self._clock.monotonic(), 0.0))

    async def _fire(
        self,
        leases: Sequence[ShardLease],
        due_schedules: Sequence[tuple[float, Schedule]],
        monotonic: float,
    ) -> float | None:
        """Fire them in one commit; return the seconds until one of them is due again.

        Returns None if not all were moved, so that the store has to be read again.
        """
        ticks, next_due_s = [], math.inf
        for due_at, schedule in due_schedules:
            assert schedule.next_at is not None
            now = schedule.next_at + timedelta(seconds=monotonic - due_at)
            try:
                check_readable(schedule.payload, f"the payload of schedule {schedule.name!r}")
                tick = tick_of(schedule, now)
            except (ContractError, StoreRefusedError) as exc:
                self._complain(schedule, exc)
                continue
            ticks.append(tick)
            if tick.next_at is not None:
                next_due_s = min(next_due_s, (tick.next_at - now).total_seconds())
        if not ticks:
            return math.inf
        outcome = await self._store.schedules.fire(leases, ticks)
        self._worker.intake.routed(outcome.arrived)
        return next_due_s if outcome.moved_count == len(ticks) else None

    async def _review(self, leases: Sequence[ShardLease]) -> None:
        """Move ticks of shards that are new here if their zone has other rules than when they were set."""
        held_keys = {(lease.shard, lease.epoch) for lease in leases}
        new_leases = [
            lease for lease in leases if (lease.shard, lease.epoch) not in self._reviewed_shards
        ]
        self._reviewed_shards &= held_keys
        after: tuple[str, str] | None = None
        shards = [lease.shard for lease in new_leases]
        while shards:
            page = await self._store.schedules.zoned(shards, after=after, limit=PAGE)
            moved_ticks = [
                tick for schedule in page if (tick := self._moved_tick(schedule)) is not None
            ]
            if moved_ticks:
                await self._store.schedules.fire(leases, moved_ticks)
            if len(page) < PAGE:
                break
            after = (page[-1].tenant, page[-1].name)
        self._reviewed_shards |= held_keys

    def _moved_tick(self, schedule: Schedule) -> Tick | None:
        try:
            at = tick_after(schedule, schedule.base_at)
        except ContractError as exc:
            self._complain(schedule, exc)
            return None
        if at == schedule.next_at:
            return None
        return Tick(schedule, schedule.base_at, at, is_sent=False)

    def _complain(self, schedule: Schedule, exc: ContractError | StoreRefusedError) -> None:
        """Log once that this host cannot compute when a schedule is due; another one may."""
        key = (schedule.tenant, schedule.name, schedule.revision)
        if key not in self._logged_problems:
            self._logged_problems.add(key)
            facts = {"tenant": schedule.tenant, "schedule": schedule.name, "problem": str(exc)}
            _log.error("a schedule cannot be fired by this host", extra=facts)
