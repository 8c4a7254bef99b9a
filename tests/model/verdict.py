"""Plays a case on model and runtime and says in words where they differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.harness.checks import broken_laws, side_by_side
from tests.model.drive import play
from tests.model.model import Model
from tests.model.reading import drawn, same, same_line, settled

if TYPE_CHECKING:
    from tests.model.drive import Observed
    from tests.model.model import Prediction
    from tests.model.program import Case


@dataclass(frozen=True, slots=True)
class Played:
    """One case on both."""

    predicted: Prediction
    observed: Observed


def predict(case: Case, observed: Observed | None = None) -> Prediction:
    """Return the model's prediction; with the values that chance gave the runtime, if it ran.

    Raises:
        TieError: The case decides nothing.
    """
    if observed is None or observed.row is None:
        return Model(case).predict()
    return Model(case, run_id=observed.row.run_id, values=drawn(observed.log)).predict()


def play_both(case: Case, *, seed: int = 0, suspend_after: float = 5.0) -> Played:
    """Play a case without faults.

    Raises:
        TieError: The case decides nothing.
    """
    until = predict(case).ended_at
    observed = play(case, seed=seed, suspend_after=suspend_after, until=until)
    return Played(predict(case, observed), observed)


def differences(predicted: Prediction, observed: Observed) -> list[str]:
    """Return in words what the runtime did otherwise than predicted, and the laws it broke."""
    found = broken_laws(observed.entries)
    left, right = settled(predicted.log), settled(observed.log)
    if len(left) != len(right) or not all(map(same_line, left, right)):
        found.append("the logs differ (first line the model's, ≠ below it the runtime's):")
        found.append(side_by_side(left, right, equal=same_line))
    pairs = {
        "status": (predicted.status, observed.status),
        "state": (predicted.state, observed.state),
        "executions": (predicted.executions, _counts(observed)),
        "unread messages": (sorted(predicted.unread), sorted(observed.unread)),
        "messages sent": (_sent(predicted), _arrived(observed)),
    }
    for what, (mine, its) in pairs.items():
        if not same(mine, its):
            found.append(f"{what}: predicted {mine}, found {its}")
    if observed.ghosts:
        found.append(f"executed by a dead host: {observed.ghosts}")
    return found


def _counts(observed: Observed) -> dict[str, int]:
    counts: dict[str, int] = {}
    for one in observed.begun:
        counts[one.name] = counts.get(one.name, 0) + 1
    return counts


def _sent(predicted: Prediction) -> list[object]:
    sent = [line.data for line in predicted.log if line.kind == "msg.sent"]
    return [[data["message_id"], data["payload"]] for data in sent]


def _arrived(observed: Observed) -> list[object]:
    return [[one.message.id, one.message.payload] for one in observed.sent]
