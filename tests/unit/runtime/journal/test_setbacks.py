"""Setbacks: which run is loaded again at once, after which pause, and which is parked."""

from __future__ import annotations

from actors._kernel.runtime.ids import RunId
from actors._runtime.journal.amendments import Setback, Setbacks

RUN = RunId("r")


def test_a_run_that_cannot_be_read_is_parked_after_three_reads_with_growing_pauses() -> None:
    """The pauses have a random part; an entry in between begins the count anew."""
    setbacks = Setbacks(lambda: 0.5)
    unreadable = Setback(4, "log cannot be read", is_unreadable=True)

    assert [setbacks.note(RUN, unreadable) for _ in range(2)] == [1.1, 2.2]
    assert setbacks.refusal(RUN, 4) is None
    assert setbacks.note(RUN, unreadable) == 0.0
    refused = setbacks.refusal(RUN, 4)
    assert refused is not None
    assert refused.reason == "unreadable"
    assert "log cannot be read. Restore or cancel the run" in refused.detail
    assert setbacks.refusal(RUN, 5) is None
    assert setbacks.note(RUN, Setback(5, "again", is_unreadable=True)) == 1.1


def test_what_the_store_refuses_twice_is_parked_and_what_passes_waits_ever_longer() -> None:
    """The first setback of another kind is followed at once by the next try."""
    setbacks = Setbacks()
    assert [setbacks.note(RUN, Setback(1, "too big")) for _ in range(2)] == [1.0, 0.0]
    refused = setbacks.refusal(RUN, 1)
    assert refused is not None
    assert refused.reason == "store_refused"

    setbacks.forget(RUN)
    assert [setbacks.note(RUN, Setback(1)) for _ in range(4)] == [0.0, 1.0, 2.0, 4.0]
    assert setbacks.refusal(RUN, 1) is None
