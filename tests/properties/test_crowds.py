"""Hundreds of random programs of several agents on PostgreSQL and on NATS, many at a time in a runtime.

Each is in a tenant of its own, so that they are independent. `CALLBOARD_TEST_SLOW=1` runs over a
thousand, `CALLBOARD_CROWD=5000 CALLBOARD_SEED=7` more and other ones.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

import pytest

from tests.harness.slow import IS_SLOW
from tests.model.crowd import tenants
from tests.model.drawing import drawn_cases
from tests.model.signs import TieError
from tests.model.strategies import talking_cases
from tests.model.verdict import differences, predict
from tests.properties.stage import opened_stage
from tests.properties.talking import TALKING
from tests.properties.test_programs import SEED, report

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.harness.servers import TestNats, TestPostgres
    from tests.model.broker_ground import Theatre
    from tests.model.program import Case

COUNT: Final = int(os.environ.get("CALLBOARD_CROWD", "1080" if IS_SLOW else "60"))
"""Programs in all. Some decide nothing, because two of their events coincide."""
PARTS: Final = 4
AT_A_TIME: Final = 50
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600 if SEED else 300)]


Crowd: TypeAlias = "list[tuple[Case, float]]"
Refuse: TypeAlias = "Callable[[Sequence[Case], int, float], None]"


@pytest.fixture
def refuse(postgres_server: TestPostgres, nats_server: TestNats) -> Refuse:
    """Run cases on PostgreSQL, then on NATS, too; fail if any result differs from the prediction."""

    def play(cases: Sequence[Case], seed: int, suspend_after: float) -> None:
        crowds = [foretold(cases[n : n + AT_A_TIME]) for n in range(0, len(cases), AT_A_TIME)]
        for brokered in (False, True):
            reports: list[str] = []
            with opened_stage(postgres_server, nats_server, brokered=brokered) as stage:
                for crowd in crowds:
                    reports += wrong(stage, crowd, seed, suspend_after)
            where = "NATS" if brokered else "PostgreSQL"
            assert not reports, (
                f"{len(reports)} of {len(cases)} programs on {where}\n{min(reports, key=len)}"
            )

    return play


def foretold(cases: Sequence[Case]) -> Crowd:
    """Return the cases that decide something, each in a tenant of its own, and when they will end."""
    pairs: Crowd = []
    for case in tenants(cases):
        with suppress(TieError):
            pairs.append((case, predict(case).ended_at))
    return pairs


def wrong(stage: Theatre, crowd: Crowd, seed: int, suspend_after: float) -> list[str]:
    """Return the differences between the runtime and the predictions."""
    cases, untils = [case for case, _ in crowd], [until for _, until in crowd]
    seen = stage.play_crowd(cases, untils, seed=seed, suspend_after=suspend_after)
    reports = []
    for case, observed in zip(cases, seen, strict=True):
        try:
            problems = differences(case, predict(case, observed), observed)
        except TieError:  # with the values drawn in the run two events coincide
            continue
        if problems:
            reports.append(report(problems, case, seed))
    return reports


@pytest.mark.costly
@pytest.mark.item(82, 83, 84, 85, 90, 92, 126, 129, 130, 234, 237, 239, 244, 245, 246, 247)
@pytest.mark.parametrize("suspend_after", [5.0, 0.0])
def test_the_corpus_is_as_predicted(refuse: Refuse, suspend_after: float) -> None:
    """All of it at a time, hot and suspended."""
    refuse(list(TALKING.values()), 0, suspend_after)


@pytest.mark.costly
@pytest.mark.item(82, 83, 84, 85, 90, 91, 92, 94, 95, 96, 105, 126, 129, 130, 233, 234, 237, 238)
@pytest.mark.item(239, 242, 244, 245, 246, 247, 248)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_crowd_agrees_with_the_model(refuse: Refuse, part: int) -> None:
    """Every log, output, state, message and execution of every run is as predicted."""
    seed = int(SEED or 1) * PARTS + part
    cases = drawn_cases(talking_cases(), COUNT // PARTS, seed)
    refuse(cases, seed, 0.0 if part % 2 else 5.0)
