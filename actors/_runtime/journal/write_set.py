"""The rows that the next flush of a run writes: log entries, and rows beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from actors._kernel.agent.agent import FactKind, HistoryRetention, SessionChange
from actors._kernel.agent.message import MessageKey
from actors._kernel.agent.transcript import NewCut, NewTurn
from actors._kernel.json import JsonValue
from actors._kernel.runtime.commit import (
    BudgetDelta,
    Commit,
    Deleted,
    FollowChange,
    Outgoing,
    SignalKey,
    Spawned,
    Then,
)
from actors._kernel.runtime.log_entry import EntryKind, NewEntry
from actors._kernel.runtime.rows import NewRun
from actors._kernel.runtime.scheduler import Lease
from actors._kernel.runtime.waits import Answer, Wait


@dataclass(frozen=True, slots=True)
class LateEnd:
    """The entry that ends a wait without an answer. An answer that the store has by then replaces it.

    Attributes:
        key: The answer's key.
        payload: Payload of the entry that records the end.
        entry_of: Function that returns the entry that records an answer instead.
        keep: True if the answer stays in the store for other waits.
    """

    key: str
    payload: dict[str, JsonValue]
    entry_of: Callable[[Answer], tuple[EntryKind, str, dict[str, JsonValue]]]
    keep: bool = False


@dataclass(slots=True)
class WriteSet:
    """Entries and rows that become durable together."""

    entries: list[NewEntry] = field(default_factory=list)
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
    turns: list[NewTurn] = field(default_factory=list)
    cuts: list[NewCut] = field(default_factory=list)
    clear_turns: bool = False
    facts: list[FactKind] = field(default_factory=list)
    head: str | None = None
    """The node of its session from which the run continues."""
    first: bool = False
    """True if the flush must set the run's row to RUNNING."""

    @property
    def is_commit(self) -> bool:
        """True if the flush has rows that an append of entries does not write."""
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
            or self.turns
            or self.cuts
            or self.facts
            or self.create
        )

    def spend(self, delta: BudgetDelta) -> None:
        """Add to what this commit spends."""
        previous = self.budget or BudgetDelta()
        self.budget = BudgetDelta(
            previous.tokens + delta.tokens,
            previous.cost_usd + delta.cost_usd,
            previous.turns + delta.turns,
            previous.position or delta.position,
        )

    def commit(
        self,
        lease: Lease,
        expected_seq: int,
        then: Then,
        *,
        waits: tuple[Wait, ...] | None,
        known_waits: tuple[Wait, ...] | None = None,
        attempt: int,
        orphan_policy: HistoryRetention | None = None,
    ) -> Commit:
        """Return the commit that writes all of it."""
        return Commit(
            lease=lease,
            expected_seq=expected_seq,
            entries=tuple(self.entries),
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
            known_waits=known_waits,
            follows=tuple(self.follows),
            budget=self.budget,
            withdraw=tuple(self.withdraw),
            unless_answered=tuple(end.key for end in self.unless_answered),
            attempt=attempt,
            orphans=orphan_policy,
            turns=tuple(self.turns),
            cuts=tuple(self.cuts),
            clear_turns=self.clear_turns,
            session=SessionChange(tuple(self.facts), self.head) if self.facts else None,
        )
