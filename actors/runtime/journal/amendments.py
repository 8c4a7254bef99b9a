"""Amendments of a commit: a part that the store refuses, or has a newer value for, is replaced.

Every entry keeps its seq, so the other calls of the run stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from actors.kernel.agent.message import MessageKey
from actors.kernel.json import JsonValue
from actors.kernel.runtime.commit import Commit, CommitOutcome, OutOfOrder, OverBudget
from actors.kernel.runtime.log_entry import EntryKind, NewEntry
from actors.kernel.runtime.waits import Answer
from actors.runtime.journal.write_set import LateEnd


@dataclass(slots=True)
class Amendments:
    """Calls of one execution that continue if the store refuses their part of a commit.

    Attributes:
        refusable: Calls that the tree's budget may refuse, by position. Each function returns the
            payload that records the refusal.
        refused: Payloads of the calls that were refused, by position.
        received: Messages that a call takes, with the call's position and a function. The function is called
            if the store has an older unread message of the same sender, which must be taken first.
    """

    refusable: dict[str, Callable[[str], dict[str, JsonValue]]] = field(default_factory=dict)
    refused: dict[str, dict[str, JsonValue]] = field(default_factory=dict)
    received: dict[MessageKey, tuple[str, Callable[[], None]]] = field(default_factory=dict)

    def without_refused(self, commit: Commit, outcome: CommitOutcome) -> Commit | None:
        """Return the commit without the refused parts, if that affects only the calls that asked for them."""
        match outcome:
            case OverBudget(positions, limit) if self.refusable.keys() >= set(positions):
                refused = {p: self.refusable[p](limit) for p in positions}
                self.refused.update(refused)
                return _without(commit, refused)
            case OutOfOrder(keys) if self.received.keys() >= set(keys):
                calls = {key: self.received.pop(key) for key in keys}
                for _, put_back in calls.values():
                    put_back()
                return _without_messages(
                    commit, {key: position for key, (position, _) in calls.items()}
                )
        return None


def with_answers(commit: Commit, ends: Iterable[LateEnd], answers: Iterable[Answer]) -> Commit:
    """Return the commit with answers instead of ends that were too late.

    Who waits for the commit reads the payload that it has recorded: that becomes the answer's.
    """
    found = {answer.key: answer for answer in answers}
    entries, taken, left = list(commit.entries), list(commit.take_answers), []
    for end in ends:
        answer = found.get(end.key)
        if answer is None:
            left.append(end.key)
            continue
        kind, position, payload = end.entry_of(answer)
        at = next(n for n, entry in enumerate(entries) if entry.payload is end.payload)
        end.payload.clear()
        end.payload.update(payload)
        entries[at] = NewEntry(kind, position, end.payload)
        if not (end.keep or end.key in taken):
            taken.append(end.key)
    return replace(
        commit, entries=tuple(entries), take_answers=tuple(taken), unless_answered=tuple(left)
    )


def _without(commit: Commit, refusals: Mapping[str, dict[str, JsonValue]]) -> Commit:
    """Return the commit with calls that were over budget replaced by their refusals, by position."""
    begins = (EntryKind.CHILD_SPAWNED, EntryKind.EFFECT_INTENT)
    entries = tuple(
        NewEntry(EntryKind.EFFECT_RESULT, entry.position, refusals[entry.position])
        if entry.kind in begins and entry.position in refusals
        else entry
        for entry in commit.entries
    )
    budget = commit.budget
    if budget is not None and budget.position in refusals:
        budget = replace(budget, turns=0, position="")
        if not (budget.tokens or budget.cost_usd):
            budget = None
    spawned = tuple(child for child in commit.spawned if child.position not in refusals)
    return replace(commit, entries=entries, spawned=spawned, budget=budget)


def _without_messages(commit: Commit, calls: Mapping[MessageKey, str]) -> Commit:
    """Return the commit without messages that it may not take yet; the positions of their calls are given.

    A call that was given nothing is abandoned there, and goes on waiting.
    """
    positions = set(calls.values())
    entries = tuple(
        NewEntry(EntryKind.EFFECT_ABANDONED, entry.position, {"effect": "receive"})
        if entry.kind is EntryKind.MSG_RECEIVED and entry.position in positions
        else entry
        for entry in commit.entries
    )
    return replace(commit, entries=entries, bind=tuple(k for k in commit.bind if k not in calls))
