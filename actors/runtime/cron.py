"""When a cron expression is due, by the wall clock of a time zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from actors.errors import ContractError, InvalidScheduleError

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    local = after.astimezone(zone)
    start = local if by_elapsed_time else local.replace(tzinfo=None)
    for found in islice(_times(cron, start), _MOST_PASSED):
        at = found.astimezone(UTC) if by_elapsed_time else _instant_of(found, zone)
        if at > after:
            return at
    raise InvalidScheduleError(
        f"cron expression {cron!r} names no time that comes in the next 50 years"
    )


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
    before, behind = at - timedelta(days=1, hours=2), at + timedelta(days=1, hours=2)
    while behind - before > timedelta(seconds=1):
        middle = before + (behind - before) / 2
        if middle.astimezone(zone).replace(tzinfo=None) < wall:
            before = middle
        else:
            behind = middle
    return behind.replace(microsecond=0)
