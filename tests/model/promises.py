"""What holds of runs that talk to each other, whatever fails and however long it takes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actors.kernel.runtime.log_entry import RunLogEntry
    from tests.model.drive import Observed


def broken_talk(observed: Observed) -> list[str]:
    """Return the promises between runs that were broken, in words."""
    logs: dict[str, list[RunLogEntry]] = {key: one.entries for key, one in observed.others.items()}
    if observed.row is not None:
        logs[observed.row.run_id] = observed.entries
    return [*_mail(observed, logs), *_children(observed, logs), *_answers(observed, logs)]


def _mail(observed: Observed, logs: dict[str, list[RunLogEntry]]) -> list[str]:
    """Each letter between agents is with one run, or waits."""
    sent: set[str] = set()
    got: Counter[str] = Counter()
    for log in logs.values():
        for entry in log:
            if entry.kind in ("msg.sent", "ask.sent"):
                target = str(entry.payload["target"])
                if not target.rpartition(":")[2].startswith(("sink/", "news", "program/")):
                    sent.add(str(entry.payload["message_id"]))
            message: Any = entry.payload.get("message")
            if entry.kind == "msg.received":
                got[f"{message['target']} {message['id']}"] += 1
    for agent, mail in observed.waiting.items():
        for one in mail:
            got[f"{agent} {one.message.id}"] += 1
    found = [f"letter {what} is in {n} places" for what, n in got.items() if n > 1]
    there = {what.rpartition(" ")[2] for what in got}
    return found + [f"letter {one} is lost" for one in sorted(sent - there)]


def _children(observed: Observed, logs: dict[str, list[RunLogEntry]]) -> list[str]:
    """Each child is spawned by one entry, each spawn has its run, and no run is nobody's."""
    spawned: Counter[str] = Counter()
    for log in logs.values():
        spawned.update(str(e.payload["child"]) for e in log if e.kind == "child.spawned")
    found = [f"child {child} was spawned {n} times" for child, n in spawned.items() if n > 1]
    found += [f"child {child} has no run" for child in spawned if child not in observed.others]
    born = [key for key, one in observed.others.items() if one.row.parent is not None]
    return found + [f"run {key} is a child of nobody" for key in born if key not in spawned]


def _answers(observed: Observed, logs: dict[str, list[RunLogEntry]]) -> list[str]:
    """What a join and an ask say is what the other run did."""
    found: list[str] = []
    for run_id, log in logs.items():
        for entry in log:
            if entry.kind == "child.completed":
                other = observed.others.get(str(entry.payload["child"]))
                status = other.row.status.value if other is not None else "MISSING"
                if status != entry.payload["status"]:
                    found.append(f"{run_id} was told {entry.payload}, the child is {status}")
            elif entry.kind == "ask.timeout":
                asked = next(
                    e for e in log if e.kind == "ask.sent" and e.position == entry.position
                )
                if entry.ts.isoformat() < str(asked.payload["at"]):
                    found.append(f"{run_id}: the ask at {entry.position} timed out too early")
    return found
