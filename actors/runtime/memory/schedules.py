"""Schedules of the in-memory stores."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count, islice

from typing_extensions import override

from actors.kernel.agent.message import Message
from actors.kernel.basics import Clock
from actors.kernel.runtime.hints import Nudge
from actors.kernel.runtime.ids import AgentId, ShardId
from actors.kernel.runtime.rows import Arrived
from actors.kernel.runtime.scheduler import ShardLease
from actors.kernel.stores.schedule import (
    DueSchedule,
    Fired,
    Schedule,
    ScheduleStore,
    Tick,
    tick_message,
)
from actors.runtime.memory.records import pack, unpack
from actors.runtime.memory.rows import MEMORY_SHARD, MemoryRows


class ScheduleRows:
    """The schedules of one in-memory store, shared by its siblings."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], Schedule] = {}
        self.revisions = count(1)


class InMemorySchedules(ScheduleStore):
    """Each call does its work without an await in the middle.

    Args:
        clock: Decides what is due.
        rows: Inboxes and their owners.
        schedules: The schedules.
        source: The store that is not nudged for what it changes itself.
        on_fired: Called with messages that were written, before `fire` returns.
    """

    def __init__(
        self,
        clock: Clock,
        rows: MemoryRows,
        schedules: ScheduleRows,
        *,
        source: object,
        on_fired: Callable[[Sequence[Arrived]], Awaitable[None]] | None = None,
    ) -> None:
        self._clock, self._rows, self._source = clock, rows, source
        self._schedules = schedules
        self._on_fired = on_fired

    @override
    async def now(self) -> datetime:
        return self._clock.now()

    @override
    async def get(self, tenant: str, name: str) -> Schedule | None:
        found = self._schedules.kept.get((tenant, name))
        return None if found is None else _copy(found)

    @override
    async def find(
        self, *, tenant: str | None = None, after: tuple[str, str] | None = None, limit: int = 100
    ) -> list[Schedule]:
        wanted = (
            _copy(one)
            for key, one in sorted(self._schedules.kept.items())
            if (tenant is None or key[0] == tenant) and (after is None or key > after)
        )
        return list(islice(wanted, limit))

    @override
    async def put(self, schedule: Schedule, *, expected: int | None) -> Schedule | None:
        key, kept = (schedule.tenant, schedule.name), self._schedules.kept
        known = kept.get(key)
        if (None if known is None else known.revision) != expected:
            return None
        new = replace(_copy(schedule), revision=next(self._schedules.revisions))
        kept[key] = new
        self._rows.nudge(self._source, Nudge("schedule", schedule.agent_id))
        return _copy(new)

    @override
    async def delete(self, tenant: str, name: str) -> bool:
        return self._schedules.kept.pop((tenant, name), None) is not None

    @override
    async def due(
        self, shards: Sequence[ShardId], *, within_s: float, limit: int = 1000
    ) -> list[DueSchedule]:
        if MEMORY_SHARD not in shards:
            return []
        now = self._clock.now()
        until = now + timedelta(seconds=within_s)
        near = sorted(
            (one.next_at, key, one)
            for key, one in self._schedules.kept.items()
            if one.next_at is not None and not one.is_paused and one.next_at <= until
        )
        return [DueSchedule(_copy(one), (at - now).total_seconds()) for at, _, one in near[:limit]]

    @override
    async def zoned(
        self, shards: Sequence[ShardId], *, after: tuple[str, str] | None = None, limit: int = 100
    ) -> list[Schedule]:
        if MEMORY_SHARD not in shards:
            return []
        wanted = (
            _copy(one)
            for key, one in sorted(self._schedules.kept.items())
            if one.cron is not None and one.timezone != "UTC" and one.state == "active"
            if after is None or key > after
        )
        return list(islice(wanted, limit))

    @override
    async def fire(self, leases: Sequence[ShardLease], ticks: Sequence[Tick]) -> Fired:
        shard = self._rows.shard
        if not any(
            (lease.shard, lease.owner, lease.epoch) == (MEMORY_SHARD, shard.owner, shard.epoch)
            for lease in leases
        ):
            return Fired(0, ())
        arrived, moved = [], 0
        for tick in ticks:
            was_moved, item = self._fire(tick)
            moved += was_moved
            if item is not None:
                arrived.append(item)
        if self._on_fired is not None:
            await self._on_fired(arrived)
        return Fired(moved, tuple(arrived))

    def _fire(self, tick: Tick) -> tuple[bool, Arrived | None]:
        read = tick.schedule
        key, at = (read.tenant, read.name), read.next_at
        known = self._schedules.kept.get(key)
        if at is None:
            return False, None
        if known is None or known.revision != read.revision or known.is_paused:
            return False, self._still_waiting(tick_message(read, at), read.agent_id)
        if tick.is_sent and at > self._clock.now():
            return False, None
        self._schedules.kept[key] = replace(
            known,
            base_at=tick.base_at,
            next_at=tick.next_at,
            last_at=at if tick.is_sent else known.last_at,
            revision=next(self._schedules.revisions),
        )
        if not tick.is_sent:
            return True, None
        message = tick_message(known, at)
        row = self._rows.put_mail(message, message.sender or "", known.agent_id)
        return True, None if row is None else row.arrived()

    def _still_waiting(self, message: Message, agent_id: AgentId) -> Arrived | None:
        """Return what an earlier try of the same call wrote, if it was not taken yet."""
        row = self._rows.known(agent_id, message.sender or "", message.id)
        return row.arrived() if row is not None and row.state == "pending" else None

    @override
    async def forget_done(self, *, older_than_s: float, limit: int = 1000) -> int:
        before = self._clock.now() - timedelta(seconds=older_than_s)
        old = [
            key
            for key, one in self._schedules.kept.items()
            if one.next_at is None and one.last_at is not None and one.last_at < before
        ]
        for key in old[:limit]:
            del self._schedules.kept[key]
        return len(old[:limit])


def _copy(schedule: Schedule) -> Schedule:
    """Return a copy whose payload no caller holds, so that none can change it."""
    return replace(schedule, payload=unpack(pack(schedule.payload)))
