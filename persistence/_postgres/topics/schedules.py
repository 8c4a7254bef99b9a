"""Schedules, and limits over all hosts, as rows.

See `schema/baseline/schedules.sql`. Limits have values, holders of slots, and buckets of starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, LiteralString

from typing_extensions import override

from actors._kernel.agent.message import Message
from actors._kernel.faults import armed
from actors._kernel.json import decoded
from actors._kernel.runtime.ids import AgentId, HostIncarnation, ShardId, partition_hash
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
from persistence._postgres.commits.encode import columns, json_text, lease_columns, message_text
from persistence._postgres.connection.link import Links, Row, StoreSettings
from persistence._postgres.connection.listener import SQL_READ_CLOCK

_COLUMNS: Final[LiteralString] = (
    "select s.agent as agent_id, name, payload, cron, s.timezone, at, catch_up, is_paused, base_at,"
    " next_at, last_at, revision"
)
SQL_SELECT_SCHEDULE: Final[LiteralString] = (
    _COLUMNS + " from schedules s where tenant = $1 and name = $2"
)
SQL_SELECT_SCHEDULES: Final[LiteralString] = (
    _COLUMNS + " from schedules s where ($1::text is null or tenant = $1)"
    " and (tenant, name) > ($2, $3) order by tenant, name limit $4"
)
SQL_SELECT_ZONED: Final[LiteralString] = (
    _COLUMNS + " from schedules s left join types y on y.type = agent_type(s.agent)"
    " where s.cron is not null and s.timezone <> 'UTC' and s.next_at is not null and not s.is_paused"
    " and shard_of(s.agent, s.hash, y.mode, y.partitions) = any($1)"
    " and (s.tenant, s.name) > ($2, $3) order by s.tenant, s.name limit $4"
)
SQL_SELECT_DUE: Final[LiteralString] = _COLUMNS + ", in_s from due_schedules($1,$2,$3) s"
SQL_PUT_SCHEDULE: Final[LiteralString] = (
    "select put_schedule($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15) as revision"
)
SQL_DELETE_SCHEDULE: Final[LiteralString] = (
    "delete from schedules where tenant = $1 and name = $2 returning name"
)
SQL_FIRE_SCHEDULES: Final[LiteralString] = (
    "select i, moved, arrival from fire_schedules($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13)"
)
SQL_DELETE_DONE: Final[LiteralString] = (
    "delete from schedules where ctid = any(array(select ctid from schedules"
    " where next_at is null and last_at < statement_timestamp() - $1::interval"
    " order by last_at limit $2)) returning name"
)
_FIRST: Final = ("", "")


class PostgresSchedules(ScheduleStore):
    """Schedules as rows."""

    def __init__(self, settings: StoreSettings, links: Links) -> None:
        self._settings, self._links = settings, links
        self._fault = armed("fire")

    @override
    async def now(self) -> datetime:
        [row] = await self._links.fetch("reading the clock", SQL_READ_CLOCK)
        now: datetime = row["now"]
        return now

    @override
    async def get(self, tenant: str, name: str) -> Schedule | None:
        rows = await self._links.fetch("reading a schedule", SQL_SELECT_SCHEDULE, tenant, name)
        return schedule_of(rows[0]) if rows else None

    @override
    async def find(
        self, *, tenant: str | None = None, after: tuple[str, str] | None = None, limit: int = 100
    ) -> list[Schedule]:
        rows = await self._links.fetch(
            "reading schedules", SQL_SELECT_SCHEDULES, tenant, *(after or _FIRST), limit
        )
        return [schedule_of(row) for row in rows]

    @override
    async def put(self, schedule: Schedule, *, expected: int | None) -> Schedule | None:
        agent, new = schedule.agent_id, schedule
        [row] = await self._links.fetch(
            "writing a schedule",
            SQL_PUT_SCHEDULE,
            self._settings.owner,
            expected,
            agent.tenant,
            new.name,
            str(agent),
            partition_hash(agent),
            json_text(new.payload, f"schedule {new.name!r}"),
            new.cron,
            new.timezone,
            new.at,
            new.catch_up,
            new.is_paused,
            new.base_at,
            new.next_at,
            new.last_at,
        )
        revision: int | None = row["revision"]
        return None if revision is None else replace(schedule, revision=revision)

    @override
    async def delete(self, tenant: str, name: str) -> bool:
        rows = await self._links.fetch("deleting a schedule", SQL_DELETE_SCHEDULE, tenant, name)
        return bool(rows)

    @override
    async def due(
        self, shards: Sequence[ShardId], *, within_s: float, limit: int = 1000
    ) -> list[DueSchedule]:
        rows = await self._links.fetch(
            "reading due schedules",
            SQL_SELECT_DUE,
            list(shards),
            timedelta(seconds=within_s),
            limit,
        )
        return [DueSchedule(schedule_of(row), row["in_s"]) for row in rows]

    @override
    async def zoned(
        self, shards: Sequence[ShardId], *, after: tuple[str, str] | None = None, limit: int = 100
    ) -> list[Schedule]:
        rows = await self._links.fetch(
            "reading schedules with zones",
            SQL_SELECT_ZONED,
            list(shards),
            *(after or _FIRST),
            limit,
        )
        return [schedule_of(row) for row in rows]

    @override
    async def fire(self, leases: Sequence[ShardLease], ticks: Sequence[Tick]) -> Fired:
        """Fire all ticks with one statement."""
        messages = [_message_of(tick) for tick in ticks]
        lease_args = lease_columns(leases)
        tick_args = columns(map(_columns_of, ticks, messages), 10)
        with self._fault:
            rows = await self._links.fetch(
                "firing schedules", SQL_FIRE_SCHEDULES, *lease_args, *tick_args
            )
        arrivals = []
        for row in rows:
            message = messages[row["i"] - 1]
            if message is not None and row["arrival"] is not None:
                agent = ticks[row["i"] - 1].schedule.agent_id
                arrivals.append(Arrived(message, message.sender or "", agent, row["arrival"]))
        return Fired(sum(row["moved"] for row in rows), tuple(arrivals))

    @override
    async def forget_done(self, *, older_than_s: float, limit: int = 1000) -> int:
        age = timedelta(seconds=older_than_s)
        return len(await self._links.fetch("forgetting schedules", SQL_DELETE_DONE, age, limit))


def schedule_of(row: Row) -> Schedule:
    """Return a row of `_COLUMNS`; they are named as the fields."""
    fields = {**row, "agent_id": AgentId.parse(row["agent_id"]), "payload": decoded(row["payload"])}
    fields.pop("in_s", None)
    return Schedule(**fields)


def _message_of(tick: Tick) -> Message | None:
    at = tick.schedule.next_at
    return tick_message(tick.schedule, at) if tick.is_sent and at is not None else None


def _columns_of(tick: Tick, message: Message | None) -> tuple[object, ...]:
    schedule = tick.schedule
    sender = None if message is None else message.sender
    return (
        schedule.tenant,
        schedule.name,
        schedule.revision,
        tick.base_at,
        tick.next_at,
        str(schedule.agent_id),
        partition_hash(schedule.agent_id),
        sender,
        None if message is None else message.id,
        None if message is None else message_text(message, sender),
    )


SQL_SET_LIMIT: Final[LiteralString] = "select set_limit($1, $2, $3, $4, $5)"
SQL_DELETE_LIMIT: Final[LiteralString] = "select delete_limit($1) as is_gone"
SQL_SELECT_LIMITS: Final[LiteralString] = (
    "select scope, max_concurrent, rate_per_s, burst, weight, held, wanting, hosts"
    " from limits_in_use()"
)
SQL_EXCHANGE_PLACES: Final[LiteralString] = (
    "select scope, held, share, contended, starts, next_s as next_start_s"
    " from exchange_places($1, $2, $3, $4, $5)"
)


class PostgresLimits(LimitStore):
    """Limits as rows."""

    def __init__(self, links: Links) -> None:
        self._links = links

    @override
    async def set(self, limit: Limit) -> None:
        await self._links.fetch(
            "setting a limit",
            SQL_SET_LIMIT,
            str(limit.scope),
            limit.max_concurrent,
            limit.rate_per_s,
            limit.most_starts,
            limit.weight,
        )

    @override
    async def delete(self, scope: LimitScope) -> bool:
        """After an answer that was lost it may say False."""
        return bool(await self._links.value("deleting a limit", SQL_DELETE_LIMIT, str(scope)))

    @override
    async def list(self) -> list[LimitUse]:
        rows = await self._links.fetch("reading limits", SQL_SELECT_LIMITS)
        return [
            LimitUse(
                limit=_limit(row), held=row["held"], wanting=row["wanting"], hosts=row["hosts"]
            )
            for row in rows
        ]

    @override
    async def exchange(self, owner: HostIncarnation, claims: Sequence[Claim]) -> Sequence[Grant]:
        """Starts of an answer that was lost are lost."""
        rows = await self._links.fetch(
            "exchanging places",
            SQL_EXCHANGE_PLACES,
            owner,
            *columns(
                ((str(claim.scope), claim.held, claim.wanted, claim.starts) for claim in claims), 4
            ),
        )
        return [Grant(**{**row, "scope": LimitScope.parse(row["scope"])}) for row in rows]


def _limit(row: Row) -> Limit:
    has_rate = row["rate_per_s"] is not None
    return Limit(
        scope=LimitScope.parse(row["scope"]),
        max_concurrent=row["max_concurrent"],
        rate_per_s=row["rate_per_s"],
        burst=row["burst"] if has_rate else None,
        weight=row["weight"],
    )
