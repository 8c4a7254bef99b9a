"""Schedules and limits of the in-memory stores.

Limits have the same rules as in the database, for hosts of one process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count, islice
from typing import Final

from typing_extensions import override

from actors._inmemory.runs.records import pack, unpack
from actors._inmemory.runs.rows import MEMORY_SHARD, MemoryRows
from actors._kernel.basics import Clock
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import HostIncarnation, ShardId
from actors._kernel.runtime.rows import Arrived
from actors._kernel.runtime.scheduler import ShardLease
from actors._kernel.stores.limits import Claim, Grant, Limit, LimitScope, LimitStore, LimitUse
from actors._kernel.stores.schedule import (
    DueSchedule,
    Fired,
    Schedule,
    ScheduleStore,
    Tick,
    tick_message,
)


class ScheduleRows:
    """The schedules of one in-memory store, shared by its siblings."""

    def __init__(self) -> None:
        self.by_name: dict[tuple[str, str], Schedule] = {}
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
        schedule = self._schedules.by_name.get((tenant, name))
        return None if schedule is None else _copy(schedule)

    @override
    async def find(
        self, *, tenant: str | None = None, after: tuple[str, str] | None = None, limit: int = 100
    ) -> list[Schedule]:
        schedules = (
            _copy(schedule)
            for key, schedule in sorted(self._schedules.by_name.items())
            if (tenant is None or key[0] == tenant) and (after is None or key > after)
        )
        return list(islice(schedules, limit))

    @override
    async def put(self, schedule: Schedule, *, expected: int | None) -> Schedule | None:
        key, schedules = (schedule.tenant, schedule.name), self._schedules.by_name
        stored = schedules.get(key)
        if (None if stored is None else stored.revision) != expected:
            return None
        new = replace(_copy(schedule), revision=next(self._schedules.revisions))
        schedules[key] = new
        self._rows.nudge(self._source, Nudge("schedule", schedule.agent_id))
        return _copy(new)

    @override
    async def delete(self, tenant: str, name: str) -> bool:
        return self._schedules.by_name.pop((tenant, name), None) is not None

    @override
    async def due(
        self, shards: Sequence[ShardId], *, within_s: float, limit: int = 1000
    ) -> list[DueSchedule]:
        if MEMORY_SHARD not in shards:
            return []
        now = self._clock.now()
        until = now + timedelta(seconds=within_s)
        candidates = sorted(
            (schedule.next_at, key, schedule)
            for key, schedule in self._schedules.by_name.items()
            if schedule.next_at is not None and not schedule.is_paused and schedule.next_at <= until
        )
        return [
            DueSchedule(_copy(schedule), (at - now).total_seconds())
            for at, _, schedule in candidates[:limit]
        ]

    @override
    async def zoned(
        self, shards: Sequence[ShardId], *, after: tuple[str, str] | None = None, limit: int = 100
    ) -> list[Schedule]:
        if MEMORY_SHARD not in shards:
            return []
        schedules = (
            _copy(schedule)
            for key, schedule in sorted(self._schedules.by_name.items())
            if schedule.cron is not None
            and schedule.timezone != "UTC"
            and schedule.state == "active"
            if after is None or key > after
        )
        return list(islice(schedules, limit))

    @override
    async def fire(self, leases: Sequence[ShardLease], ticks: Sequence[Tick]) -> Fired:
        shard = self._rows.shard
        if not any(
            (lease.shard, lease.owner, lease.epoch) == (MEMORY_SHARD, shard.owner, shard.epoch)
            for lease in leases
        ):
            return Fired(0, ())
        arrivals, moved_count = [], 0
        for tick in ticks:
            is_moved, item = self._fire(tick)
            moved_count += is_moved
            if item is not None:
                arrivals.append(item)
        if self._on_fired is not None:
            await self._on_fired(arrivals)
        return Fired(moved_count, tuple(arrivals))

    def _fire(self, tick: Tick) -> tuple[bool, Arrived | None]:
        schedule = tick.schedule
        key, at = (schedule.tenant, schedule.name), schedule.next_at
        stored = self._schedules.by_name.get(key)
        if at is None:
            return False, None
        if stored is None or stored.revision != schedule.revision or stored.is_paused:
            # An earlier try of the same call may have written the message. It still waits if it was not taken.
            message = tick_message(schedule, at)
            row = self._rows.message_row(schedule.agent_id, message.sender or "", message.id)
            return False, row.arrived() if row is not None and row.state == "pending" else None
        # The clock of the host may be ahead: the store's alone decides what is due.
        if tick.is_sent and at > self._clock.now():
            return False, None
        self._schedules.by_name[key] = replace(
            stored,
            base_at=tick.base_at,
            next_at=tick.next_at,
            last_at=at if tick.is_sent else stored.last_at,
            revision=next(self._schedules.revisions),
        )
        if not tick.is_sent:
            return True, None
        message = tick_message(stored, at)
        row = self._rows.put_mail(message, message.sender or "", stored.agent_id)
        return True, None if row is None else row.arrived()

    @override
    async def forget_done(self, *, older_than_s: float, limit: int = 1000) -> int:
        before = self._clock.now() - timedelta(seconds=older_than_s)
        old_keys = [
            key
            for key, schedule in self._schedules.by_name.items()
            if schedule.next_at is None
            and schedule.last_at is not None
            and schedule.last_at < before
        ]
        for key in old_keys[:limit]:
            del self._schedules.by_name[key]
        return len(old_keys[:limit])


def _copy(schedule: Schedule) -> Schedule:
    """Return a copy whose payload no caller holds, so that none can change it."""
    return replace(schedule, payload=unpack(pack(schedule.payload)))


_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)
_SHARE: Final = timedelta(milliseconds=100)
_LATELY: Final = timedelta(seconds=2)
_SILENT_S: Final = 15.0
"""A host that has said nothing for so long is dead, where no lease says when."""


@dataclass(slots=True)
class _Part:
    """A host's share of a limit, and its request."""

    slots: int = 0
    demand: int = 0
    wanted_starts: int = 0
    seen_at: datetime = _LONG_AGO
    got_at: datetime = _LONG_AGO
    started_at: datetime = _LONG_AGO


@dataclass(slots=True)
class _LimitRow:
    limit: Limit
    tokens: float
    filled_at: datetime
    parts: dict[HostIncarnation, _Part] = field(default_factory=dict)


class LimitRows:
    """The limits of one in-memory store, shared by its siblings.

    Args:
        clock: Fills the buckets.
        lease_s: Seconds after which a silent host is dead.
    """

    def __init__(self, clock: Clock, lease_s: float | None) -> None:
        self._clock = clock
        self._lease = timedelta(seconds=lease_s if lease_s is not None else _SILENT_S)
        self._rows: dict[LimitScope, _LimitRow] = {}

    def set(self, limit: Limit) -> None:
        """Set a limit. Hosts keep their slots, and the bucket keeps its tokens up to the new size."""
        now, row = self._clock.now(), self._rows.get(limit.scope)
        if row is None or row.limit.rate_per_s is None:
            tokens = float(limit.most_starts)
        else:
            tokens = min(limit.most_starts, _tokens_at(row, now))
        parts = row.parts if row is not None and limit.max_concurrent is not None else {}
        self._rows[limit.scope] = _LimitRow(limit, tokens, now, parts)

    def delete(self, scope: LimitScope) -> bool:
        """Delete a limit; return False if there is none."""
        return self._rows.pop(scope, None) is not None

    def list(self) -> list[LimitUse]:
        """Return all limits by scope, with the slots that hosts hold and want."""
        now = self._clock.now()
        uses = []
        for scope in sorted(self._rows, key=str):
            row = self._rows[scope]
            self._remove_dead_hosts(row, now)
            parts = [
                part for part in row.parts.values() if part.slots + part.demand + part.wanted_starts
            ]
            wanting_slots = sum(
                max(part.demand - part.slots, part.wanted_starts, 0) for part in parts
            )
            held_slots = sum(part.slots for part in parts)
            uses.append(
                LimitUse(limit=row.limit, held=held_slots, wanting=wanting_slots, hosts=len(parts))
            )
        return uses

    def exchange(
        self, owner: HostIncarnation, claims: Sequence[Claim]
    ) -> tuple[Sequence[Grant], bool]:
        """Replace the owner's claims; return its grants, and True if other hosts have to be notified."""
        now, is_news = self._clock.now(), False
        grants = []
        for claim in claims:
            row = self._rows.get(claim.scope)
            if row is None:
                continue
            self._remove_dead_hosts(row, now)
            part = row.parts.setdefault(owner, _Part())
            previous_slots, previous_demand = part.slots, part.demand
            part.slots, part.demand, part.wanted_starts = (
                claim.held,
                claim.wanted,
                max(claim.starts, 0),
            )
            part.seen_at = now
            grant = _grant(row, owner, claim, now)
            grants.append(grant)
            if row.limit.max_concurrent is not None:
                others = sum(p.slots for host, p in row.parts.items() if host != owner)
                # Others are notified if slots are free that they want, or this host begins to want theirs.
                frees_slots = grant.contended and part.slots < previous_slots
                wants_theirs = (
                    others > 0 and part.slots < part.demand and previous_demand <= previous_slots
                )
                is_news = is_news or frees_slots or wants_theirs
        return grants, is_news

    def _remove_dead_hosts(self, row: _LimitRow, now: datetime) -> None:
        """Forget the slots and requests of dead hosts."""
        for host in [h for h, part in row.parts.items() if part.seen_at < now - self._lease]:
            del row.parts[host]


class MemoryLimits(LimitStore):
    """Limits of rows in memory.

    Args:
        rows: The limits.
        nudge: Function that notifies the runtimes of the same store of a change.
    """

    def __init__(self, rows: LimitRows, nudge: Callable[[Nudge], None]) -> None:
        self._rows, self._nudge = rows, nudge

    @override
    async def set(self, limit: Limit) -> None:
        self._rows.set(limit)
        self._nudge(Nudge("limits"))

    @override
    async def delete(self, scope: LimitScope) -> bool:
        is_gone = self._rows.delete(scope)
        self._nudge(Nudge("limits"))
        return is_gone

    @override
    async def list(self) -> list[LimitUse]:
        return self._rows.list()

    @override
    async def exchange(self, owner: HostIncarnation, claims: Sequence[Claim]) -> Sequence[Grant]:
        """A host is dead when it was silent for the lease time."""
        grants, is_news = self._rows.exchange(owner, claims)
        if is_news:
            self._nudge(Nudge("slots"))
        return grants


def _grant(row: _LimitRow, owner: HostIncarnation, claim: Claim, now: datetime) -> Grant:
    part, slots = row.parts[owner], row.limit.max_concurrent
    share, missing_slots = claim.wanted, 0
    if slots is not None:
        others = [p for host, p in row.parts.items() if host != owner]
        missing_slots = sum(max(p.demand - p.slots, 0) for p in others)
        share = fair_places({h: (p.demand, p.got_at) for h, p in row.parts.items()}, slots, now)[
            owner
        ]
        allowed_slots = min(share, claim.wanted, slots - sum(p.slots for p in others))
        if allowed_slots > claim.held:
            part.slots, part.got_at = allowed_slots, now
    starts = _take_starts(row, owner, claim.starts, now) if claim.starts else 0
    rate = row.limit.rate_per_s
    next_s = (int(row.tokens) + 1 - row.tokens) / rate if rate and claim.starts else 0.0
    return Grant(
        scope=claim.scope,
        held=part.slots,
        share=share,
        contended=missing_slots > 0,
        starts=starts,
        next_start_s=next_s,
    )


def fair_places(
    demands_by_host: dict[HostIncarnation, tuple[int, datetime]], slots: int, now: datetime
) -> dict[HostIncarnation, int]:
    """Return how many slots each host may use, as the SQL function of this name does.

    Args:
        demands_by_host: The number of slots that each wants, and the instant at which it last got one.
        slots: Number of slots.
        now: The present.
    """
    slots_by_host: dict[HostIncarnation, int] = {}
    remaining_hosts = sorted(demands_by_host, key=lambda host: (demands_by_host[host][0], host))
    while (
        remaining_hosts and demands_by_host[remaining_hosts[0]][0] * len(remaining_hosts) <= slots
    ):
        slots_by_host[remaining_hosts[0]] = demands_by_host[remaining_hosts[0]][0]
        slots -= slots_by_host[remaining_hosts.pop(0)]
    if remaining_hosts:
        level, extra = divmod(slots, len(remaining_hosts))
        # A host that got a slot within the last slice comes first: a single slot would else change hosts with
        # every call, before a run can use it.
        remaining_hosts.sort(
            key=lambda host: (
                demands_by_host[host][1] <= now - _SHARE,
                demands_by_host[host][1],
                host,
            )
        )
        slots_by_host.update(
            {host: level + (index < extra) for index, host in enumerate(remaining_hosts)}
        )
    return slots_by_host


def _tokens_at(row: _LimitRow, now: datetime) -> float:
    passed_s = max((now - row.filled_at).total_seconds(), 0.0)
    return row.tokens + (row.limit.rate_per_s or 0.0) * passed_s


def _take_starts(row: _LimitRow, owner: HostIncarnation, wanted_starts: int, now: datetime) -> int:
    """Take starts from the bucket, or give unused ones back; return how many were taken."""
    if row.limit.rate_per_s is None:
        return 0
    row.tokens = min(row.limit.most_starts, _tokens_at(row, now) - min(wanted_starts, 0))
    row.filled_at = max(now, row.filled_at)
    if wanted_starts < 0:
        return 0
    # A host that has not asked lately may be dead or want none: its part of the starts would be unused.
    recent_hosts = [
        (part.started_at, host)
        for host, part in row.parts.items()
        if host == owner or (part.wanted_starts > 0 and part.seen_at > now - _LATELY)
    ]
    part = row.parts[owner]
    share, extra = divmod(int(row.tokens), len(recent_hosts))
    index = sorted(recent_hosts).index((part.started_at, owner))
    new_starts = min(wanted_starts, share + (index < extra))
    row.tokens -= new_starts
    part.wanted_starts = wanted_starts - new_starts
    if new_starts:
        part.started_at = now
    return new_starts
