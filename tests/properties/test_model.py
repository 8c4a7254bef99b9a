"""The model itself: its predictions for simple programs, checked by hand."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings

from tests.model.model import BOOT, Model, Prediction
from tests.model.program import Case
from tests.model.signs import TieError
from tests.model.strategies import cases, finish
from tests.model.world import Left, Scene
from tests.properties.corpus import REJECT, attempt, once, sleep, step

pytestmark = pytest.mark.timeout(240)


def kinds(prediction: Prediction) -> list[str]:
    """The log as `kind position`."""
    return [f"{line.kind} {line.position}".strip() for line in prediction.log]


@pytest.mark.item(68, 169)
def test_a_failed_attempt_replays_up_to_its_error() -> None:
    """The effect that ended it executes again, earlier effects do not, clean-up executes each time."""
    case = finish([step(1), attempt([step("ValueError", 2)], [step(3), REJECT], [])])

    predicted = Model(case).predict()

    assert kinds(predicted) == [
        "run.started",
        "msg.received in.0",
        "effect.intent 0",
        "effect.result 0",
        "effect.intent 1",
        "effect.result 1",
        "effect.intent 2",
        "effect.result 2",
        "run.attempt_failed",
        "effect.intent 1",
        "effect.result 1",
        "run.completed",
    ]
    assert predicted.executions == {"a@0": 1, "c@0": 2, "d@0": 1}


def test_the_first_to_end_wins_and_the_loser_is_abandoned() -> None:
    """A select closes its losers before it goes on."""
    case = finish([{"op": "select", "branches": [[sleep(5)], [step(7)], [step(0, 0), sleep(9)]]}])

    predicted = Model(case).predict()

    assert kinds(predicted)[-2:] == ["select.won 0", "run.completed"]
    assert predicted.log[-1].data["output"]["results"] in ([[1, [7]]], [[2, [0, None]]])


def test_an_at_most_once_error_ends_the_run() -> None:
    """A retry could change nothing. `RetryAfter` states that the effect did not happen."""
    assert Model(finish([once("ValueError", 1)])).predict().status == "FAILED"
    assert Model(finish([once("RetryAfter", 1)])).predict().status == "COMPLETED"


def test_an_intent_without_a_result_is_in_doubt() -> None:
    """From a log that ends with an at-most-once intent the model parks the run."""
    case = finish([once(1)])
    whole = Model(case).predict().log

    left_run = Left("run", case.root, whole[:3], (BOOT,))

    assert Model(case, scene=Scene(0.0, [left_run], {"a@0": 1})).predict().status == "PARKED"


def test_two_events_at_one_time_are_refused() -> None:
    """Such a case decides nothing."""
    branch = [{"op": "sleep", "label": "a", "d": 1.0}]
    with pytest.raises(TieError):
        Model(Case([{"op": "gather", "label": "b", "branches": [branch, branch]}])).predict()


@pytest.mark.costly
@pytest.mark.item(193)
@settings(
    max_examples=300,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(cases())
def test_no_correct_program_diverges_by_the_rules(case: Case) -> None:
    """The rules never report non-determinism in a deterministic program."""
    try:
        predicted = Model(case).predict()
    except TieError:
        assume(False)
        raise

    assert predicted.log[-1].data.get("reason") != "non_determinism"
