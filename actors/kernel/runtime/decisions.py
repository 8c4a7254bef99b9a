"""Operators' decisions about runs that stopped. Each decision is bound to the one entry it is about.

A decision is a signal with a reserved name. Its id holds the seq of what it decides: a store takes it
only while the run is at that, and once, so that it can never decide what comes later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from actors.kernel.runtime.log_entry import EXECUTES, RunLogEntry
from actors.kernel.runtime.log_entry import EntryKind as K
from actors.kernel.runtime.rows import RunRow
from actors.kernel.runtime.scheduler import RunStatus

RESERVED: Final = "~"
"""Prefix of the names of an operator's signals; agents cannot wait for them."""

RESOLVE: Final = "~resolve:"
"""Prefix of a decision on the effect in doubt at a position. It refers to the entry that began the effect."""

RETRY: Final = "~retry"
"""Starts a run anew that is parked, or waits for its next attempt. It is about the log's last entry."""

OPERATOR: Final = "~"
"""The sender of all decisions."""

IN_DOUBT: Final = "in_doubt"
"""Reason for which a run with an effect in doubt is parked."""


def decision_id(name: str, seq: int) -> str:
    """Return the message id of a decision about the entry `seq`."""
    return f"{name}@{seq}"


def decided_seq(name: str, message_id: str) -> int | None:
    """Return which entry a decision is about; None: its sender did not say."""
    seq = message_id.removeprefix(f"{name}@")
    return int(seq) if seq != message_id and seq.isdecimal() else None


def positions_in_doubt(row: RunRow, entries: Iterable[RunLogEntry]) -> dict[str, int]:
    """Return positions of effects in doubt, with the seq of their intents; none while the run executes.

    An effect that the parking itself closed, because its code was not to go on beside the effect in
    doubt, did not end: it is in doubt, too.
    """
    if row.parked != IN_DOUBT:
        return {}
    found: dict[str, int] = {}
    closed: dict[str, int] = {}
    for entry in entries:
        position, kind = entry.position, entry.kind
        if kind == K.EFFECT_ABANDONED and position in found:
            closed[position] = found.pop(position)
            continue
        if kind == K.RUN_PARKED:
            found.update(closed)
        closed.clear()
        if kind in EXECUTES and entry.payload.get("mode") == "at_most_once":
            found[position] = entry.seq
        elif kind == K.RUN_CONTINUED:
            found.clear()
        else:
            found.pop(position, None)
    return found


def to_decide(name: str, row: RunRow, entries: Sequence[RunLogEntry]) -> int | None:
    """Return the seq that a decision of this name is about now; None: there is nothing to decide."""
    if name.startswith(RESOLVE):
        return positions_in_doubt(row, entries).get(name.removeprefix(RESOLVE))
    waits = row.parked not in (None, IN_DOUBT) or row.status is RunStatus.PENDING
    return row.last_seq if name == RETRY and waits and row.last_seq >= 0 else None


def standing(row: RunRow, entries: Iterable[RunLogEntry]) -> str:
    """Return what a run is at, in words, for who wanted to decide something else."""
    if row.status.is_terminal:
        return f"it has ended {row.status}"
    positions = [
        f"{position} (seq {seq})" for position, seq in positions_in_doubt(row, entries).items()
    ]
    if positions:
        return f"it is in doubt at {', '.join(positions)}"
    if row.parked is not None:
        return f"it is parked ({row.parked}) and starts anew with position -"
    if row.status is RunStatus.PENDING and row.last_seq >= 0:
        return "it waits for its next attempt"
    return f"it is {row.status}, not parked"
