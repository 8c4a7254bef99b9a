"""Random programs in trouble: hints, doors, clocks, instants that coincide, cycles, operators.

Where the model can say everything it does; else no promise is broken. `CALLBOARD_TROUBLES=20000
CALLBOARD_SEED=7` plays more, other programs.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import strategies as st

from tests.harness.faulty_store import Door, Faults
from tests.harness.slow import IS_SLOW
from tests.model.drive import play
from tests.model.operators import VERBS, broken_orders
from tests.model.promises import early_timers
from tests.model.signs import TieError
from tests.model.strategies import (
    batch_cases,
    cycle_cases,
    doubtful_cases,
    limit_cases,
    mail_cases,
    sleeping_cases,
    talking_cases,
)
from tests.model.verdict import broken_promises, broken_rows, differences, differences_from_all
from tests.properties.test_programs import (
    DEATHS,
    SEED,
    SEEDS,
    SUSPENDED,
    faults_of,
    for_each,
    parts,
    played,
    report,
)

if TYPE_CHECKING:
    from tests.model.drive import Observed
    from tests.model.program import Case

COUNT: Final = int(os.environ.get("CALLBOARD_TROUBLES", "240" if IS_SLOW else "120"))
LIMITS: Final = COUNT * 3 // 2
"""An answer and the end of its time seldom fall on one instant: fewer find no planted fault."""
UNTIL_S: Final = 25.0
"""When those end of which the model says nothing."""
GRAIN_S: Final = 50e-6
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600 if SEED else 120)]


def unpredicted(  # noqa: PLR0917
    case: Case, seed: int, suspend_after: float, faults: Faults, grain_s: float = 0.0
) -> Observed:
    """A case of which the model says nothing, or not everything."""
    return play(
        case, seed=seed, suspend_after=suspend_after, until=UNTIL_S, faults=faults, grain_s=grain_s
    )


_DOORS: Final = st.lists(st.sampled_from(list(Door)), min_size=1, max_size=3).map(tuple)
UNRELIABLE: Final = st.builds(Faults, hints=SEEDS, doors=_DOORS)


def keeps_order(case: Case, seed: int, suspend_after: float, faults: Faults) -> None:
    """Nothing is lost, doubled or overtaken."""
    found = broken_promises(case, unpredicted(case, seed, suspend_after, faults))
    assert not found, report(found, case, seed, faults)


@parts
def test_order_needs_no_hints(part: int) -> None:
    """Messages of one sender come in order, whoever wrote them and whatever became of the hints."""
    for_each(part, COUNT, keeps_order, mail_cases(), SEEDS, SUSPENDED, UNRELIABLE)


@parts
def test_runs_that_talk_need_no_hints(part: int) -> None:
    """Letters, children and answers come through, in order, whatever became of the hints."""
    for_each(part, COUNT // 2, keeps_order, talking_cases(), SEEDS, SUSPENDED, UNRELIABLE)


def is_one_order(case: Case, seed: int, suspend_after: float) -> None:
    """What coincides came in some order, and all that follows is what the model says of it."""
    observed = unpredicted(case, seed, suspend_after, Faults(), GRAIN_S)
    found = broken_promises(case, observed)
    with suppress(TieError):
        found = found or differences_from_all(case, observed)
    assert not found, report(found, case, seed)


@parts
def test_a_limit_falls_on_the_instant_of_an_answer(part: int) -> None:
    """Either the time was over or the answer there: never anything else, an end after a reply least."""
    for_each(part, LIMITS, is_one_order, limit_cases(), SEEDS, SUSPENDED)


@parts
def test_everything_coincides(part: int) -> None:
    """Programs of several agents in which all times are whole ticks break no promise."""

    def holds(case: Case, seed: int, suspend_after: float) -> None:
        observed = unpredicted(case, seed, suspend_after, Faults(), GRAIN_S)
        found = broken_promises(case, observed)
        assert not found, report(found, case, seed)

    for_each(part, COUNT // 2, holds, talking_cases(even=True), SEEDS, SUSPENDED)


_OFF: Final = st.sampled_from([-3600.0, -3600.0, -0.5, 0.5])
_WRONG: Final = st.tuples(st.integers(0, 16), st.integers(1, 4), _OFF).map(
    lambda step: ((step[0] / 2, step[2]), (step[0] / 2 + step[1], 0.0))
)
STEPPED: Final = st.builds(
    Faults, steps=st.lists(_WRONG, min_size=1, max_size=2).map(lambda steps: sum(steps, ()))
)
SILENT_S: Final = 200.0
"""No program takes so long; an hour of silence does."""


def silences_nothing(case: Case, seed: int, suspend_after: float, faults: Faults) -> None:
    """Everything is over in time."""
    seen = unpredicted(case, seed, suspend_after, faults)
    found = early_timers(seen)
    found += [f"over after {seen.over_at} s only"] if seen.over_at > SILENT_S else []
    assert not found, report(found, case, seed, faults)


@parts
def test_a_clock_that_was_wrong_for_a_while_silences_nothing(part: int) -> None:
    """When it is right again, what waits for a time goes on within seconds; nothing was early by it."""
    for_each(part, COUNT, silences_nothing, sleeping_cases(), SEEDS, SUSPENDED, STEPPED)


BACK: Final = st.builds(
    lambda first, ticks: Faults(back=(0.01 + first / 2, 0.01 + (first + ticks) / 2)),
    st.integers(2, 12),
    st.integers(1, 12),
)
TALK_OR_MAIL: Final = st.booleans().flatmap(
    lambda is_mail: mail_cases() if is_mail else talking_cases()
)


def goes_on(case: Case, seed: int, suspend_after: float, faults: Faults) -> None:
    """What the rows know is once, what the stream has is there, and everything has an end."""
    seen = unpredicted(case, seed, suspend_after, faults)
    found = broken_rows(case, seen)
    found += [f"over after {seen.over_at} s only"] if seen.over_at > SILENT_S else []
    assert not found, report(found, case, seed, faults)


@parts
def test_rows_go_back_while_hosts_live(part: int) -> None:
    """A server that is behind takes the database's place: hosts believe it, not what they remember."""
    for_each(part, COUNT // 2, goes_on, TALK_OR_MAIL, SEEDS, SUSPENDED, BACK)


def is_predicted(case: Case, seed: int, suspend_after: float, faults: Faults) -> None:
    """The runtime does what the model says."""
    both = played(case, seed, suspend_after, faults)
    found = differences(case, both.predicted, both.observed)
    assert not found, report(found, case, seed, faults)


@parts
def test_a_bad_message_takes_no_other_one_with_it(part: int) -> None:
    """A run of several messages that fails is taken apart, if nothing was done for all of them."""
    deaths = st.one_of(st.builds(Faults), faults_of(DEATHS, 50))
    for_each(part, COUNT // 2, is_predicted, batch_cases(), SEEDS, SUSPENDED, deaths)


@parts
def test_a_refused_question_has_no_effect(part: int) -> None:
    """What closes a cycle is refused to who asks, and reaches nobody."""
    nothing = st.builds(Faults)
    for_each(part, COUNT, keeps_order, cycle_cases(), SEEDS, SUSPENDED, nothing)


_ORDERS: Final = st.lists(
    st.tuples(st.integers(1, 120).map(lambda n: n / 4), st.sampled_from(VERBS)),
    min_size=2,
    max_size=10,
).map(tuple)
_PLACES: Final = st.lists(st.integers(8, 50), min_size=1, max_size=4)
_INTENTS: Final = st.lists(st.integers(0, 4), min_size=1, max_size=3)
ORDERED: Final = st.builds(
    lambda orders, at, manner: Faults(
        orders=orders, method=at[0], nth=at[1][0], also=tuple(at[1][1:]), manner=manner
    ),
    _ORDERS,
    st.one_of(st.tuples(st.none(), _PLACES), st.tuples(st.just("append"), _INTENTS)),
    st.sampled_from(DEATHS),
)


def decides_once(case: Case, seed: int, suspend_after: float, faults: Faults) -> None:
    """What operators decided is what happened."""
    seen = unpredicted(case, seed, suspend_after, faults)
    found = broken_orders(seen.logs, seen.begun, seen.acts)
    assert not found, report([*found, str(seen.acts)], case, seed, faults)


@parts
def test_an_operator_decides_once(part: int) -> None:
    """Hosts die, others take over: each doubt, request and dead letter is decided once, for itself only."""
    for_each(part, COUNT * 2, decides_once, doubtful_cases(), SEEDS, SUSPENDED, ORDERED)
