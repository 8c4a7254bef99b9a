"""The database's clock as a process knows it: what it shows after what it heard. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from persistence._postgres.connection.listener import DRIFT_S, SLEWED_S, Reading, _ShownTime

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
LEGS_S = st.floats(0, 2)


def after(seconds: float) -> datetime:
    """What the database's clock shows at this monotonic time, if nobody sets it."""
    return NOON + timedelta(seconds=seconds)


def shown_after(*readings: Reading) -> _ShownTime:
    """What is shown after all of them."""
    first = readings[0]
    shown_time = _ShownTime(first.now, first.answered_at)
    for reading in readings[1:]:
        shown_time = shown_time.adjust_to(reading)
    return shown_time


@given(st.lists(st.tuples(st.floats(0, 10), LEGS_S, LEGS_S), min_size=1, max_size=20))
def test_it_is_never_ahead_and_behind_by_the_fastest_answer_at_most(
    beats: list[tuple[float, float, float]],
) -> None:
    """Whatever the round trips take, and in whatever order answers of two connections are heard."""
    readings, at = [], 0.0
    for pause_s, there_s, back_s in beats:
        readings.append(Reading(after(at + there_s), at, at + there_s + back_s))
        at += pause_s
    shown_time = shown_after(*readings)
    when = max(reading.answered_at for reading in readings)
    behind_s = (after(when) - shown_time.at(when)).total_seconds()

    assert -DRIFT_S < behind_s < min(back_s for _, _, back_s in beats) + 1e-5


def test_what_it_heard_to_be_due_is_due() -> None:
    """Also when it was behind, by any step."""
    for step_s in (0.01, 0.9, 3600):
        reading = Reading(after(10 + step_s), 9.9, 10)
        assert shown_after(Reading(after(0), 0, 0), reading).at(10) >= reading.now


def test_small_corrections_never_make_it_go_back() -> None:
    """It goes at half its speed until it is right."""
    off_s = SLEWED_S * 0.9
    shown_time = shown_after(Reading(after(0), 0, 0), Reading(after(10 - off_s), 10, 10))
    times = [shown_time.at(10 + tenth / 10) for tenth in range(40)]

    assert times[0] == after(10)
    assert times == sorted(times)
    assert times[-1] == after(10 - off_s + 3.9)


def test_a_step_of_the_databases_clock_is_followed_at_once() -> None:
    """Back by an hour, as when another server takes its place: leases and timers go by it, too."""
    shown_time = shown_after(Reading(after(0), 0, 0), Reading(after(10 - 3600), 10, 10))

    assert shown_time.at(10) == after(10 - 3600)


def test_a_process_that_was_frozen_between_question_and_answer_learns_nothing_wrong() -> None:
    """Its own clock went on meanwhile."""
    shown_time = shown_after(Reading(after(0), 0, 0), Reading(after(10), 10, 70))

    assert shown_time.at(70) == after(70)
