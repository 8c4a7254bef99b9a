"""What rides with the next flush of a run beside its log entries."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from actors.kernel.runtime.commit import BudgetDelta, Commit
from actors.kernel.runtime.log_entry import EntryKind, NewEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from actors.kernel.agent.message import MessageKey
    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.commit import (
        Answer,
        Deleted,
        FollowChange,
        NewRun,
        Outgoing,
        SignalKey,
        Spawned,
        Then,
        Wait,
    )
    from actors.kernel.runtime.scheduler import Lease


@dataclass(frozen=True, slots=True)
class LateEnd:
    """The end of a wait without an answer, as recorded; an answer that came before counts instead.

    Attributes:
        key: Of the answer.
        payload: Of the entry that records the end.
        entry_of: Returns the entry that records an answer in its place.
        keep: Whether the answer stays for others who wait for it.
    """

    key: str
    payload: dict[str, JsonValue]
    entry_of: Callable[[Answer], tuple[EntryKind, str, dict[str, JsonValue]]]
    keep: bool = False


@dataclass(slots=True)
class Parts:
    """Rows that become durable together with the entries of one flush."""

    create: NewRun | None = None
    bind: list[MessageKey] = field(default_factory=list)
    outgoing: list[Outgoing] = field(default_factory=list)
    take_signals: list[SignalKey] = field(default_factory=list)
    take_answers: list[str] = field(default_factory=list)
    state: dict[str, JsonValue | Deleted] = field(default_factory=dict)
    spawned: list[Spawned] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    follows: list[FollowChange] = field(default_factory=list)
    budget: BudgetDelta | None = None
    withdraw: list[MessageKey] = field(default_factory=list)
    unless_answered: list[LateEnd] = field(default_factory=list)
    first: bool = False
    """The run's row has to become RUNNING."""

    @property
    def is_turn(self) -> bool:
        """Whether there is anything that an append of entries does not write."""
        return bool(
            self.first
            or self.bind
            or self.outgoing
            or self.take_signals
            or self.take_answers
            or self.state
            or self.spawned
            or self.answers
            or self.follows
            or self.budget
            or self.withdraw
            or self.unless_answered
            or self.create
        )

    def spend(self, delta: BudgetDelta) -> None:
        """Add to what this turn spends."""
        known = self.budget or BudgetDelta()
        self.budget = BudgetDelta(
            known.tokens + delta.tokens,
            known.cost_usd + delta.cost_usd,
            known.turns + delta.turns,
            known.position or delta.position,
        )

    def commit(
        self,
        lease: Lease,
        expected: int,
        entries: list[NewEntry],
        then: Then,
        *,
        waits: tuple[Wait, ...] | None,
        attempt: int,
    ) -> Commit:
        """Return the turn that writes these parts and entries."""
        return Commit(
            lease=lease,
            expected_seq=expected,
            entries=tuple(entries),
            then=then,
            create=self.create,
            bind=tuple(self.bind),
            outgoing=tuple(self.outgoing),
            take_signals=tuple(self.take_signals),
            take_answers=tuple(self.take_answers),
            state=self.state,
            spawned=tuple(self.spawned),
            answers=tuple(self.answers),
            waits=waits,
            follows=tuple(self.follows),
            budget=self.budget,
            withdraw=tuple(self.withdraw),
            unless_answered=tuple(end.key for end in self.unless_answered),
            attempt=attempt,
        )


def with_answers(turn: Commit, ends: Iterable[LateEnd], answers: Iterable[Answer]) -> Commit:
    """Return the turn with answers in place of ends that were too late. Every entry keeps its seq.

    Who waits for the turn reads the payload that it has recorded: that becomes the answer's.
    """
    found = {answer.key: answer for answer in answers}
    entries, taken, left = list(turn.entries), list(turn.take_answers), []
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
        turn, entries=tuple(entries), take_answers=tuple(taken), unless_answered=tuple(left)
    )


def without(turn: Commit, refusals: Mapping[str, dict[str, JsonValue]]) -> Commit:
    """Return the turn with calls that were over budget replaced by their refusals, by position.

    Every entry keeps its seq.
    """
    begins = (EntryKind.CHILD_SPAWNED, EntryKind.EFFECT_INTENT)
    entries = tuple(
        NewEntry(EntryKind.EFFECT_RESULT, entry.position, refusals[entry.position])
        if entry.kind in begins and entry.position in refusals
        else entry
        for entry in turn.entries
    )
    budget = turn.budget
    if budget is not None and budget.position in refusals:
        budget = replace(budget, turns=0, position="")
        if not (budget.tokens or budget.cost_usd):
            budget = None
    spawned = tuple(child for child in turn.spawned if child.position not in refusals)
    return replace(turn, entries=entries, spawned=spawned, budget=budget)


def without_mail(turn: Commit, calls: Mapping[MessageKey, str]) -> Commit:
    """Return the turn without messages that it may not take yet; the positions of their calls are given.

    Every entry keeps its seq: a call that was given nothing is abandoned there, and goes on waiting.
    """
    positions = set(calls.values())
    entries = tuple(
        NewEntry(EntryKind.EFFECT_ABANDONED, entry.position, {"effect": "receive"})
        if entry.kind is EntryKind.MSG_RECEIVED and entry.position in positions
        else entry
        for entry in turn.entries
    )
    return replace(turn, entries=entries, bind=tuple(k for k in turn.bind if k not in calls))
