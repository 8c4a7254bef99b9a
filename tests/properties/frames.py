"""Runs random programs of one kind: in memory, with crashes and errors of the store, and on servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.harness.faulty_store import Faults
from tests.harness.slow import IS_SLOW
from tests.model.drawing import drawn_cases
from tests.model.signs import TieError
from tests.model.verdict import broken_promises, differences, play_both
from tests.properties.stage import opened_stage
from tests.properties.test_crowds import foretold, wrong
from tests.properties.test_programs import (
    DEATHS,
    ERRORS,
    PARTS,
    SEED,
    SEEDS,
    SUSPENDED,
    faults_of,
    for_each,
    played,
    report,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hypothesis.strategies import SearchStrategy

    from tests.harness.servers import TestNats, TestPostgres
    from tests.model.program import Case

STRIDE: Final = 1 if IS_SLOW or SEED else 3
"""The gate crashes a host at every third store call: before it, and after it."""


def hold(count: int, cases: SearchStrategy[Case]) -> None:
    """Run this many programs of each part, hot and suspended: all agree with the model."""

    def holds(case: Case, seed: int) -> None:
        for suspend_after in (5.0, 0.0):
            both = played(case, seed, suspend_after)
            problems = differences(case, both.predicted, both.observed)
            assert not problems, report(problems, case, seed)

    for_each(0, count * PARTS, holds, cases, SEEDS)


def hold_in_deaths(count: int, cases: SearchStrategy[Case]) -> None:
    """Run them with a crash of the host at one of the store calls, and a second host that continues."""

    def holds(case: Case, seed: int, faults: Faults, suspend_after: float) -> None:
        both = played(case, seed, suspend_after, faults)
        problems = differences(case, both.predicted, both.observed)
        assert not problems, report(problems, case, seed, faults)

    for_each(1, count * PARTS, holds, cases, SEEDS, faults_of(DEATHS, 60), SUSPENDED)


def hold_in_errors(count: int, cases: SearchStrategy[Case]) -> None:
    """Run programs in which one of the store calls fails, with a known or unknown outcome."""

    def holds(case: Case, seed: int, faults: Faults, suspend_after: float) -> None:
        both = played(case, seed, suspend_after, faults)
        problems = broken_promises(case, both.observed)
        assert not problems, report(problems, case, seed, faults)

    for_each(2, count * PARTS, holds, cases, SEEDS, faults_of(ERRORS, 60), SUSPENDED)


def die_everywhere(case: Case) -> None:
    """Run a program repeatedly with a crash of its host before and after each store call."""
    nth, is_struck, wrong_ones = 0, True, []
    while is_struck:
        for manner in DEATHS:
            faults = Faults(nth=nth, manner=manner)
            try:
                both = play_both(case, suspend_after=(0.0, 5.0)[nth // STRIDE % 2], faults=faults)
            except TieError:
                problems = []
            else:
                problems = differences(case, both.predicted, both.observed)
            wrong_ones += [report(problems, case, 0, faults)] if problems else []
            is_struck = faults.struck
        nth += STRIDE
    assert not wrong_ones, f"{len(wrong_ones)} of {nth // STRIDE * 2} deaths\n{wrong_ones[-1]}"


def crowd(
    servers: tuple[TestPostgres, TestNats],
    fixed: Iterable[Case],
    cases: SearchStrategy[Case],
    count: int,
    *,
    brokered: bool,
) -> None:
    """Run many programs at a time on real servers: one half is evicted while it waits, the other stays."""
    seed: Any = int(SEED or 1) + brokered
    drawn = drawn_cases(cases, count, seed)
    halves = {0.0: [*fixed, *drawn[::2]], 5.0: drawn[1::2]}
    with opened_stage(*servers, brokered=brokered) as stage:
        reports = [
            r
            for suspend_after, half in halves.items()
            for r in wrong(stage, foretold(half), seed, suspend_after)
        ]
    assert not reports, min(reports, key=len)
