"""Random programs of several agents on PostgreSQL, with and without NATS, many at a time in one runtime.

Each is in a tenant of its own, so none of them meets another. `CALLBOARD_CROWD=5000 CALLBOARD_SEED=7`
plays more, other programs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pytest

from tests.model.crowd import tenants
from tests.model.drawing import drawn_cases
from tests.model.signs import TieError
from tests.model.strategies import talking_cases
from tests.model.verdict import differences, predict
from tests.properties.stage import opened_stage
from tests.properties.talking import TALKING
from tests.properties.test_programs import SEED, report

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.harness.servers import TestNats, TestPostgres
    from tests.model.broker_ground import Theatre
    from tests.model.program import Case

COUNT: Final = int(os.environ.get("CALLBOARD_CROWD", "200"))
PARTS: Final = 4
AT_A_TIME: Final = 50
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600 if SEED else 120),
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
]


@pytest.fixture(scope="module", params=["postgres", "nats"])
def stage(
    request: pytest.FixtureRequest, postgres_server: TestPostgres, nats_server: TestNats
) -> Iterator[Theatre]:
    """Where the cases of this module are played."""
    with opened_stage(postgres_server, nats_server, brokered=request.param == "nats") as stage:
        yield stage


def wrong(stage: Theatre, cases: Sequence[Case], seed: int, suspend_after: float) -> list[str]:
    """What the runtime did otherwise than predicted with any of the cases."""
    fair: list[Case] = []
    untils: list[float] = []
    for case in tenants(cases):
        try:
            untils.append(predict(case).ended_at)
        except TieError:
            continue
        fair.append(case)
    seen = stage.play_crowd(fair, untils, seed=seed, suspend_after=suspend_after)
    reports = []
    for case, observed in zip(fair, seen, strict=True):
        found = differences(case, predict(case, observed), observed)
        if found:
            reports.append(report(found, case, seed))
    return reports


def refuse(stage: Theatre, cases: Sequence[Case], seed: int, suspend_after: float) -> None:
    """Fail if anything is otherwise than predicted."""
    found: list[str] = []
    for n in range(0, len(cases), AT_A_TIME):
        found += wrong(stage, cases[n : n + AT_A_TIME], seed, suspend_after)
    assert not found, f"{len(found)} of {len(cases)} programs\n{min(found, key=len)}"


@pytest.mark.item(82, 83, 84, 85, 90, 92, 126, 129, 130, 234, 237, 239, 244, 245, 246, 247)
@pytest.mark.parametrize("suspend_after", [5.0, 0.0])
def test_the_corpus_is_as_predicted(stage: Theatre, suspend_after: float) -> None:
    """All of it at a time, hot and suspended."""
    refuse(stage, list(TALKING.values()), 0, suspend_after)


@pytest.mark.item(82, 83, 84, 85, 90, 91, 92, 94, 95, 96, 105, 126, 129, 130, 233, 234, 237, 238)
@pytest.mark.item(239, 242, 244, 245, 246, 247, 248)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_crowd_does_what_the_model_says(stage: Theatre, part: int) -> None:
    """Every log, output, state, message and execution of every run is as predicted."""
    seed = int(SEED or 1) * PARTS + part
    cases = drawn_cases(talking_cases(), COUNT // PARTS, seed)
    refuse(stage, cases, seed, 0.0 if part % 2 else 5.0)
