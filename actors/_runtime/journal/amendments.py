"""Amendments of commits, and setbacks of executions: how a run goes on after a write that was not as expected.

A part of a commit that the store refuses, or has a newer value for, is replaced. Every entry keeps its seq,
so the other calls of the run stay as they are. `Setbacks` says of an execution that was broken off whether
its run is loaded again at once, after a pause, or not any more. It is in memory: a host that takes over
begins to count anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from actors._kernel.agent.message import MessageKey
from actors._kernel.json import JsonValue, is_unreadable_row
from actors._kernel.json_data import clean_text
from actors._kernel.runtime.commit import Commit, CommitOutcome, OutOfOrder, OverBudget
from actors._kernel.runtime.ids import RunId
from actors._kernel.runtime.log_entry import EntryKind, NewEntry
from actors._kernel.runtime.waits import Answer
from actors._runtime.journal.write_set import LateEnd
from actors._runtime.replay.failures import text_of
from actors.errors import (
    ActorsError,
    ContractError,
    IllegalTransitionError,
    StoreRefusedError,
    UnknownRunError,
)


@dataclass(slots=True)
class Amendments:
    """Calls of one execution that continue if the store refuses their part of a commit.

    Attributes:
        refusable: Calls that the tree's budget may refuse, by position. Each function returns the
            payload that records the refusal.
        refusals: Payloads of the calls that were refused, by position.
        received_messages: Messages that a call takes, with the call's position and a function. The function is
            called if the store has an older unread message of the same sender, which must be taken first.
    """

    refusable: dict[str, Callable[[str], dict[str, JsonValue]]] = field(default_factory=dict)
    refusals: dict[str, dict[str, JsonValue]] = field(default_factory=dict)
    received_messages: dict[MessageKey, tuple[str, Callable[[], None]]] = field(
        default_factory=dict
    )

    def without_refused(self, commit: Commit, outcome: CommitOutcome) -> Commit | None:
        """Return the commit without the refused parts, if that affects only the calls that asked for them."""
        match outcome:
            case OverBudget(positions, limit) if self.refusable.keys() >= set(positions):
                refusals = {p: self.refusable[p](limit) for p in positions}
                self.refusals.update(refusals)
                return _without_calls(commit, refusals)
            case OutOfOrder(keys) if self.received_messages.keys() >= set(keys):
                calls = {key: self.received_messages.pop(key) for key in keys}
                for _, put_back in calls.values():
                    put_back()
                return _without_messages(
                    commit, {key: position for key, (position, _) in calls.items()}
                )
        return None


def with_answers(commit: Commit, ends: Iterable[LateEnd], answers: Iterable[Answer]) -> Commit:
    """Return the commit with answers instead of ends that were too late.

    The branch that waits for the commit reads the payload that it has recorded, which becomes the answer's.
    """
    answer_of = {answer.key: answer for answer in answers}
    entries, taken_keys, unanswered_keys = list(commit.entries), list(commit.take_answers), []
    for end in ends:
        answer = answer_of.get(end.key)
        if answer is None:
            unanswered_keys.append(end.key)
            continue
        # Changed in place: `WaitResult` of the waiting branch has this very payload.
        kind, position, payload = end.entry_of(answer)
        index = next(n for n, entry in enumerate(entries) if entry.payload is end.payload)
        end.payload.clear()
        end.payload.update(payload)
        entries[index] = NewEntry(kind, position, end.payload)
        if not (end.keep or end.key in taken_keys):
            taken_keys.append(end.key)
    return replace(
        commit,
        entries=tuple(entries),
        take_answers=tuple(taken_keys),
        unless_answered=tuple(unanswered_keys),
    )


def _without_calls(
    commit: Commit, refusals_by_position: Mapping[str, dict[str, JsonValue]]
) -> Commit:
    """Return the commit with calls that were over budget replaced by their refusals, by position."""
    begins = (EntryKind.CHILD_SPAWNED, EntryKind.EFFECT_INTENT)
    entries = tuple(
        NewEntry(EntryKind.EFFECT_RESULT, entry.position, refusals_by_position[entry.position])
        if entry.kind in begins and entry.position in refusals_by_position
        else entry
        for entry in commit.entries
    )
    budget = commit.budget
    if budget is not None and budget.position in refusals_by_position:
        budget = replace(budget, turns=0, position="")
        if not (budget.tokens or budget.cost_usd):
            budget = None
    children = tuple(
        child for child in commit.spawned if child.position not in refusals_by_position
    )
    return replace(commit, entries=entries, spawned=children, budget=budget)


def _without_messages(commit: Commit, positions_by_key: Mapping[MessageKey, str]) -> Commit:
    """Return the commit without messages that it may not take yet; the positions of their calls are given.

    A call that was given nothing is abandoned there, and goes on waiting.
    """
    positions = set(positions_by_key.values())
    entries = tuple(
        NewEntry(EntryKind.EFFECT_ABANDONED, entry.position, {"effect": "receive"})
        if entry.kind is EntryKind.MSG_RECEIVED and entry.position in positions
        else entry
        for entry in commit.entries
    )
    return replace(
        commit, entries=entries, bind=tuple(k for k in commit.bind if k not in positions_by_key)
    )


PASSING: Final = frozenset({"08", "40", "53", "55", "57", "58"})
"""Classes of SQLSTATEs that say nothing of what was given: connection, rollback, resources, system."""
MAX_REFUSALS: Final = 2
"""Number of times that the store may refuse the entries after one end of a log; then the run is parked."""
MAX_UNREADABLE: Final = 3
"""Number of times that rows of a run may be unreadable at one end of its log; then the run is parked."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
JITTER: Final = 0.2
"""Random part by which a pause is longer: what failed together is not loaded again together."""


@dataclass(frozen=True, slots=True)
class Setback:
    """The reason why an execution was broken off.

    Attributes:
        last_seq: The last seq of the log at that time.
        refusal: What the store said of what it was given, or None if it was something else.
        is_unreadable: True if a row of the run is there and cannot be read.
    """

    last_seq: int
    refusal: str | None = None
    is_unreadable: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason to park a run without its code, and the detail for its operator."""

    reason: Literal["store_refused", "unreadable"]
    detail: str


@dataclass(slots=True)
class _Count:
    last_seq: int
    setbacks: int = 0
    refusals: int = 0
    refusal_text: str = ""
    is_unreadable: bool = False

    @property
    def limit(self) -> int:
        """Number of refusals after which the run has to be parked."""
        return MAX_UNREADABLE if self.is_unreadable else MAX_REFUSALS


class Setbacks:
    """The setbacks of runs whose last executions were broken off, and the pause before the next one."""

    def __init__(self, chance: Callable[[], float] = lambda: 0.0) -> None:
        self._chance = chance
        self._counts: dict[RunId, _Count] = {}

    def note(self, run_id: RunId, setback: Setback) -> float:
        """Return the seconds to wait before the run is loaded again.

        The first transient failure returns 0. A refusal always waits, unless it parks the run, because the
        code would make the same refused commit again at once.
        """
        count = self._counts.get(run_id)
        # The log has grown since: the run has made progress, and its earlier setbacks do not count.
        if count is None or count.last_seq != setback.last_seq:
            count = self._counts[run_id] = _Count(setback.last_seq)
        count.setbacks += 1
        if setback.refusal is not None:
            count.refusals += 1
            count.refusal_text, count.is_unreadable = setback.refusal, setback.is_unreadable
            if count.refusals == count.limit:
                return 0.0  # it is parked now; if that is refused, too, the next pause is longer
        elif count.setbacks == 1:
            return 0.0
        earlier_count = count.setbacks - (2 if setback.refusal is None else 1)
        # The exponent is bounded, too: after many failures the power would be too large for a float.
        pause_s = min(FIRST_PAUSE_S * 2 ** min(max(earlier_count, 0), 9), LONGEST_PAUSE_S)
        return float(pause_s * (1 + JITTER * self._chance()))

    def refusal(self, run_id: RunId, last_seq: int) -> Refusal | None:
        """Return why the run has to be parked, if its log ends there."""
        count = self._counts.get(run_id)
        if count is None or count.last_seq != last_seq or count.refusals < count.limit:
            return None
        remedy = f"run it again: callboard runs resolve {run_id} - --retry"
        if count.is_unreadable:
            problem = f"a row of the run could not be read {count.refusals} times"
            return Refusal(
                "unreadable",
                f"{problem}: {count.refusal_text}. Restore or cancel the run, or {remedy}",
            )
        return Refusal(
            "store_refused",
            f"the store refused {count.refusals} times what the run writes next, and will again: "
            f"{count.refusal_text}. Correct the code, then {remedy}",
        )

    def forget(self, run_id: RunId) -> None:
        """Forget the setbacks of a run that was suspended, has ended, or is another host's."""
        self._counts.pop(run_id, None)


def refusal_of(reason: object) -> str | None:
    """Return what was refused, if an execution was broken off for what it wanted to write or read."""
    match reason:
        case StoreRefusedError(sqlstate=str(code)) if code[:2] in PASSING:
            return None
        case UnknownRunError() | IllegalTransitionError():
            return None  # the run has ended meanwhile
        case StoreRefusedError() | ContractError():
            return (
                f"{reason.doing}: {reason.problem}"
                if is_unreadable_row(reason)
                else text_of(reason)
            )
        case ActorsError():
            return None
        case Exception():
            return clean_text(f"{type(reason).__name__}: {text_of(reason)}")
        case _:
            return None
