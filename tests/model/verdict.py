"""Plays a case on model and runtime and says in words where they differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.harness.checks import broken_laws, side_by_side
from tests.model.drive import play
from tests.model.model import Model
from tests.model.reading import drawn, essential, same, same_line, settled

if TYPE_CHECKING:
    from tests.harness.faulty_store import Faults
    from tests.model.agent import Execution
    from tests.model.drive import Observed
    from tests.model.history import Line
    from tests.model.model import Prediction
    from tests.model.program import Block, Case


@dataclass(frozen=True, slots=True)
class Played:
    """One case on both."""

    predicted: Prediction
    observed: Observed


def predict(case: Case, observed: Observed | None = None) -> Prediction:
    """Return the model's prediction; from where the run went on, if there was a fault.

    What chance gave the runtime is taken from its log.

    Raises:
        TieError: The case decides nothing.
    """
    if observed is None or observed.row is None:
        return Model(case).predict()
    run_id, values, anchor = observed.row.run_id, drawn(observed.log), observed.anchor
    if anchor is None:
        return Model(case, run_id=run_id, values=values).predict()
    return Model(
        case,
        run_id=run_id,
        values=values,
        log=essential(anchor.log),
        now=anchor.at,
        executions=anchor.counts,
    ).predict()


def play_both(
    case: Case, *, seed: int = 0, suspend_after: float = 5.0, faults: Faults | None = None
) -> Played:
    """Play a case, with one fault if `faults` says so.

    Raises:
        TieError: The case decides nothing.
    """
    until = predict(case).ended_at
    observed = play(case, seed=seed, suspend_after=suspend_after, until=until, faults=faults)
    return Played(predict(case, observed), observed)


def differences(case: Case, predicted: Prediction, observed: Observed) -> list[str]:
    """Return in words what the runtime did otherwise than predicted, and the laws it broke."""
    found = broken_promises(case, observed)
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
    return found


def broken_promises(case: Case, observed: Observed) -> list[str]:
    """Return the promises broken that hold whatever fails and however long it takes."""
    found = broken_laws(observed.entries)
    counts = _counts(observed)
    found += [
        f"{one.name} executed {counts[one.name]} times, at most once was promised"
        for one in observed.begun
        if one.name.partition("@")[0] in once_only(case.program)
        and one.number > _repeats(one, case)
    ]
    found += [f"{one.name} executed by a dead host" for one in observed.ghosts]
    read = [line.data["payload"]["mail"] for line in observed.log if _is_mail(line)]
    if sorted([*read, *observed.unread]) != list(range(len(case.mail))):
        found.append(
            f"of {len(case.mail)} messages {read} were received, {observed.unread} came later"
        )
    if observed.stuck:
        found.append(f"{observed.stuck} messages wait though the agent is free")
    if len(set(_arrived(observed))) != len(observed.sent):
        found.append("a message was sent twice")
    if observed.refolded != observed.row:
        found.append(f"the row is {observed.row}, its log says {observed.refolded}")
    return found


def _is_mail(line: Line) -> bool:
    return line.kind == "msg.received" and "payload" in line.data


def _repeats(one: Execution, case: Case) -> int:
    """How often an at-most-once effect may have been repeated: it said that it did not happen."""
    label = one.name.partition("@")[0]
    outcomes = [case.outcome(label, n) for n in range(one.number)]
    return sum(outcome.get("err") == "RetryAfter" for outcome in outcomes)


def once_only(block: Block) -> set[str]:
    """Return the labels of the at-most-once effects of a program."""
    labels: set[str] = set()
    for stmt in block:
        if stmt.get("mode") == "at_most_once":
            labels.add(stmt["label"])
        inner = [stmt.get(key, []) for key in ("body", "handler", "final", "then", "else")]
        for part in [*inner, *stmt.get("branches", [])]:
            labels |= once_only(part)
    return labels


def _counts(observed: Observed) -> dict[str, int]:
    counts: dict[str, int] = {}
    for one in observed.begun:
        counts[one.name] = counts.get(one.name, 0) + 1
    return counts


def _sent(predicted: Prediction) -> list[str]:
    return [line.data["message_id"] for line in predicted.log if line.kind == "msg.sent"]


def _arrived(observed: Observed) -> list[str]:
    return [one.message.id for one in observed.sent]
