"""The smallest programs of bugs of the runtime that the model has found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.harness.faulty_store import Faults
from tests.model.drive import play
from tests.model.strategies import finish
from tests.model.verdict import differences, play_both
from tests.properties.corpus import GET, REJECT, SET, attempt, sleep, step
from tests.properties.talking import RECEIVE, ask, ask_child, child, reply, spawn

if TYPE_CHECKING:
    from tests.model.program import Case


def _long(ticks: int) -> dict[str, Any]:
    """Return a step of this many ticks."""
    outcomes = [{"d": ticks, "ok": 1}]
    return {"op": "step", "mode": "idempotent", "outcomes": outcomes}


PAUSE: Final = {"max_retries": 0, "on_exhausted": "pause"}

FOUND: Final[dict[str, Case]] = {
    "an abandoned effect is written once, not at every replay": finish(
        [{"op": "select", "branches": [[step(1)], [step(0, 0), sleep(9)]]}, sleep(1), sleep(1)]
    ),
    "state that a failed attempt left is overwritten once, not at every replay": finish(
        [
            attempt([step("ScriptedError", 1)], [SET, REJECT], []),
            {**SET, "value": 2},
            sleep(1),
            sleep(1),
            GET,
        ]
    ),
    "an instant where a failed attempt had an effect is no divergence": finish(
        [
            attempt([step("ScriptedError", 1)], [step(1), REJECT], []),
            {"op": "now"},
            sleep(1),
            step("ScriptedError", 1),
        ]
    ),
    "a timer of a failed attempt is not that of another sleep at its position": finish(
        [attempt([step("ScriptedError", 1)], [step(1), sleep(1), REJECT], []), sleep(2), sleep(3)]
    ),
    "a signal wakes no parked run": finish(
        [step("ScriptedError"), step(1)], signals=[(3, "go")], retry=PAUSE
    ),
    "a signal cuts no back-off short": finish(
        [step("ScriptedError", 1), step(1)], signals=[(2, "go")], retry={"backoff_s": 4.0}
    ),
    "a run whose last wish to begin was closed still suspends": finish(
        [
            {
                "op": "gather",
                "branches": [
                    [step(1), {"op": "select", "branches": [[SET], [step(2)]]}],
                    [{"op": "signal", "name": "go"}],
                ],
            }
        ]
    ),
    "two branches ask for signals in one instant and both look": finish(
        [
            step(1),
            {
                "op": "scope",
                "branches": [[{"op": "signal", "name": "stop"}]],
                "body": [{"op": "signal", "name": "go"}, sleep(0), {"op": "cancel", "child": 0}],
            },
        ],
        signals=[(0, "go")],
    ),
    "a question for a newborn child does not overtake it": finish(
        [step(1), spawn("p1", None), ask_child()], cast={"p1": [step(1), RECEIVE, reply()]}
    ),
    "a child that is born and orphaned in one turn never executes": finish(
        [step(1), spawn("p1")], cast={"p1": [step(1)]}
    ),
    "a run that is cancelled between two attempts, with children, had no attempt more": finish(
        [spawn("p1"), sleep(4), child("stop_child")],
        cast={"p1": [spawn("p2"), step("ScriptedError", 1)], "p2": [sleep(12)]},
    ),
    "a question leaves while another branch works": finish(
        [{"op": "gather", "branches": [[_long(12)], [sleep(1), ask("p1/a")]]}],
        cast={"p1": [step(2), reply()]},
    ),
    "the end of a run is known to who waits for it while another branch works": finish(
        [
            spawn("p1"),
            {"op": "gather", "branches": [[_long(12)], [child("await_child"), _long(2)]]},
        ],
        cast={"p1": [step(1)]},
    ),
    "a question of which its target never learned is answered by the target's end": finish(
        [spawn("p1"), step(1), {"op": "gather", "branches": [[_long(9)], [sleep(1), ask_child()]]}],
        cast={"p1": [_long(3)]},
    ),
}


@pytest.mark.parametrize("suspend_after", [5.0, 0.0])
@pytest.mark.parametrize("name", FOUND)
def test_a_fixed_bug_does_not_return(name: str, suspend_after: float) -> None:
    """The runtime agrees with the model, in ten interleavings."""
    case = FOUND[name]
    for seed in range(10):
        both = play_both(case, seed=seed, suspend_after=suspend_after, faults=Faults())
        problems = differences(case, both.predicted, both.observed)
        assert not problems, "\n".join([f"seed {seed}", *problems])


@pytest.mark.parametrize("suspend_after", [5.0, 0.0])
def test_no_message_is_lost_in_a_branch_that_loses(suspend_after: float) -> None:
    """A message that a closed receive took is read by the run itself or by the agent's next run."""
    case = finish(
        [
            step("ScriptedError", 1),
            {
                "op": "select",
                "branches": [[{"op": "receive", "d": None}], [{"op": "sleep_until", "d": 0}]],
            },
        ],
        mail=[0],
    )
    for seed in range(20):
        seen = play(case, seed=seed, suspend_after=suspend_after, until=5)
        is_read = "'mail': 0" in str(seen.entries[-1].payload.get("output"))
        assert is_read or seen.unread == [{"mail": 0}], f"seed {seed}"
