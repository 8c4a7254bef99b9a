"""The columns of a run's row, computed from its log's entries alone.

Every store keeps those columns beside the log because reading them is cheaper; this is what they
must be equal to. The rules:

- An empty log is a run that waits for its first attempt: PENDING, attempt 0.
- ``run.suspended``, ``run.parked``, ``run.attempt_failed`` and the three terminal kinds set the
  status; ``cancel.requested`` and ``orphans.resolved`` change nothing. Any other entry was written by
  code that executes: RUNNING, waiting for nothing.
- The first executed entry, and the first one after a failed attempt, begin the next attempt; from
  ``run.continued`` on it is attempt 1 again. An attempt may leave nothing but its end (see
  `ends_execution`), which then counts as executed.
- The error of a failed attempt that is to be tried again stays until the run ends; one that parks
  the log alone describes the run. A cancelled run has no error: its reason is `cancel_requested`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Final

from actors.kernel.json import JsonValue
from actors.kernel.runtime.log_entry import TERMINAL_KINDS, EntryKind, NewEntry, RunLogEntry
from actors.kernel.runtime.rows import RunRow
from actors.kernel.runtime.scheduler import RunStatus
from actors.kernel.runtime.wakeup import WakeSet

TELLING: Final = TERMINAL_KINDS | {
    EntryKind.RUN_SUSPENDED,
    EntryKind.RUN_PARKED,
    EntryKind.RUN_ATTEMPT_FAILED,
    EntryKind.CANCEL_REQUESTED,
    EntryKind.ORPHANS_RESOLVED,
}
"""Kinds that set a status, or change nothing; all others are written by code that executes."""


def fold(cause: RunRow, entries: Iterable[RunLogEntry]) -> RunRow:
    """Return the run's row after `entries`, its whole log in order.

    Args:
        cause: What the log does not say: identity, agent, priority, policy, position in the tree,
            times, `cancel_requested`. Its status, attempt, wake set, result and error are ignored.
        entries: From seq 0.
    """
    row = replace(
        _settled(cause, RunStatus.PENDING), attempt=0, last_seq=-1, result=None, error=None
    )
    is_executing, before, last_kind = False, row, ""
    for entry in entries:
        changed = _step(row, entry)
        if changed is None:
            attempt = row.attempt if is_executing else row.attempt + 1
            attempt = 1 if entry.kind == EntryKind.RUN_CONTINUED else attempt
            changed = replace(_settled(row, RunStatus.RUNNING), attempt=attempt)
            is_executing = True
        elif entry.kind == EntryKind.RUN_ATTEMPT_FAILED:
            is_executing = False
        elif not is_executing and ends_execution(entry):
            changed = replace(changed, attempt=row.attempt + 1)
        elif last_kind == EntryKind.RUN_ATTEMPT_FAILED and _is_out_of_retries(entry):
            changed = replace(changed, error=before.error)
        before, last_kind = row, entry.kind
        row = replace(changed, last_seq=entry.seq)
    return row


def ends_execution(entry: RunLogEntry | NewEntry) -> bool:
    """Return whether this is an end that only executing code reaches."""
    if entry.kind == EntryKind.RUN_PARKED:
        return entry.payload["reason"] in ("non_determinism", "in_doubt")
    return entry.kind in (EntryKind.RUN_COMPLETED, EntryKind.RUN_FAILED)


def _is_out_of_retries(entry: RunLogEntry) -> bool:
    return entry.kind == EntryKind.RUN_PARKED and entry.payload["reason"] == "retries"


def _step(row: RunRow, entry: RunLogEntry) -> RunRow | None:
    """Return the row after an entry that sets a status; None for an entry of executing code."""
    payload = entry.payload
    changed: RunRow | None = None
    match entry.kind:
        case EntryKind.RUN_COMPLETED:
            changed = _settled(row, RunStatus.COMPLETED)
            changed = replace(changed, result=payload["output"], error=None)
        case EntryKind.RUN_FAILED:
            changed = replace(_settled(row, RunStatus.FAILED), error=_object(payload["error"]))
        case EntryKind.RUN_CANCELLED:
            changed = replace(_settled(row, RunStatus.CANCELLED), error=None)
        case EntryKind.RUN_SUSPENDED:
            wake = WakeSet.from_json(_object(payload["wake"]) or {})
            changed = _settled(row, RunStatus.SUSPENDED)
            changed = replace(changed, wake=wake, wake_at=wake.at)
        case EntryKind.RUN_PARKED:
            changed = _settled(row, RunStatus.SUSPENDED)
            changed = replace(changed, parked=str(payload["reason"]))
        case EntryKind.RUN_ATTEMPT_FAILED:
            changed = replace(
                _settled(row, RunStatus.PENDING),
                attempt=int(str(payload["attempt"])),
                wake_at=_instant(payload["at"]),
                error=_object(payload["error"]),
            )
        case EntryKind.CANCEL_REQUESTED | EntryKind.ORPHANS_RESOLVED:
            changed = row
    return changed


def _settled(row: RunRow, status: RunStatus) -> RunRow:
    return replace(row, status=status, wake=None, wake_at=None, parked=None)


def _object(value: JsonValue) -> dict[str, JsonValue] | None:
    return value if isinstance(value, dict) else None


def _instant(value: JsonValue) -> datetime | None:
    return datetime.fromisoformat(value) if isinstance(value, str) else None
