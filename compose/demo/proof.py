"""The proof of the demo: compare the run's log with the ledger outside the runtime, step by step.

A step is *recorded* when its result is in the run's log. The log is read twice: just after the first host
was killed, and at the end. The steps' functions write the ledger, without the runtime.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from actors.kernel.runtime.log_entry import EntryKind, RunLogEntry
from compose.demo.ledger import LedgerEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProof:
    """The proof of one step: its executions, and its results.

    Attributes:
        position: The step's position in the run's log.
        name: Name of the step.
        document: Name of the step's document; empty for the report.
        mode: ``idempotent`` or ``at_most_once``.
        executed: Number of calls of the step's function in the ledger.
        pids: Process ids of these calls, in order.
        second_host: The second host's action: ``replayed`` (it used the recorded result), ``executed`` (it
            executed the step for the first time) or ``repeated`` (the first host was killed during the step,
            and recorded no result).
        holds: True if every promise about the step holds.
    """

    position: str
    name: str
    document: str
    mode: str
    executed: int
    pids: tuple[int, ...]
    second_host: Literal["replayed", "executed", "repeated"]
    holds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The proofs of all steps, and the promises about the whole run."""

    steps: tuple[StepProof, ...]
    was_killed: bool
    """SIGKILL ended the first host after some steps were recorded, and before all were."""
    was_recovered: bool
    """The log has a take-over of the run after a crash."""
    is_complete: bool
    """The run completed, and every step has exactly one result."""
    published_once: bool
    """The line of every document was published exactly once."""

    @property
    def holds(self) -> bool:
        """True if every promise holds."""
        whole = self.was_killed and self.was_recovered and self.is_complete and self.published_once
        return whole and all(step.holds for step in self.steps)

    def to_json(self) -> dict[str, object]:
        """Return the proof as JSON data."""
        return {"holds": self.holds, **asdict(self)}


def prove(
    *,
    documents: Sequence[str],
    at_kill: Sequence[RunLogEntry],
    at_end: Sequence[RunLogEntry],
    ledger: Sequence[LedgerEntry],
    published: Sequence[str],
    first_pid: int,
    killed_by: int | None,
) -> Proof:
    """Return the proof, from the log at both times, the ledger and the published lines.

    Args:
        documents: Paths of the documents, in the order of the job.
        at_kill: The log just after the first host had ended.
        at_end: The whole log.
        ledger: Every execution of a step.
        published: The published lines.
        first_pid: Process id of the killed host.
        killed_by: Number of the signal that ended the first host; None if no signal did.
    """
    results = [entry for entry in at_end if entry.kind == EntryKind.EFFECT_RESULT]
    results = [entry for entry in results if entry.payload["effect"] == "step"]
    before = {entry.position for entry in at_kill if entry.kind == EntryKind.EFFECT_RESULT}
    modes = {
        entry.position: str(entry.payload["mode"])
        for entry in at_end
        if entry.kind == EntryKind.EFFECT_INTENT
    }
    names = [*(Path(path).name for path in documents for _ in range(3)), ""]
    steps = tuple(
        _step(
            entry,
            document,
            mode=modes[entry.position],
            was_recorded=entry.position in before,
            ledger=ledger,
            first_pid=first_pid,
        )
        for entry, document in zip(results, names, strict=False)
    )
    keys = Counter(line.split(" ", 1)[0] for line in published)
    resumed = [entry for entry in at_end if entry.kind == EntryKind.RUN_RESUMED]
    return Proof(
        steps=steps,
        was_killed=killed_by == 9 and 0 < len(before) < len(results),  # noqa: PLR2004 - SIGKILL
        was_recovered=any(entry.payload["reason"] == "recovered" for entry in resumed),
        is_complete=len(results) == len(names) == len({entry.position for entry in results})
        and at_end[-1].kind == EntryKind.RUN_COMPLETED,
        published_once=len(keys) == len(documents) and set(keys.values()) == {1},
    )


def _step(
    result: RunLogEntry,
    document: str,
    *,
    mode: str,
    was_recorded: bool,
    ledger: Sequence[LedgerEntry],
    first_pid: int,
) -> StepProof:
    pids = tuple(line.pid for line in ledger if line.effect == result.payload["id"])
    by_first = pids.count(first_pid)
    by_second = len(pids) - by_first
    if was_recorded:
        holds, second_host = by_first == 1 and by_second == 0, "replayed"
    elif by_first == 0:
        holds, second_host = by_second == 1, "executed"
    else:
        # The host was killed during this step. Only an idempotent step may have been executed again.
        at_most = 1 if mode == "at_most_once" else 2
        holds, second_host = len(pids) <= at_most, "repeated"
    return StepProof(
        position=result.position,
        name=str(result.payload["name"]),
        document=document,
        mode=mode,
        executed=len(pids),
        pids=pids,
        second_host=second_host,  # type: ignore[arg-type]
        holds=holds,
    )
