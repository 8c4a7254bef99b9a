"""Laws of runs that communicate, with any fault and any duration."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from actors._kernel.agent.transcript import turn_id
from actors._kernel.runtime.effects import args_hash
from tests.harness.checks import received

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from actors._kernel.runtime.log_entry import RunLogEntry
    from actors._kernel.runtime.rows import RunRow
    from tests.model.drive import Observed

MOST_AT_ONCE: Final = 4
"""Maximum number of turns that a program appends in one call."""


def broken_talk(observed: Observed) -> list[str]:
    """Return the violated laws between runs, as text."""
    logs: dict[str, list[RunLogEntry]] = {
        key: other.entries for key, other in observed.others.items()
    }
    if observed.row is not None:
        logs[observed.row.run_id] = observed.entries
    return [
        *_mail(observed, logs),
        *_order(observed, logs),
        *_children(observed, logs),
        *_answers(observed, logs),
        *_replies(observed, logs),
        *_refused(observed, logs),
        *_conversations(observed, logs),
        *_memories(observed, logs),
    ]


def _memories(observed: Observed, logs: dict[str, list[RunLogEntry]]) -> list[str]:
    """Versions follow each other, and each is of one recorded call of a run."""
    problems: list[str] = []
    begun = {
        (run_id, entry.position) for run_id, log in logs.items() for entry in log if entry.position
    }
    calls: Counter[tuple[str, str]] = Counter()
    for slot, versions in observed.shelf.entries.items():
        numbers = [version.version for version in versions]
        if numbers != [*range(1, len(numbers) + 1)]:
            problems.append(f"versions of {slot}: {numbers}")
        calls.update((version.run, version.turn) for version in versions)
    problems += [f"the call {call} kept {n} memories" for call, n in calls.items() if n > 1]
    return problems + [f"memory of {call}, which no log has" for call in calls.keys() - begun]


def _conversations(observed: Observed, logs: dict[str, list[RunLogEntry]]) -> list[str]:
    """Turns stand in their order, each once, each of a recorded call, and none is missing."""
    problems: list[str] = []
    ids = Counter(turn.id for session in observed.sessions.values() for turn in session.turns)
    problems += [f"turn {id_} stands {n} times" for id_, n in ids.items() if n > 1]
    for key, session in observed.sessions.items():
        ordinals = [turn.ordinal for turn in session.turns]
        if ordinals != sorted(set(ordinals)) or (observed.keeps and ordinals[-1] >= len(ordinals)):
            problems.append(f"ordinals of {key}: {ordinals}")
    if not observed.keeps:
        return problems
    for run_id, log in logs.items():
        for entry in log:
            effect, position = entry.payload.get("effect"), entry.position
            is_call = entry.kind == "llm.call" and "~" not in position
            if not is_call and effect != "history.append":
                continue
            call_key = f"{position} {entry.payload['hash']}"
            many = 1 + (is_call and entry.payload["status"] == "ok")
            turn_ids = [turn_id(run_id, call_key, n) for n in range(MOST_AT_ONCE)]
            problems += [
                f"turn {n} of {position} is missing" for n in range(many) if turn_ids[n] not in ids
            ]
            for expected_id in turn_ids if not is_call else turn_ids[:many]:
                ids[expected_id] = 0
    return problems + [f"turn {id_} is of no recorded call" for id_, n in ids.items() if n]


def early_timers(observed: Observed) -> list[str]:
    """Return the timers that fired before their time, by their own clock."""
    logs = [observed.entries, *(other.entries for other in observed.others.values())]
    fired = [entry for log in logs for entry in log if entry.kind == "timer.fired"]
    return [
        f"{entry.run_id}: the timer at {entry.position} fired at {entry.ts}, not {entry.payload['at']}"
        for entry in fired
        if entry.ts.isoformat() < str(entry.payload["at"])
    ]


def out_of_order(numbers: Sequence[float]) -> bool:
    """Return whether messages of one sender came in another order than they were accepted."""
    return any(earlier > later for earlier, later in pairwise(numbers))


def _order(observed: Observed, logs: dict[str, list[RunLogEntry]]) -> list[str]:
    """Each agent gets another one's messages in the order of the sends."""
    sent: dict[tuple[str, str], list[str]] = {}
    got: dict[tuple[str, str], list[str]] = {}
    rows = [other.row for other in observed.others.values()]
    for row in sorted([*rows, *([observed.row] if observed.row else [])], key=_started(logs)):
        me, log = str(row.agent_id), logs[row.run_id]
        for entry in log:
            if entry.kind in ("msg.sent", "ask.sent"):
                target = str(entry.payload["target"])
                sent.setdefault((f"agent:{me}", target), []).append(
                    str(entry.payload["message_id"])
                )
        for entry in received(log):
            message: Any = entry.payload["message"]
            got.setdefault((message["sender"], message["target"]), []).append(message["id"])
    problems: list[str] = []
    for (sender, target), ids in got.items():
        order = sent.get((sender, target), [])
        if out_of_order([order.index(id_) for id_ in ids if id_ in order]):
            problems.append(f"{target} got {ids} of {sender}, which sent {order}")
    return problems


def _mail(observed: Observed, logs: dict[str, list[RunLogEntry]]) -> list[str]:
    """Each message between agents belongs to one run, or waits."""
    sent: set[str] = set()
    got: Counter[str] = Counter()
    for log in logs.values():
        for entry in log:
            if entry.kind in ("msg.sent", "ask.sent"):
                target = str(entry.payload["target"])
                if not target.rpartition(":")[2].startswith(("sink/", "news", "program/")):
                    sent.add(str(entry.payload["message_id"]))
        for entry in received(log):
            message: Any = entry.payload["message"]
            got[f"{message['target']} {message['id']}"] += 1
    for agent, mail in observed.waiting.items():
        for mail_row in mail:
            got[f"{agent} {mail_row.message.id}"] += 1
    problems = [f"letter {what} is in {n} places" for what, n in got.items() if n > 1]
    for log in logs.values():
        sent -= _taken_back(log).keys()
    arrived_ids = {what.rpartition(" ")[2] for what in got}
    return problems + [f"letter {letter_id} is lost" for letter_id in sorted(sent - arrived_ids)]


def _started(logs: dict[str, list[RunLogEntry]]) -> Callable[[RunRow], tuple[str, int]]:
    """Return the start of a run, as far as it is known."""

    def of(row: RunRow) -> tuple[str, int]:
        log = logs[row.run_id]
        return log[0].ts.isoformat() if log else "", row.arrival

    return of


def _children(observed: Observed, logs: dict[str, list[RunLogEntry]]) -> list[str]:
    """Each child is spawned by one entry, each spawn has its run, and each run has a parent."""
    spawned: Counter[str] = Counter()
    for log in logs.values():
        spawned.update(str(e.payload["child"]) for e in log if e.kind == "child.spawned")
    problems = [f"child {child} was spawned {n} times" for child, n in spawned.items() if n > 1]
    problems += [f"child {child} has no run" for child in spawned if child not in observed.others]
    born = [key for key, other in observed.others.items() if other.row.parent is not None]
    return problems + [f"run {key} is a child of nobody" for key in born if key not in spawned]


def _answers(observed: Observed, logs: dict[str, list[RunLogEntry]]) -> list[str]:
    """The result of a join or an ask is that of the other run."""
    problems: list[str] = []
    for run_id, log in logs.items():
        for entry in log:
            if entry.kind == "child.completed":
                other = observed.others.get(str(entry.payload["child"]))
                status = other.row.status.value if other is not None else "MISSING"
                if status != entry.payload["status"]:
                    problems.append(f"{run_id} was told {entry.payload}, the child is {status}")
            elif entry.kind == "ask.timeout":
                question = next(
                    e for e in log if e.kind == "ask.sent" and e.position == entry.position
                )
                if entry.ts.isoformat() < str(question.payload["at"]):
                    problems.append(f"{run_id}: the ask at {entry.position} timed out too early")
    return problems


def _replies(observed: Observed, logs: dict[str, list[RunLogEntry]]) -> list[str]:
    """The asker has the first reply, if there was one before another answer."""
    problems: list[str] = []
    for run_id, log in logs.items():
        questions = {e.position: e.payload for e in log if e.kind == "ask.sent"}
        for entry in log:
            if entry.kind not in ("ask.replied", "ask.timeout") or entry.position not in questions:
                continue
            question = questions[entry.position]
            message_id, by = str(question["message_id"]), str(entry.payload["handle"])
            reply = _first_reply(observed, logs.get(by, []), by, message_id)
            head = f"{run_id}: the ask at {entry.position} was replied to"
            if reply is None:
                continue
            value, at = reply
            if entry.kind == "ask.timeout":
                if at.isoformat() < str(question["at"]):
                    problems.append(f"{head} at {at}, it timed out at {entry.ts}")
            elif (entry.payload["outcome"], entry.payload["result"]) != ("replied", value):
                problems.append(f"{head} with {value!r}, it says {entry.payload}")
    return problems


def _first_reply(
    observed: Observed, log: Sequence[RunLogEntry], run_id: str, message_id: str
) -> tuple[Any, datetime] | None:
    """Return the first reply to a question in a run's log, and when it was written."""
    values = observed.replies.get((run_id, message_id), [])
    values_by_hash = {args_hash(["reply", message_id, value]): value for value in values}
    for entry in log:
        if entry.payload.get("effect") == "reply" and entry.payload["hash"] in values_by_hash:
            return values_by_hash[str(entry.payload["hash"])], entry.ts
    return None


def _refused(observed: Observed, logs: dict[str, list[RunLogEntry]]) -> list[str]:
    """A question that was refused for a cycle has no effect from then on."""
    del observed
    problems: list[str] = []
    for run_id, log in logs.items():
        refused = _taken_back(log)
        for other, its in logs.items():
            for line in received(its):
                message: Any = line.payload["message"]
                at = refused.get(message["id"])
                if at is not None and line.ts > at:
                    problems.append(
                        f"{run_id}: what was refused at {at} reached {other} at {line.ts}"
                    )
    return problems


def _taken_back(log: Sequence[RunLogEntry]) -> dict[str, datetime]:
    """Return the questions of a run that closed a cycle, and the time of the refusal."""
    message_ids = {e.position: str(e.payload["message_id"]) for e in log if e.kind == "ask.sent"}
    refusals: dict[str, datetime] = {}
    for entry in log:
        error: Any = entry.payload.get("error")
        is_refusal = entry.payload.get("effect") == "ask" and entry.position in message_ids
        if is_refusal and str(error["type"]).endswith(":WaitCycleError"):
            refusals[message_ids[entry.position]] = entry.ts
    return refusals
