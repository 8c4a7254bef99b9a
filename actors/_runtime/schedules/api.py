"""Schedules: messages that come to agents by themselves, and when they are due.

`Schedules` is `runtime.schedules`. `next_tick` says when a cron expression is due, by the wall clock of a
time zone.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import Any, Final
from zoneinfo import ZoneInfo

from actors._kernel.agent.message import Message
from actors._kernel.basics import Entropy, instant_of
from actors._kernel.json import check_readable
from actors._kernel.runtime.ids import DEFAULT_TENANT, AgentId, check_name
from actors._kernel.stores.run_store import RunStore
from actors._kernel.stores.schedule import CatchUp, Schedule, extra_message
from actors._kernel.text import check_name_of, is_name
from actors.errors import (
    ConflictError,
    ContractError,
    InvalidScheduleError,
    ScheduleExistsError,
    UnknownScheduleError,
)

_log = logging.getLogger("callboard.schedules")

PAGE: Final = 500
"""Number of schedules that are read with one statement."""

_TRIES: Final = 20
"""Number of times that a change is tried again after a concurrent change."""
FIELDS: Final = "minute hour day-of-month month day-of-week, or six fields with the second first"
_FROM_HOUR: Final = 4
"""Hour, day, month and day of week: the last four fields of an expression."""

_MOST_PASSED: Final = 90_000
"""More ticks than a zone's wall clock can repeat when it goes back, one a second."""


class Schedules:
    """The API of `Runtime.schedules`: messages that are sent to agents at set times.

    Each call is durable when it returns, may be made in any process of the deployment, and may be
    made again. Names are unique per tenant; that of `create` is the agent's.
    """

    def __init__(
        self,
        store: RunStore,
        entropy: Entropy,
        *,
        on_change: Callable[[], None],
        on_arrived: Callable[[Any], None],
    ) -> None:
        self._store, self._entropy = store, entropy
        self._on_change, self._on_arrived = on_change, on_arrived

    async def create(  # noqa: PLR0913 - they are what a schedule is
        self,
        name: str,
        agent_id: AgentId,
        payload: Any = None,
        *,
        cron: str | None = None,
        timezone: str = "UTC",
        at: datetime | None = None,
        delay_s: float | None = None,
        catch_up: CatchUp = "one",
        replace: bool = False,
    ) -> Schedule:
        """Return the schedule of this name; create it if there is none.

        Exactly one of `cron`, `at` and `delay_s` says when. The same values again change nothing; a
        `delay_s` counts from the first call. A paused schedule stays paused when it is replaced, and
        one whose times stay the same keeps its next tick.

        Args:
            name: As an agent's type: letters, digits, ``_``, ``-`` and ``.``.
            agent_id: The agent that gets the messages, from the sender ``schedule:<name>``.
            payload: JSON data, or a registered payload.
            cron: Five fields, or six with the second first; see `actors._runtime.schedules.api.next_tick`.
            timezone: IANA name of the zone whose wall clock `cron` means.
            at: An aware instant in the future, for one message.
            delay_s: Seconds from now, for one message.
            catch_up: What becomes of ticks that passed while no host could fire them: one message
                for all of them, or one for each.
            replace: Take these values instead of those that are there.

        Raises:
            ScheduleExistsError: One of this name has other values, and `replace` is not set.
            InvalidScheduleError: The expression, the zone or the instant makes no sense.
        """
        new_schedule = _NewSchedule.of(
            name,
            agent_id,
            payload,
            cron=cron,
            timezone=timezone,
            at=at,
            delay_s=delay_s,
            catch_up=catch_up,
        )

        def change(existing: Schedule | None, now: datetime) -> Schedule | None:
            if existing is None:
                return new_schedule.begin(now)
            differences = new_schedule.differences(existing)
            if differences and not replace:
                raise ScheduleExistsError(name, differences)
            return new_schedule.replace_existing(existing, now) if differences else None

        return await self._change(agent_id.tenant, name, change)

    async def get(self, name: str, *, tenant: str = DEFAULT_TENANT) -> Schedule:
        """Return one schedule.

        Raises:
            UnknownScheduleError: There is none of this name.
        """
        schedule = await self._store.schedules.get(tenant, name) if is_name(name) else None
        if schedule is None:
            raise UnknownScheduleError(name, tenant)
        return schedule

    async def pause(self, name: str, *, tenant: str = DEFAULT_TENANT) -> Schedule:
        """Stop a schedule until `resume`; no tick of the time between is fired.

        Raises:
            UnknownScheduleError: There is none of this name.
        """

        def change(existing: Schedule | None, now: datetime) -> Schedule | None:
            del now
            schedule = _require(existing, name, tenant)
            return None if schedule.state != "active" else replace(schedule, is_paused=True)

        return await self._change(tenant, name, change)

    async def resume(self, name: str, *, tenant: str = DEFAULT_TENANT) -> Schedule:
        """Resume a paused schedule with its next tick after now.

        If the schedule is for a single instant that has passed meanwhile, its message is sent at once.

        Raises:
            UnknownScheduleError: There is none of this name.
        """

        def change(existing: Schedule | None, now: datetime) -> Schedule | None:
            schedule = _require(existing, name, tenant)
            return (
                None
                if schedule.state != "paused"
                else _with_plan(replace(schedule, is_paused=False), now)
            )

        return await self._change(tenant, name, change)

    async def trigger(
        self, name: str, *, request_id: str | None = None, tenant: str = DEFAULT_TENANT
    ) -> bool:
        """Send the schedule's message now, beside its plan, also when it is paused or done.

        The same request id again sends nothing and returns False.

        Raises:
            UnknownScheduleError: There is none of this name.
        """
        schedule = await self.get(name, tenant=tenant)
        check_name_of("id of a request", request_id or "")
        now = await self._store.schedules.now()
        check_readable(schedule.payload, f"the payload of schedule {name!r}")
        message = extra_message(schedule, request_id or self._entropy.token(), now)
        arrived = await self._store.arrivals.deliver([message])
        self._on_arrived(tuple(arrived))
        return bool(arrived)

    async def delete(self, name: str, *, tenant: str = DEFAULT_TENANT) -> None:
        """Forget a schedule; messages it has sent stay.

        Raises:
            UnknownScheduleError: There is none of this name.
        """
        await self.get(name, tenant=tenant)
        await self._store.schedules.delete(tenant, name)

    async def list(self, *, tenant: str | None = None) -> Sequence[Schedule]:
        """Return all schedules, or those of one tenant, by tenant and name."""
        schedules: deque[Schedule] = deque()
        while True:
            after = (schedules[-1].tenant, schedules[-1].name) if schedules else None
            page = await self._store.schedules.find(tenant=tenant, after=after, limit=PAGE)
            schedules.extend(page)
            if len(page) < PAGE:
                return tuple(schedules)

    async def _change(
        self, tenant: str, name: str, change: Callable[[Schedule | None, datetime], Schedule | None]
    ) -> Schedule:
        """Write what `change` makes of the schedule, unless that is None."""
        # Another process may change the schedule between the read and the write: read it and try again.
        for _ in range(_TRIES):
            existing = await self._store.schedules.get(tenant, name) if is_name(name) else None
            new_schedule = change(existing, await self._store.schedules.now())
            if new_schedule is None:
                assert existing is not None
                return existing
            check_readable(
                new_schedule.payload, f"the payload of schedule {name!r}: create it anew"
            )
            expected_revision = None if existing is None else existing.revision
            stored_schedule = await self._store.schedules.put(
                new_schedule, expected=expected_revision
            )
            if stored_schedule is not None:
                self._on_change()
                return stored_schedule
        msg = f"schedule {name!r} was changed by others {_TRIES} times meanwhile"
        raise ConflictError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class _NewSchedule:
    """The schedule that the arguments of `Schedules.create` describe, checked."""

    schedule: Schedule
    """Without a plan: its base is not set."""
    delay_s: float | None

    @classmethod
    def of(
        cls,
        name: str,
        agent_id: AgentId,
        payload: Any,
        *,
        cron: str | None,
        timezone: str,
        at: datetime | None,
        delay_s: float | None,
        catch_up: CatchUp,
    ) -> _NewSchedule:
        check_name("schedule name", name)
        if sum(moment is not None for moment in (cron, at, delay_s)) != 1:
            raise InvalidScheduleError("a schedule takes one of cron, at and delay_s")
        if catch_up not in ("one", "all"):
            raise InvalidScheduleError(f"catch_up is 'one' or 'all', not {catch_up!r}")
        if cron is None and timezone != "UTC":
            raise InvalidScheduleError("a time zone is for cron: an instant has its own offset")
        zone_of(timezone)
        if at is not None and at.tzinfo is None:
            raise InvalidScheduleError(f"instant {at.isoformat()} has no offset from UTC: give one")
        if delay_s is not None and not (math.isfinite(delay_s) and delay_s >= 0):
            raise InvalidScheduleError(f"a delay of {delay_s} s is not one: give 0 or more")
        schedule = Schedule(
            name=name,
            agent_id=agent_id,
            payload=Message.of(agent_id, payload).payload,
            cron=None if cron is None else " ".join(cron.split()),
            timezone=timezone,
            at=None if at is None else instant_of(at),
            catch_up=catch_up,
            base_at=datetime.min.replace(tzinfo=UTC),
        )
        return cls(schedule=schedule, delay_s=delay_s)

    def begin(self, now: datetime) -> Schedule:
        """Return the new schedule with its first tick.

        Raises:
            InvalidScheduleError: There is no tick after now.
        """
        schedule = self.schedule
        if self.delay_s is not None:
            try:
                schedule = replace(schedule, at=now + timedelta(seconds=self.delay_s))
            except (OverflowError, TypeError, ValueError) as exc:
                raise InvalidScheduleError(
                    f"a delay of {self.delay_s} s is none, or too long"
                ) from exc
        elif schedule.at is not None and schedule.at <= now:
            text = f"instant {schedule.at.isoformat()} has passed: it is {now.isoformat()} now"
            raise InvalidScheduleError(text)
        return _with_plan(schedule, now)

    def differences(self, existing: Schedule) -> list[str]:
        """Return what is other than in the schedule that is there."""
        parts = ["agent_id", "payload", "cron", "timezone", "catch_up"]
        if self.delay_s is None or existing.at is None:
            parts.append("at")
        pairs = [(part, getattr(existing, part), getattr(self.schedule, part)) for part in parts]
        return [
            f"{part}: {_value_text(old_value)} there / {_value_text(new_value)} wanted"
            for part, old_value, new_value in pairs
            if old_value != new_value
        ]

    def replace_existing(self, existing: Schedule, now: datetime) -> Schedule:
        """Return the new schedule; the old one's plan goes on if it is the same plan."""
        schedule = self.schedule
        times = ("cron", "timezone", "at")
        if all(getattr(existing, part) == getattr(schedule, part) for part in times):
            new_schedule = replace(schedule, base_at=existing.base_at, next_at=existing.next_at)
        else:
            new_schedule = self.begin(
                now if existing.last_at is None else max(now, existing.last_at)
            )
        return replace(new_schedule, is_paused=existing.is_paused, last_at=existing.last_at)


def _value_text(value: object) -> str:
    text = value.isoformat() if isinstance(value, datetime) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004


def _require(existing: Schedule | None, name: str, tenant: str) -> Schedule:
    if existing is None:
        raise UnknownScheduleError(name, tenant)
    return existing


def _with_plan(schedule: Schedule, base_at: datetime) -> Schedule:
    """Return the schedule with its first tick after `base_at`; a single message keeps its instant."""
    return replace(schedule, base_at=base_at, next_at=tick_after(schedule, base_at))


def tick_after(schedule: Schedule, base_at: datetime) -> datetime | None:
    """Return the schedule's first tick after `base_at`; a single message keeps its instant.

    Raises:
        ContractError: This machine does not know the zone, or cannot read the expression.
    """
    if schedule.cron is None:
        return schedule.at
    return next_tick(schedule.cron, schedule.timezone, base_at)


def next_tick(cron: str, timezone: str, after: datetime) -> datetime:
    """Return the first tick after `after`, in UTC.

    An expression whose hour begins with ``*`` goes by elapsed time, so it neither stops nor repeats
    itself when the zone's clock changes. Any other one goes by the wall clock: a time that does not
    exist fires once, at the next instant that does, and one that exists twice fires the first time.

    Raises:
        InvalidScheduleError: The expression or the zone is unknown, or there is no such time in 50 years.
        ContractError: The library for cron expressions is not installed.
    """
    zone = zone_of(timezone)
    fields = cron.split()
    by_elapsed_time = len(fields) >= _FROM_HOUR and fields[-_FROM_HOUR].startswith("*")
    at: datetime | None = None
    with suppress(OverflowError):  # the calendar ends
        at = (_next_elapsed if by_elapsed_time else _next_on_the_wall)(cron, zone, after)
    if at is None:
        text = f"cron expression {cron!r} names no time that comes in the next 50 years"
        raise InvalidScheduleError(text)
    return at


# Each tick of each schedule asks for its zone, which is read from a file.
@lru_cache(maxsize=1024)
def zone_of(name: str) -> ZoneInfo:
    """Return the time zone of this IANA name.

    Raises:
        InvalidScheduleError: The machine's zone database does not have it.
    """
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as exc:
        text = (
            f"time zone {name!r} is not known here: give an IANA name such as Europe/Berlin or UTC"
        )
        raise InvalidScheduleError(text) from exc


def _next_elapsed(cron: str, zone: ZoneInfo, after: datetime) -> datetime | None:
    """Return the first instant after `after` at which the zone's clock shows a tick."""
    start = since = after.astimezone(UTC)
    while True:
        offset = _offset(zone, start)
        wall = next(_times(cron, since.replace(tzinfo=None) + offset), None)
        if wall is None:
            return None
        at = (wall - offset).replace(tzinfo=UTC)
        # A clock that goes back within the day may show again what it has passed before `at`.
        ends = (min(at, start + timedelta(days=1)), at)
        end = next((instant for instant in ends if _offset(zone, instant) != offset), None)
        if end is None:
            return at
        start = _first(start, end, lambda moment, offset=offset: _offset(zone, moment) != offset)  # type: ignore[misc]
        since = start - timedelta(seconds=1)


def _offset(zone: ZoneInfo, at: datetime) -> timedelta:
    """Return how far the zone's clock is ahead of UTC."""
    offset = at.astimezone(zone).utcoffset()
    assert offset is not None
    return offset


def _next_on_the_wall(cron: str, zone: ZoneInfo, after: datetime) -> datetime | None:
    """Return the first instant after `after` that stands for a tick of the zone's clock."""
    walls = _times(cron, after.astimezone(zone).replace(tzinfo=None))
    instants = (_instant_of(wall, zone) for wall in islice(walls, _MOST_PASSED))
    return next((at for at in instants if at > after), None)


def _times(cron: str, start: datetime) -> Iterator[datetime]:
    try:
        from cronsim import CronSim, CronSimError  # noqa: PLC0415 - needed for cron schedules only
    except ModuleNotFoundError as exc:
        text = "cron schedules need the library cronsim: install callboard[cron]"
        raise ContractError(text) from exc
    try:
        return CronSim(cron, start)
    except CronSimError as exc:
        text = f"cron expression {cron!r} is not valid ({str(exc).lower()}): give {FIELDS}"
        raise InvalidScheduleError(text) from exc


def _instant_of(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return the first instant at which the zone's clock shows `wall`, else the next there is."""
    at = wall.replace(tzinfo=zone).astimezone(UTC)
    if at.astimezone(zone).replace(tzinfo=None) == wall:
        return at
    # The clock jumped over it: the jump is where the local time stops being earlier than `wall`.
    far = timedelta(days=1, hours=2)
    return _first(
        at - far, at + far, lambda instant: instant.astimezone(zone).replace(tzinfo=None) >= wall
    )


def _first(before: datetime, behind: datetime, holds: Callable[[datetime], bool]) -> datetime:
    """Return the whole second between the two from which on it holds."""
    while behind - before > timedelta(seconds=1):
        middle = before + (behind - before) / 2
        if holds(middle):
            behind = middle
        else:
            before = middle
    return behind.replace(microsecond=0)
