"""Pauses between attempts."""

from __future__ import annotations

from actors._kernel.basics import Backoff


def test_each_pause_is_twice_the_one_before_up_to_the_longest() -> None:
    """What is next can be read without taking it."""
    backoff = Backoff(0.1, 0.5)

    assert backoff.pause_s == 0.1
    assert [backoff.next_s() for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]


def test_a_success_begins_anew() -> None:
    """The next failure waits as briefly as the first."""
    backoff = Backoff()
    backoff.next_s()
    backoff.next_s()
    backoff.reset()

    assert backoff.next_s() == 0.05
