"""Random programs with disturbances: hints, message paths, clocks, coinciding instants, cycles, operators.

The result equals the model's prediction where there is one; else each promise holds.
`CALLBOARD_TROUBLES=20000 CALLBOARD_SEED=7` runs more, other programs.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
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
    cases,
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

COUNT: Final = int(os.environ.get("CALLBOARD_TROUBLES", "240" if IS_SLOW else "80"))
LIMITS: Final = COUNT * 3 // 2
"""An answer and its time limit seldom fall on one instant: fewer programs find no planted fault."""
UNTIL_S: Final = 25.0
"""Virtual time at which programs without a prediction end."""
GRAIN_S: Final = 50e-6
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600 if SEED else 120)]


def unpredicted(  # noqa: PLR0917
    case: Case, seed: int, suspend_after: float, faults: Faults, grain_s: float = 0.0
) -> Observed:
    """A case that the model cannot predict, or not completely."""
    return play(
        case, seed=seed, suspend_after=suspend_after, until=UNTIL_S, faults=faults, grain_s=grain_s
    )


_DOORS: Final = st.lists(st.sampled_from(list(Door)), min_size=1, max_size=3).map(tuple)
UNRELIABLE: Final = st.builds(Faults, hints=SEEDS, doors=_DOORS)


def keeps_order(case: Case, seed: int, suspend_after: float, faults: Faults) -> None:
    """No message is lost, doubled or overtaken."""
    problems = broken_promises(case, unpredicted(case, seed, suspend_after, faults))
    assert not problems, report(problems, case, seed, faults)


@parts
def test_order_needs_no_hints(part: int) -> None:
    """Messages of one sender come in order, whichever process wrote them, also with lost hints."""
    for_each(part, COUNT, keeps_order, mail_cases(), SEEDS, SUSPENDED, UNRELIABLE)


@parts
def test_runs_that_exchange_messages_need_no_hints(part: int) -> None:
    """Messages, children and answers arrive in order, also with lost hints."""
    for_each(part, COUNT // 2, keeps_order, talking_cases(), SEEDS, SUSPENDED, UNRELIABLE)


def is_one_order(case: Case, seed: int, suspend_after: float) -> None:
    """Coinciding events have some order, and all later ones are predicted from it."""
    observed = unpredicted(case, seed, suspend_after, Faults(), GRAIN_S)
    problems = broken_promises(case, observed)
    with suppress(TieError):
        problems = problems or differences_from_all(case, observed)
    assert not problems, report(problems, case, seed)


@parts
def test_a_limit_falls_on_the_instant_of_an_answer(part: int) -> None:
    """The ask has either timed out or its answer; never another outcome."""
    for_each(part, LIMITS, is_one_order, limit_cases(), SEEDS, SUSPENDED)


@parts
def test_programs_with_coinciding_instants_keep_all_promises(part: int) -> None:
    """Programs of several agents in which all times are whole ticks break no promise."""

    def holds(case: Case, seed: int, suspend_after: float) -> None:
        observed = unpredicted(case, seed, suspend_after, Faults(), GRAIN_S)
        problems = broken_promises(case, observed)
        assert not problems, report(problems, case, seed)

    for_each(part, COUNT // 2, holds, talking_cases(even=True), SEEDS, SUSPENDED)


_OFF: Final = st.sampled_from([-3600.0, -3600.0, -0.5, 0.5])
_WRONG: Final = st.tuples(st.integers(0, 16), st.integers(1, 4), _OFF).map(
    lambda step: ((step[0] / 2, step[2]), (step[0] / 2 + step[1], 0.0))
)
STEPPED: Final = st.builds(
    Faults, steps=st.lists(_WRONG, min_size=1, max_size=2).map(lambda steps: sum(steps, ()))
)
SILENT_S: Final = 200.0
"""Longer than any program, shorter than an hour of silence."""


def silences_nothing(case: Case, seed: int, suspend_after: float, faults: Faults) -> None:
    """All runs end in time."""
    seen = unpredicted(case, seed, suspend_after, faults)
    problems = early_timers(seen)
    problems += [f"over after {seen.over_at} s only"] if seen.over_at > SILENT_S else []
    assert not problems, report(problems, case, seed, faults)


@parts
def test_a_temporarily_wrong_clock_blocks_no_run(part: int) -> None:
    """Within seconds after its correction timed waits continue; none ended early by it."""
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
    """Rows are known once, messages of the stream are there, and all runs end."""
    seen = unpredicted(case, seed, suspend_after, faults)
    problems = broken_rows(case, seen)
    problems += [f"over after {seen.over_at} s only"] if seen.over_at > SILENT_S else []
    assert not problems, report(problems, case, seed, faults)


@parts
def test_hosts_continue_after_a_rollback_of_the_rows(part: int) -> None:
    """A database that was rolled back takes over: hosts use its state, not their memory."""
    for_each(part, COUNT // 2, goes_on, TALK_OR_MAIL, SEEDS, SUSPENDED, BACK)


UNREADABLE: Final = st.builds(
    Faults, unreadable=st.lists(st.integers(0, 8), min_size=1, max_size=2, unique=True).map(tuple)
)
"""Fewer times than those after which a run is parked."""


def reads_again(case: Case, seed: int, suspend_after: float, faults: Faults) -> None:
    """Every promise holds, all runs end in time, and none is parked."""
    seen = unpredicted(case, seed, suspend_after, replace(faults, loaded=0))
    problems = [*broken_promises(case, seen), *parked_runs(seen, "unreadable")]
    assert not problems, report(problems, case, seed, faults)


def parked_runs(seen: Observed, reason: str) -> list[str]:
    """Return a text for each run that was parked for a reason, and one if the end came late."""
    entries = [*seen.entries, *(e for other in seen.others.values() for e in other.entries)]
    problems = [
        f"run {entry.run_id} is parked: {entry.payload}"
        for entry in entries
        if entry.kind == "run.parked" and entry.payload.get("reason") == reason
    ]
    return problems + ([f"over after {seen.over_at} s only"] if seen.over_at > SILENT_S else [])


@parts
def test_rows_that_can_be_read_again_park_no_run(part: int) -> None:
    """Rows of a run that cannot be read once or twice harm neither that run nor another one."""
    for_each(part, COUNT // 2, reads_again, TALK_OR_MAIL, SEEDS, SUSPENDED, UNREADABLE)


BETWEEN: Final = st.builds(
    Faults, between=st.lists(st.integers(0, 24), min_size=1, max_size=4, unique=True).map(tuple)
)
"""Fewer deaths than those after which a run is parked."""


def is_predicted(case: Case, seed: int, suspend_after: float, faults: Faults) -> None:
    """The result equals the model's prediction."""
    both = played(case, seed, suspend_after, faults)
    problems = differences(case, both.predicted, both.observed)
    assert not problems, report(problems, case, seed, faults)


def outlives_hosts(case: Case, seed: int, suspend_after: float, faults: Faults) -> None:
    """After one death the result is the model's; after several every promise holds and nothing is parked."""
    faults = replace(faults, called=0, struck=False)
    if len(faults.between) == 1:
        is_predicted(case, seed, suspend_after, faults)
        return
    # From the second death on suspects wait a moment, which the model does not know.
    seen = unpredicted(case, seed, suspend_after, faults)
    problems = [*broken_promises(case, seen), *parked_runs(seen, "poison")]
    assert not problems, report(problems, case, seed, faults)


@parts
def test_a_host_that_dies_between_two_calls_of_code_changes_nothing(part: int) -> None:
    """Nothing durable happens between the calls: the code runs again from its log, to the same end."""
    for_each(part, COUNT // 2, outlives_hosts, cases(), SEEDS, SUSPENDED, BETWEEN)


@parts
def test_a_bad_message_fails_no_other_message(part: int) -> None:
    """A run of several messages that fails is split, if no effect was executed for all of them."""
    deaths = st.one_of(st.builds(Faults), faults_of(DEATHS, 50))
    for_each(part, COUNT // 2, is_predicted, batch_cases(), SEEDS, SUSPENDED, deaths)


@parts
def test_a_refused_question_has_no_effect(part: int) -> None:
    """An ask that closes a cycle is refused to its sender, and is not delivered."""
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
    """Each decision of an operator is applied."""
    seen = unpredicted(case, seed, suspend_after, faults)
    problems = broken_orders(seen.logs, seen.begun, seen.acts)
    assert not problems, report([*problems, str(seen.acts)], case, seed, faults)


@parts
def test_an_operator_decides_once(part: int) -> None:
    """Hosts crash, others take over: each doubt, request and dead letter is decided once, for itself only."""
    for_each(part, COUNT * 2, decides_once, doubtful_cases(), SEEDS, SUSPENDED, ORDERED)
