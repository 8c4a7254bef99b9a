"""When a cron expression is due: clocks that change, and expressions that mean nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from actors._runtime.schedules.api import next_tick, zone_of
from actors.errors import InvalidScheduleError

BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"


def ticks(cron: str, zone: str, after: str, count: int = 3) -> list[str]:
    """The first ones, by the wall clock of the zone, with the hours that it is ahead of UTC."""
    at, texts = datetime.fromisoformat(after).replace(tzinfo=UTC), []
    for _ in range(count):
        at = next_tick(cron, zone, at)
        texts.append(at.astimezone(zone_of(zone)).isoformat(timespec="minutes"))
    return texts


@pytest.mark.parametrize(
    ("cron", "zone", "after", "expected"),
    [
        # 2026-03-29 in Berlin: 02:00 becomes 03:00.
        (
            "30 2 * * *",
            BERLIN,
            "2026-03-28T02:00",
            ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00", "2026-03-31T02:30+02:00"],
        ),
        (
            "0,30 2 * * *",
            BERLIN,
            "2026-03-28T02:00",
            ["2026-03-29T03:00+02:00", "2026-03-30T02:00+02:00", "2026-03-30T02:30+02:00"],
        ),
        (
            "*/20 2 * * *",
            BERLIN,
            "2026-03-28T02:00",
            ["2026-03-29T03:00+02:00", "2026-03-30T02:00+02:00", "2026-03-30T02:20+02:00"],
        ),
        (
            "0 * * * *",
            BERLIN,
            "2026-03-29T00:30",
            ["2026-03-29T03:00+02:00", "2026-03-29T04:00+02:00", "2026-03-29T05:00+02:00"],
        ),
        # 2026-10-25 in Berlin: 03:00 becomes 02:00.
        (
            "30 2 * * *",
            BERLIN,
            "2026-10-24T02:00",
            ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00", "2026-10-27T02:30+01:00"],
        ),
        (
            "30 2 * * *",
            BERLIN,
            "2026-10-25T00:45",
            ["2026-10-26T02:30+01:00", "2026-10-27T02:30+01:00", "2026-10-28T02:30+01:00"],
        ),
        (
            "*/30 2 * * *",
            BERLIN,
            "2026-10-24T12:00",
            ["2026-10-25T02:00+02:00", "2026-10-25T02:30+02:00", "2026-10-26T02:00+01:00"],
        ),
        (
            "*/30 * * * *",
            BERLIN,
            "2026-10-24T23:45",
            ["2026-10-25T02:00+02:00", "2026-10-25T02:30+02:00", "2026-10-25T02:00+01:00"],
        ),
        (
            "0 9 * * MON-FRI",
            NEW_YORK,
            "2026-03-06T15:00",
            ["2026-03-09T09:00-04:00", "2026-03-10T09:00-04:00", "2026-03-11T09:00-04:00"],
        ),
        # Half an hour only; and a whole day that Samoa left out in 2011.
        (
            "15 2 * * *",
            LORD_HOWE,
            "2026-10-03T00:00",
            ["2026-10-04T02:30+11:00", "2026-10-05T02:15+11:00", "2026-10-06T02:15+11:00"],
        ),
        (
            "0 10 * * *",
            "Pacific/Apia",
            "2011-12-29T12:00",
            ["2011-12-29T10:00-10:00", "2011-12-31T00:00+14:00", "2011-12-31T10:00+14:00"],
        ),
    ],
)
def test_a_time_that_a_clock_leaves_out_or_repeats_fires_once(
    cron: str, zone: str, after: str, expected: list[str]
) -> None:
    """At the next instant that exists, or the first of two; every hour goes by elapsed time."""
    assert ticks(cron, zone, after) == expected


@pytest.mark.parametrize(
    ("zone", "changes"),
    [
        (LORD_HOWE, ["2026-04-05", "2026-10-04"]),
        (BERLIN, ["2026-03-29", "2026-10-25"]),
        ("America/St_Johns", ["2026-03-08", "2026-11-01"]),
        ("Atlantic/Azores", ["2026-03-29", "2026-10-25"]),
    ],
)
@pytest.mark.parametrize(
    "cron", ["7 */6 * * *", "7 * * * *", "*/20 * * * *", "45 */2 * * *", "10 */24 * * *"]
)
def test_an_hour_with_a_star_ticks_whenever_the_clock_shows_it(
    cron: str, zone: str, changes: list[str]
) -> None:
    """Compared with each minute of the days on which a clock changes, by half an hour in one zone."""
    for day in changes:
        start = datetime.fromisoformat(day).replace(tzinfo=UTC) - timedelta(hours=26)
        walls = set(islice(CronSim(cron, naive(start) - timedelta(days=2)), 500))
        minutes = [start + timedelta(minutes=n) for n in range(1, 36 * 60)]
        clock_ticks = [
            minute for minute in minutes if naive(minute.astimezone(zone_of(zone))) in walls
        ]
        found_ticks = [next_tick(cron, zone, start)]
        while len(found_ticks) < len(clock_ticks):
            found_ticks.append(next_tick(cron, zone, found_ticks[-1]))

        assert found_ticks == clock_ticks


def naive(at: datetime) -> datetime:
    """What the clock on the wall shows."""
    return at.replace(tzinfo=None)


@given(
    cron=st.sampled_from(
        ["30 2 * * *", "*/15 * * * *", "7 */6 * * *", "5 1,2,3 * * *", "0 0 1 * *", "59 23 L * *"]
    ),
    zone=st.sampled_from([BERLIN, NEW_YORK, "UTC", LORD_HOWE, "Africa/Casablanca"]),
    after=st.datetimes(datetime(2020, 1, 1), datetime(2035, 1, 1)),  # noqa: DTZ001 - zone is set below
)
def test_ticks_are_after_the_instant_and_do_not_depend_on_where_one_begins(
    cron: str, zone: str, after: datetime
) -> None:
    """From any instant between two ticks the same one comes next."""
    start = after.replace(tzinfo=UTC)
    first = next_tick(cron, zone, start)
    second = next_tick(cron, zone, first)

    assert start < first < second
    assert next_tick(cron, zone, first - timedelta(microseconds=1)) == first
    assert next_tick(cron, zone, first + (second - first) / 2) == second


@pytest.mark.parametrize(
    ("cron", "zone", "problem"),
    [
        ("", "UTC", "wrong number of fields"),
        ("@daily", "UTC", "wrong number of fields"),
        ("61 * * * *", "UTC", "bad minute"),
        ("* 24 * * *", "UTC", "bad hour"),
        ("* * 0 * *", "UTC", "bad day-of-month"),
        ("0 0 30 2 *", "UTC", "bad day-of-month"),
        ("* * * FOO *", "UTC", "bad month"),
        ("* * * * 9", "UTC", "bad day-of-week"),
        ("*/0 * * * *", "UTC", "bad minute"),
        ("* * * * *", "", "not known"),
        ("* * * * *", "Berlin", "not known"),
        ("* * * * *", "../../etc/passwd", "not known"),
        ("* * * * *", "\0", "not known"),
    ],
)
def test_what_means_nothing_is_refused(cron: str, zone: str, problem: str) -> None:
    """With what is wrong with it."""
    with pytest.raises(InvalidScheduleError, match=problem):
        next_tick(cron, zone, datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize("zone", ["UTC", BERLIN, "America/Los_Angeles", "Pacific/Kiritimati"])
@pytest.mark.parametrize("cron", ["7 */6 * * *", "30 2 * * *", "0 0 1 1 *"])
def test_no_tick_comes_behind_the_end_of_the_calendar(cron: str, zone: str) -> None:
    """The last day of the year 9999 is refused as a time that does not come."""
    with pytest.raises(InvalidScheduleError, match="no time that comes"):
        next_tick(cron, zone, datetime(9999, 12, 31, 23, 59, tzinfo=UTC))
