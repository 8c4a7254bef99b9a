"""Plays a case on model and runtime and describes the differences."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tests.harness.checks import broken_laws, side_by_side
from tests.model.drive import play
from tests.model.ground import SENDER
from tests.model.model import Model, predictions
from tests.model.promises import broken_talk, out_of_order
from tests.model.reading import drawn, essential, same, same_line, settled
from tests.model.signs import TieError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tests.harness.faulty_store import Faults
    from tests.model.drive import Observed
    from tests.model.history import Line
    from tests.model.model import Prediction
    from tests.model.program import Case
    from tests.model.sessions import Session


class Play(Protocol):
    """Returns the runtime's results for a case; see `drive.play`."""

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
    """Return the model's prediction, from the state of the reload if there was a fault.

    Random values of the runtime are taken from its logs.

    Raises: TieError: The case decides nothing.
    """
    return _model(case, observed, None).predict()


def _model(case: Case, observed: Observed | None, order: Sequence[int] | None) -> Model:
    if observed is None or observed.row is None:
        return Model(case, order=order)
    run_id, anchor = observed.row.run_id, observed.anchor
    values = {str(run_id): drawn(observed.log)}
    values |= {str(other): drawn(essential(o.entries)) for other, o in observed.others.items()}
    if anchor is None:
        return Model(case, run_id=run_id, values=values, order=order)
    if not anchor.is_fair:
        raise TieError("posts were under way when the fault came")
    if not anchor.scene.runs:
        return Model(case, run_id=run_id, values=values, now=anchor.at, order=order)
    return Model(case, scene=anchor.scene, values=values, order=order)


def differences_from_all(case: Case, observed: Observed) -> list[str]:
    """Return the differences from the nearest prediction, over all orders of coinciding events.

    Raises: TieError: The case decides nothing.
    """
    all_found: list[list[str]] = []
    for predicted in predictions(lambda order: _model(case, observed, order)):
        all_found.append(differences(case, predicted, observed))
        if not all_found[-1]:
            return []
    return min(all_found, key=len)


def play_both(
    case: Case,
    *,
    seed: int = 0,
    suspend_after: float = 5.0,
    faults: Faults | None = None,
    play: Play = play,
) -> Played:
    """Play a case, with one fault if `faults` has one; `play` selects the ground.

    Raises: TieError: The case decides nothing.
    """
    until = predict(case).ended_at
    observed = play(case, seed=seed, suspend_after=suspend_after, until=until, faults=faults)
    return Played(predict(case, observed), observed)


def differences(case: Case, predicted: Prediction, observed: Observed) -> list[str]:
    """Return the differences from the prediction, and the violated laws, as text."""
    problems = broken_promises(case, observed)
    problems += _unlike(predicted.log, observed.log, "")
    pairs = {
        "status": (predicted.status, observed.status),
        "state": (predicted.state, observed.state),
        "executions": (predicted.executions, _counts(observed)),
        "unread messages": (_sorted(predicted.unread), _sorted(observed.unread)),
        "messages sent": (sorted(_sent(case, predicted)), sorted(_arrived(observed))),
        "runs": (sorted(predicted.runs), sorted(observed.others)),
        "states": (predicted.states, {a: state for a, state in observed.states.items() if state}),
        "sessions": (texts_of(predicted.sessions), texts_of(observed.sessions)),
        "memories": (predicted.shelf.texts, observed.shelf.texts),
        "waiting": (
            predicted.waiting,
            {
                a: [mail_row.message.id for mail_row in mail]
                for a, mail in observed.waiting.items()
                if mail
            },
        ),
    }
    for what, (mine, its) in pairs.items():
        if not same(mine, its):
            problems.append(f"{what}: predicted {mine}, found {its}")
    for run_id, other in observed.others.items():
        predicted_run = predicted.runs.get(run_id)
        head = f"run {run_id} of {other.row.agent_id}"
        if predicted_run is None:
            lines = "\n".join(map(str, essential(other.entries)))
            problems.append(f"{head}: {other.status}, not predicted:\n{lines}")
            continue
        problems += _unlike(predicted_run.log, essential(other.entries), f"{head}: ")
        if predicted_run.status != other.status:
            problems.append(f"{head}: predicted {predicted_run.status}, found {other.status}")
    return problems


def texts_of(sessions: dict[str, Session]) -> dict[str, list[str]]:
    """Return conversations as text."""
    return {
        key: [*map(str, session.turns), f"cut {session.upto} {session.summary}"]
        for key, session in sorted(sessions.items())
    }


def _sorted(values: Iterable[Any]) -> list[Any]:
    return sorted(values, key=repr)


def _unlike(predicted: Sequence[Line], log: Sequence[Line], head: str) -> list[str]:
    model_lines, log_lines = settled(predicted), settled(log)
    if len(model_lines) == len(log_lines) and all(map(same_line, model_lines, log_lines)):
        return []
    return [
        f"{head}the logs differ (first line the model's, ≠ below it the runtime's):",
        side_by_side(model_lines, log_lines, equal=same_line),
    ]


def broken_promises(case: Case, observed: Observed) -> list[str]:
    """Return the violated laws that hold with any fault and any duration."""
    problems = executed_twice(observed)
    problems += [f"{execution.name} executed by a dead host" for execution in observed.ghosts]
    problems += [f"left in the host: {leftover}" for leftover in observed.leftovers]
    return problems + broken_rows(case, observed)


def broken_rows(case: Case, observed: Observed) -> list[str]:
    """Return the violated laws that concern rows alone, not their surroundings."""
    problems = broken_laws(observed.entries)
    for run_id, other in observed.others.items():
        head = f"run {run_id} of {other.row.agent_id}: "
        problems += [f"{head}{law}" for law in broken_laws(other.entries)]
        if other.refolded != other.row:
            problems.append(f"{head}the row is {other.row}, its log says {other.refolded}")
    problems += _from_outside(case, observed)
    problems += broken_talk(observed)
    if observed.stuck:
        problems.append(f"{observed.stuck} messages wait though the agent is free")
    if len(set(_arrived(observed))) != len(observed.sent):
        problems.append("a message was sent twice")
    if observed.refolded != observed.row:
        problems.append(f"the row is {observed.row}, its log says {observed.refolded}")
    return problems


def _from_outside(case: Case, observed: Observed) -> list[str]:
    """What outsiders sent is there once and in order; who receives may have mail before a run that waits."""
    times = {"mail": case.mail, "asked": case.asked}

    def sent(messages: Iterable[tuple[str, Any]]) -> list[tuple[str, int]]:
        payloads = [
            payload
            for sender, payload in messages
            if sender == SENDER and isinstance(payload, dict)
        ]
        return [(what, n) for payload in payloads for what, n in payload.items() if what in times]

    got: list[Any] = [e.payload["message"] for e in observed.entries if e.kind == "msg.received"]
    read = sent((message["sender"], message["payload"]) for message in got)
    later = sent(zip(observed.senders, observed.unread, strict=True))
    if sorted(read + later) != sorted((x, n) for x, at in times.items() for n in range(len(at))):
        return [f"of what was sent at {times} {read} was received, {later} came later"]
    mail = [item for item in read + later if item[0] == "mail"]
    if any(out_of_order([times[what][n] for what, n in these]) for these in (mail, later)):
        return [f"what was sent at {times} came in another order: {read}, later {later}"]
    return []


def executed_twice(observed: Observed) -> list[str]:
    """Return the at-most-once effects that executed without an intent of their own, in words.

    Such an effect is one call at one position with one hash; its intent is durable before it
    executes, and another intent needs a result, or a decision, in between.
    """
    problems: list[str] = []
    open_intents: set[tuple[str, str]] = set()
    intents: dict[str, int] = {}
    logs = {str(observed.row.run_id): observed.log} if observed.row is not None else {}
    logs |= {str(run_id): essential(other.entries) for run_id, other in observed.others.items()}
    for run_id, line in [(run_id, line) for run_id, log in logs.items() for line in log]:
        key = (f"{run_id} {line.position}", str(line.data.get("hash")))
        if line.data.get("mode") == "at_most_once":
            if key in open_intents:
                problems.append(f"a second intent at {line.position}, in doubt before")
            open_intents.add(key)
            intents[line.data["name"]] = intents.get(line.data["name"], 0) + 1
        elif line.kind in ("effect.result", "tool.result"):
            open_intents.discard(key)
        elif line.kind == "in_doubt.resolved":
            open_intents = {intent for intent in open_intents if intent[0] != key[0]}
    for execution in observed.begun:
        durable = sum(
            kind == "effect.intent" and name == execution.name for kind, name in execution.log
        )
        if execution.name in intents and durable <= execution.number:
            problems.append(f"{execution.name} executed before its intent was durable")
    return problems


def executed_again(observed: Observed) -> list[str]:
    """Return the steps that executed more often than they were begun, where no host died, in words.

    An idempotent step that an attempt abandoned begins again under its intent in the next attempt.
    """
    begun = Counter[str]()
    for log in [observed.entries, *(other.entries for other in observed.others.values())]:
        idempotent: dict[str, str] = {}
        for entry in log:
            name = str(entry.payload.get("name"))
            if entry.kind == "effect.intent":
                begun[name] += 1
                if entry.payload.get("mode") == "idempotent":
                    idempotent[entry.position] = name
            elif entry.kind == "effect.abandoned" and entry.position in idempotent:
                begun[idempotent[entry.position]] += 1
    return [
        f"{name} executed {n} times, begun {begun[name]} times"
        for name, n in _counts(observed).items()
        if name in begun and n > begun[name]
    ]


def _counts(observed: Observed) -> dict[str, int]:
    counts: dict[str, int] = {}
    for execution in observed.begun:
        counts[execution.name] = counts.get(execution.name, 0) + 1
    return counts


def _sent(case: Case, predicted: Prediction) -> list[str]:
    logs = [predicted.log, *(run.log for run in predicted.runs.values())]
    lines = [line for log in logs for line in log if line.kind == "msg.sent"]
    return [line.data["message_id"] for line in lines if line.data["target"] == case.sink]


def _arrived(observed: Observed) -> list[str]:
    return [mail_row.message.id for mail_row in observed.sent]
