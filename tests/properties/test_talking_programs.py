"""Random programs of several agents: each run agrees with the model, hot, suspended, after a crash.

`CALLBOARD_TALKING=20000 CALLBOARD_SEED=7` runs more, other programs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pytest

from tests.harness.faulty_store import Faults, Manner
from tests.harness.slow import IS_SLOW
from tests.model.signs import TieError
from tests.model.strategies import talking_cases
from tests.model.verdict import broken_promises, differences, play_both
from tests.properties.talking import TALKING
from tests.properties.test_programs import (
    DEATHS,
    ERRORS,
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
    from tests.model.program import Case

COUNT: Final = int(os.environ.get("CALLBOARD_TALKING", "200" if IS_SLOW else "24"))
STRIDE: Final = 1 if IS_SLOW or SEED else 3
"""The gate crashes a host at every third store call: before the first, after the second."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600 if SEED else 120)]


@pytest.mark.item(82, 83, 84, 85, 90, 92, 126, 129, 130, 234, 237, 239, 244, 245, 246, 247)
@pytest.mark.parametrize("suspend_after", [5.0, 0.0])
@pytest.mark.parametrize("name", TALKING)
def test_a_fixed_program_is_as_predicted(name: str, suspend_after: float) -> None:
    """Each program of the corpus, in ten interleavings."""
    case = TALKING[name]
    for seed in range(10):
        both = play_both(case, seed=seed, suspend_after=suspend_after)
        problems = differences(case, both.predicted, both.observed)
        assert not problems, report(problems, case, seed)


@pytest.mark.item(80, 126, 229, 232, 239, 485)
@pytest.mark.parametrize("manner", DEATHS)
@pytest.mark.parametrize("name", TALKING)
def test_programs_survive_a_crash_at_every_store_call(name: str, manner: Manner) -> None:
    """The next host continues all runs as predicted, and delivers the dead host's outbox."""
    case, nth, is_struck, wrong = TALKING[name], DEATHS.index(manner) % STRIDE, True, []
    while is_struck:
        faults = Faults(nth=nth, manner=manner)
        suspend_after = 5.0 if nth // STRIDE % 2 else 0.0
        try:
            both = play_both(case, suspend_after=suspend_after, faults=faults)
        except TieError:
            problems = []
        else:
            problems = differences(case, both.predicted, both.observed)
        wrong += [report(problems, case, 0, faults)] if problems else []
        is_struck, nth = faults.struck, nth + STRIDE
    assert not wrong, f"{len(wrong)} of {nth // STRIDE} points\n{wrong[-1]}"


@pytest.mark.item(82, 83, 84, 85, 90, 91, 92, 94, 95, 96, 105, 126, 129, 130, 233, 234, 237, 238)
@pytest.mark.item(239, 242, 244, 245, 246, 247, 248)
@parts
def test_runs_that_exchange_messages_agree_with_the_model(part: int) -> None:
    """Every log, output, state, message and execution of every run is as predicted, hot and suspended."""

    def holds(case: Case, seed: int) -> None:
        for suspend_after in (5.0, 0.0):
            both = played(case, seed, suspend_after)
            problems = differences(case, both.predicted, both.observed)
            assert not problems, report(problems, case, seed)

    for_each(part, COUNT, holds, talking_cases(), SEEDS)


@pytest.mark.item(80, 126, 172, 189, 229, 485)
@parts
def test_another_host_continues_all_runs(part: int) -> None:
    """After a crash at any store call the rest of every run is as predicted."""

    def holds(case: Case, seed: int, faults: Faults, suspend_after: float) -> None:
        both = played(case, seed, suspend_after, faults)
        problems = differences(case, both.predicted, both.observed)
        assert not problems, report(problems, case, seed, faults)

    for_each(part, COUNT, holds, talking_cases(), SEEDS, faults_of(DEATHS, 80), SUSPENDED)


@pytest.mark.item(190, 490)
@parts
def test_an_error_of_the_store_breaks_no_promise_between_runs(part: int) -> None:
    """Each call may fail, with a known or unknown outcome: no message, child or answer is doubled or lost."""

    def holds(case: Case, seed: int, faults: Faults, suspend_after: float) -> None:
        both = played(case, seed, suspend_after, faults)
        problems = broken_promises(case, both.observed)
        assert not problems, report(problems, case, seed, faults)

    for_each(part, COUNT, holds, talking_cases(), SEEDS, faults_of(ERRORS, 80), SUSPENDED)
