"""Laws that hold for each log after any fault, and a view of two logs side by side."""

from __future__ import annotations

from collections import Counter
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from actors._kernel.runtime.log_entry import TERMINAL_KINDS, EntryKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from actors._kernel.runtime.log_entry import RunLogEntry


def broken_laws(entries: Sequence[RunLogEntry]) -> list[str]:
    """Return the laws of a log that this one breaks, as text; empty if all hold."""
    return [
        *_order(entries),
        *_ends(entries),
        *_messages(entries),
        *_recorded_once(entries),
        *_intents(entries),
    ]


def _order(entries: Sequence[RunLogEntry]) -> list[str]:
    seqs = [entry.seq for entry in entries]
    problems = [] if seqs == list(range(len(seqs))) else [f"seqs are not contiguous: {seqs}"]
    starts = [entry.seq for entry in entries if entry.kind == EntryKind.RUN_STARTED]
    never_began = [entry.kind for entry in entries] == [EntryKind.RUN_CANCELLED]
    if entries and starts != [0] and not never_began:
        problems.append(f"run.started at {starts}, not at 0 alone")
    times = [entry.ts for entry in entries]
    return problems if times == sorted(times) else [*problems, "time goes back"]


def _ends(entries: Sequence[RunLogEntry]) -> list[str]:
    ends = [entry.seq for entry in entries if entry.kind in TERMINAL_KINDS]
    if len(ends) > 1:
        return [f"{len(ends)} terminal entries: {ends}"]
    if ends and ends[0] != entries[-1].seq:
        return [f"entries behind the terminal one at {ends[0]}"]
    return []


def received(entries: Sequence[RunLogEntry]) -> list[RunLogEntry]:
    """Return the entries for messages that the run received, without those it has released."""
    inputs: list[RunLogEntry] = []
    others: list[RunLogEntry] = []
    for entry in entries:
        if entry.kind == EntryKind.MSG_RECEIVED:
            (inputs if entry.position.startswith("in.") else others).append(entry)
        elif entry.payload.get("kept"):
            del inputs[int(str(entry.payload["kept"])) :]
    return inputs + others


def _messages(entries: Sequence[RunLogEntry]) -> list[str]:
    ids: Counter[str] = Counter()
    for entry in received(entries):
        message: Any = entry.payload["message"]
        ids[f"message {message['id']} received"] += 1
    for entry in entries:
        if entry.kind == EntryKind.SIGNAL_RECEIVED:
            ids[f"signal {entry.payload['name']} {entry.payload['n']} received"] += 1
        if entry.kind == EntryKind.MSG_SENT:
            ids[f"message {entry.payload['message_id']} sent"] += 1
    return [f"{what} {n} times" for what, n in ids.items() if n > 1]


def _recorded_once(entries: Sequence[RunLogEntry]) -> list[str]:
    """A recorded result is written again only by a later attempt."""
    problems, attempt, keys = [], 0, set()
    for entry in entries:
        if entry.kind in (EntryKind.RUN_ATTEMPT_FAILED, EntryKind.RUN_CONTINUED):
            attempt += 1
        if entry.kind in (EntryKind.EFFECT_RESULT, EntryKind.TOOL_RESULT):
            key = (attempt, entry.position)
            if key in keys:
                problems.append(f"two results at {entry.position} in one attempt")
            keys.add(key)
    return problems


def _intents(entries: Sequence[RunLogEntry]) -> list[str]:
    """The result of an effect follows its intent."""
    positions: set[str] = set()
    problems = []
    for entry in entries:
        if entry.kind in (EntryKind.EFFECT_INTENT, EntryKind.TOOL_CALLED):
            positions.add(entry.position)
        is_effect = entry.payload.get("effect") in ("step", "tool", "llm")
        is_result = entry.kind in (EntryKind.EFFECT_RESULT, EntryKind.TOOL_RESULT)
        if is_result and is_effect and entry.position not in positions:
            problems.append(f"a result without an intent at {entry.position}")
    return problems


def side_by_side(left: Iterable[object], right: Iterable[object], *, equal: Any) -> str:
    """Return two lists as columns; lines that differ are marked."""
    rows = []
    for index, (left_item, right_item) in enumerate(zip_longest(left, right)):
        agree = left_item is not None and right_item is not None and equal(left_item, right_item)
        rows.append(f"{index:3} {'  ' if agree else '≠ '}{_cut(left_item)}")
        if not agree:
            rows.append(f"      {_cut(right_item)}")
    return "\n".join(rows)


def _cut(value: object) -> str:
    text = "—" if value is None else str(value)
    return text if len(text) <= 400 else f"{text[:400]}…"
