"""Plays a case on model and runtime and says in words where they differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tests.harness.checks import broken_laws, side_by_side
from tests.model.drive import play
from tests.model.model import Model
from tests.model.reading import drawn, essential, same, same_line, settled

if TYPE_CHECKING:
    from tests.harness.faulty_store import Faults
    from tests.model.drive import Observed
    from tests.model.history import Line
    from tests.model.model import Prediction
    from tests.model.program import Case


class Play(Protocol):
    """Returns what the runtime did with a case; see `drive.play`."""

    def __call__(
        self, case: Case, *, seed: int, suspend_after: float, until: float, faults: Faults | None
    ) -> Observed:
        """See the class."""
        ...


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
    case: Case,
    *,
    seed: int = 0,
    suspend_after: float = 5.0,
    faults: Faults | None = None,
    play: Play = play,
) -> Played:
    """Play a case, with one fault if `faults` says so; `play` says on what.

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
    found += executed_twice(observed)
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


def executed_twice(observed: Observed) -> list[str]:
    """Return the at-most-once effects that executed without an intent of their own, in words.

    Such an effect is one call at one position with one hash; its intent is durable before it
    executes, and another intent needs a result, or a decision, in between.
    """
    found: list[str] = []
    open_intents: set[tuple[str, str]] = set()
    intents: dict[str, int] = {}
    for line in observed.log:
        key = (line.position, str(line.data.get("hash")))
        if line.data.get("mode") == "at_most_once":
            if key in open_intents:
                found.append(f"a second intent at {line.position}, in doubt before")
            open_intents.add(key)
            intents[line.data["name"]] = intents.get(line.data["name"], 0) + 1
        elif line.kind in ("effect.result", "tool.result"):
            open_intents.discard(key)
        elif line.kind == "in_doubt.resolved":
            open_intents = {one for one in open_intents if one[0] != line.position}
    for one in observed.begun:
        durable = sum(kind == "effect.intent" and name == one.name for kind, name in one.log)
        if one.name in intents and durable <= one.number:
            found.append(f"{one.name} executed before its intent was durable")
    return found


def _counts(observed: Observed) -> dict[str, int]:
    counts: dict[str, int] = {}
    for one in observed.begun:
        counts[one.name] = counts.get(one.name, 0) + 1
    return counts


def _sent(predicted: Prediction) -> list[str]:
    return [line.data["message_id"] for line in predicted.log if line.kind == "msg.sent"]


def _arrived(observed: Observed) -> list[str]:
    return [one.message.id for one in observed.sent]
