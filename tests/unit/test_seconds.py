"""Instants that every clock and database can keep."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from actors._kernel.basics import instant_of

EAST, WEST = timezone(timedelta(hours=14)), timezone(-timedelta(hours=12))


@pytest.mark.parametrize("zone", [EAST, UTC, WEST])
def test_the_ends_of_the_calendar_are_instants_in_every_zone(zone: timezone) -> None:
    """A day inside of them, also where the same instant in UTC is in no year of the calendar."""
    last, first = datetime.max.replace(tzinfo=zone), datetime.min.replace(tzinfo=zone)

    assert instant_of(last) == datetime.max.replace(tzinfo=UTC) - timedelta(days=1)
    assert instant_of(first) == datetime.min.replace(tzinfo=UTC) + timedelta(days=1)
    assert instant_of(last) - instant_of(first) > timedelta(days=3_652_000)
