"""When a cron expression is due, by the wall clock of a time zone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import Final
from zoneinfo import ZoneInfo

from actors.errors import ContractError, InvalidScheduleError

FIELDS: Final = "minute hour day-of-month month day-of-week, or six fields with the second first"
_FROM_HOUR: Final = 4
"""Hour, day, month and day of week: the last four fields of an expression."""

_MOST_PASSED: Final = 90_000
"""More ticks than a zone's wall clock can repeat when it goes back, one a second."""


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
        end = next((one for one in ends if _offset(zone, one) != offset), None)
        if end is None:
            return at
        start = _first(start, end, lambda one, offset=offset: _offset(zone, one) != offset)  # type: ignore[misc]
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
    return _first(at - far, at + far, lambda one: one.astimezone(zone).replace(tzinfo=None) >= wall)


def _first(before: datetime, behind: datetime, holds: Callable[[datetime], bool]) -> datetime:
    """Return the whole second between the two from which on it holds."""
    while behind - before > timedelta(seconds=1):
        middle = before + (behind - before) / 2
        if holds(middle):
            behind = middle
        else:
            before = middle
    return behind.replace(microsecond=0)
