"""Random programs: the runtime agrees with the model, hot, suspended, and after a crash.

`CALLBOARD_PROGRAMS=20000 CALLBOARD_SEED=7` runs more, other programs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import seed as hypothesis_seed
from hypothesis import strategies as st

from tests.harness.faulty_store import Faults, Manner
from tests.harness.slow import IS_SLOW
from tests.model.signs import TieError
from tests.model.strategies import cases
from tests.model.verdict import broken_promises, differences, play_both

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.model.program import Case
    from tests.model.verdict import Played

COUNT: Final = int(os.environ.get("CALLBOARD_PROGRAMS", "300" if IS_SLOW else "60"))
SEED: Final = os.environ.get("CALLBOARD_SEED")
DEATHS: Final = (Manner.DIE_BEFORE, Manner.DIE_AFTER)
ERRORS: Final = (Manner.ERROR_BEFORE, Manner.ERROR_AFTER)
PARTS: Final = 4
"""Each property is split into several short tests."""
SEEDS: Final = st.integers(0, 1_000_000)
SUSPENDED: Final = st.sampled_from([5.0, 0.0])


def faults_of(manners: Sequence[Manner], most: int) -> st.SearchStrategy[Faults]:
    """Return faults at one of the first store calls."""
    return st.builds(Faults, nth=st.integers(0, most), manner=st.sampled_from(manners))


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
    """Return the test with the seed of the environment, if there is one."""
    return test if SEED is None else hypothesis_seed(int(SEED))(test)


def played(case: Case, seed: int, suspend_after: float, faults: Faults | None = None) -> Played:
    """Run the case on both; skip one that decides nothing."""
    try:
        return play_both(case, seed=seed, suspend_after=suspend_after, faults=faults)
    except TieError:
        assume(False)
        raise


def report(problems: list[str], case: Case, seed: int, faults: Faults | None = None) -> str:
    """Return the differences, and the data to reproduce them."""
    head = [f"simulation seed {seed}", str(case)]
    if faults is not None and faults.nth is not None:
        head.append(f"{faults.manner} at call {faults.nth} of {faults.calls}")
    return "\n".join([*head, *problems]) if problems else ""


def for_each(
    part: int, count: int, holds: Callable[..., None], *drawn: st.SearchStrategy[Any]
) -> None:
    """Call `holds` with one part of the random cases; the parts are disjoint."""
    test = settings(profile, max_examples=count // PARTS)(given(*drawn)(holds))
    hypothesis_seed(int(SEED or 1) * PARTS + part)(test)()


parts = pytest.mark.parametrize("part", range(PARTS))
limit = pytest.mark.timeout(3600 if SEED else 120)


@limit
@pytest.mark.slow
@pytest.mark.item(45, 68, 69, 70, 71, 72, 73, 74, 99, 100, 101, 102)
@pytest.mark.item(124, 154, 163, 165, 169, 170, 171, 182, 183, 184, 185, 187, 188, 190, 193)
@parts
def test_the_runtime_agrees_with_the_model(part: int) -> None:
    """Status, output, order, log, state, messages and executions are as predicted, hot and suspended."""

    def holds(case: Case, seed: int) -> None:
        for suspend_after in (5.0, 0.0):
            both = played(case, seed, suspend_after)
            problems = differences(case, both.predicted, both.observed)
            assert not problems, report(problems, case, seed)

    for_each(part, COUNT, holds, cases(), SEEDS)


@limit
@pytest.mark.slow
@pytest.mark.item(80, 172, 186, 189, 485, 490)
@parts
def test_another_host_continues_exactly_where_one_crashed(part: int) -> None:
    """After a crash at any store call the rest is as predicted from the remaining log."""

    def holds(case: Case, seed: int, faults: Faults, suspend_after: float) -> None:
        both = played(case, seed, suspend_after, faults)
        problems = differences(case, both.predicted, both.observed)
        assert not problems, report(problems, case, seed, faults)

    for_each(part, COUNT, holds, cases(), SEEDS, faults_of(DEATHS, 40), SUSPENDED)


@limit
@pytest.mark.slow
@pytest.mark.item(190, 490)
@parts
def test_an_error_of_the_store_breaks_no_promise(part: int) -> None:
    """Each call may fail, with a known or unknown outcome: no effect, message or entry is doubled or lost."""

    def holds(case: Case, seed: int, faults: Faults, suspend_after: float) -> None:
        both = played(case, seed, suspend_after, faults)
        problems = broken_promises(case, both.observed)
        assert not problems, report(problems, case, seed, faults)

    for_each(part, COUNT, holds, cases(), SEEDS, faults_of(ERRORS, 40), SUSPENDED)
