"""Which of the events that several answers bring are passed on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from broker._client.connection import MAX_CALLS, EventOrder
from broker._client.responses import MissedError
from broker.client import Event

if TYPE_CHECKING:
    from broker._client.requests import EventKind


def event(kind: EventKind, seq: int, *, attempt: int = 1, **more: Any) -> Event:
    """An event of a run."""
    return Event(kind=kind, run_id="r", seq=seq, attempt=attempt, **more)


def delta(n: int, *, attempt: int = 1, position: str = "1") -> Event:
    """A piece of a model's answer."""
    data = {"n": n, "text": str(n)}
    return event("delta", 0, attempt=attempt, position=position, data=data)


def test_no_entry_comes_twice_and_none_is_missing() -> None:
    """What overlaps is passed once; a gap within an answer means asking again from there."""
    order = EventOrder(0)
    events = [order.take(event("entry", n)) for n in (0, 1)]
    with pytest.raises(MissedError):
        order.take(event("entry", 3))
    assert order.next_seq == 2
    order.begin()
    more = [order.take(event("entry", n)) for n in (1, 2, 3)]
    end = order.take(event("end", 3))

    assert all(events)
    assert [e.seq if e else None for e in more] == [None, 2, 3]
    assert end is not None
    assert order.is_over


def test_numbers_that_the_log_does_not_have_are_not_waited_for() -> None:
    """What begins an answer is what there is; an end behind nothing is the end."""
    order = EventOrder(5)
    order.begin()
    first = order.take(event("entry", 9))
    done = EventOrder(50)
    done.begin()
    end = done.take(event("end", 12))

    assert first is not None
    assert end is not None
    assert done.is_over


def test_an_end_that_overtook_an_entry_is_not_the_end_yet() -> None:
    """The entry before it is asked for first."""
    order = EventOrder(0)
    order.take(event("entry", 0))
    with pytest.raises(MissedError):
        order.take(event("end", 1))

    assert not order.is_over
    assert order.next_seq == 1


def test_void_deltas_are_recognisable() -> None:
    """Those of an attempt that is over are left out; a model call that begins anew is marked."""
    order = EventOrder(0)
    deltas = [
        order.take(d)
        for d in (delta(0), delta(1), delta(0), delta(1), delta(0, attempt=2), delta(2))
    ]

    assert [None if d is None else d.is_restart for d in deltas] == [
        False,
        False,
        True,
        False,
        True,
        None,
    ]
    assert deltas[1] is not None
    assert deltas[1].text == "1"


def test_deltas_of_an_attempt_that_failed_are_void() -> None:
    """An entry of a later attempt ends those of the one before."""
    order = EventOrder(0)
    order.take(event("entry", 0, attempt=2))

    assert order.take(delta(3, attempt=1)) is None


def test_a_run_that_continues_as_new_counts_its_attempts_anew() -> None:
    """Deltas behind that entry are of the new beginning, and of its first attempt."""
    order = EventOrder(0)
    order.take(event("entry", 0, attempt=3))
    order.take(event("entry", 1, attempt=1, name="run.continued"))
    new_delta = order.take(delta(0, attempt=1))

    assert new_delta is not None
    assert not new_delta.is_restart


def test_a_run_of_many_model_calls_does_not_fill_the_memory() -> None:
    """Only the last calls are told apart."""
    order = EventOrder(0)
    for n in range(3 * MAX_CALLS):
        order.take(delta(0, position=str(n)))

    assert len(order._calls) == MAX_CALLS
