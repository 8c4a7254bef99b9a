"""Random programs: the runtime does what the model says, hot, suspended, and after a crash.

`CALLBOARD_PROGRAMS=20000 CALLBOARD_SEED=7` runs more, other programs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st

from tests.harness.faulty_store import Faults, Manner
from tests.model.signs import TieError
from tests.model.strategies import cases
from tests.model.verdict import broken_promises, differences, play_both

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.model.program import Case
    from tests.model.verdict import Played

COUNT: Final = int(os.environ.get("CALLBOARD_PROGRAMS", "500"))
SEED: Final = os.environ.get("CALLBOARD_SEED")
# A host that dies leaves coroutines behind that never began.
pytestmark = [
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

DEATHS: Final = (Manner.DIE_BEFORE, Manner.DIE_AFTER)
ERRORS: Final = (Manner.ERROR_BEFORE, Manner.ERROR_AFTER)

profile = settings(
    max_examples=COUNT,
    deadline=None,
    database=None,
    derandomize=SEED is None,
    print_blob=False,
    report_multiple_bugs=False,
    phases=(Phase.explicit, Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)


def seeded(test: Callable[..., None]) -> Callable[..., None]:
    """The test with the seed of the environment, if there is one."""
    return test if SEED is None else hypothesis_seed(int(SEED))(test)


def played(case: Case, seed: int, suspend_after: float, faults: Faults | None = None) -> Played:
    """The case on both; one that decides nothing is left out."""
    try:
        return play_both(case, seed=seed, suspend_after=suspend_after, faults=faults)
    except TieError:
        assume(False)
        raise


def report(found: list[str], case: Case, seed: int, faults: Faults | None = None) -> str:
    """What differs, with what is needed to see it again."""
    head = [f"simulation seed {seed}", str(case)]
    if faults is not None and faults.nth is not None:
        head.append(f"{faults.manner} at call {faults.nth} of {faults.calls}")
    return "\n".join([*head, *found]) if found else ""


@pytest.mark.timeout(3600 if SEED else 240)
@pytest.mark.slow
@pytest.mark.item(45, 68, 69, 70, 71, 72, 73, 74, 99, 100, 101, 102)
@pytest.mark.item(124, 154, 163, 165, 169, 170, 171, 182, 183, 184, 185, 187, 188, 190, 193)
@seeded
@profile
@given(cases(), st.integers(0, 1_000_000))
def test_the_runtime_does_what_the_model_says(case: Case, seed: int) -> None:
    """Status, output, order, log, state, messages and executions are as predicted, hot and suspended."""
    for suspend_after in (5.0, 0.0):
        both = played(case, seed, suspend_after)
        found = differences(case, both.predicted, both.observed)
        assert not found, report(found, case, seed)


@pytest.mark.timeout(3600 if SEED else 240)
@pytest.mark.slow
@pytest.mark.item(80, 172, 186, 189, 485, 490)
@seeded
@profile
@given(
    cases(),
    st.integers(0, 1_000_000),
    st.builds(Faults, nth=st.integers(0, 40), manner=st.sampled_from(DEATHS)),
    st.sampled_from([5.0, 0.0]),
)
def test_another_host_goes_on_exactly_where_one_died(
    case: Case, seed: int, faults: Faults, suspend_after: float
) -> None:
    """After a death at any store call the rest is what the model says of the log left behind."""
    both = played(case, seed, suspend_after, faults)
    found = differences(case, both.predicted, both.observed)
    assert not found, report(found, case, seed, faults)


@pytest.mark.timeout(3600 if SEED else 240)
@pytest.mark.slow
@pytest.mark.item(190, 490)
@seeded
@profile
@given(
    cases(),
    st.integers(0, 1_000_000),
    st.builds(Faults, nth=st.integers(0, 40), manner=st.sampled_from(ERRORS)),
    st.sampled_from([5.0, 0.0]),
)
def test_an_error_of_the_store_breaks_no_promise(
    case: Case, seed: int, faults: Faults, suspend_after: float
) -> None:
    """Whatever call fails, known or unknown outcome: no effect, message or entry is doubled or lost."""
    both = played(case, seed, suspend_after, faults)
    found = broken_promises(case, both.observed)
    assert not found, report(found, case, seed, faults)
