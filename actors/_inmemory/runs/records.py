"""Records of the in-memory store: run, message, signal, answer, wait and account, as stored.

Author data is kept as JSON text, so that history cannot be mutated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, Literal
from weakref import ReferenceType

from pydantic_core import from_json, to_json

from actors._kernel.agent.agent import ExecutionBudget, SpawnBudget, Supervision
from actors._kernel.agent.message import Message, MessageKey
from actors._kernel.json import JsonValue
from actors._kernel.runtime.commit import BudgetDelta
from actors._kernel.runtime.ids import HostIncarnation, RunId
from actors._kernel.runtime.log_entry import TERMINAL_KINDS, EntryKind, RunLogEntry
from actors._kernel.runtime.rows import (
    Arrived,
    LoadedRun,
    NewRun,
    RunRow,
    SignalOutcome,
    Timer,
    decided_seq,
    to_decide,
)
from actors._kernel.runtime.scheduler import Lease, RunStatus
from actors._kernel.runtime.waits import Answer, AnswerStatus, OpenWait, Wait, WakeSet
from actors._kernel.stores.runs import SMALL_STATE_BYTES, SMALL_STATE_KEYS, StatePart

_NULL: Final = b"null"


def pack(value: JsonValue) -> bytes:
    """Return `value` as JSON text. The keys of an object stay in the order of the value."""
    return _NULL if value is None else to_json(value)


def unpack(text: bytes) -> JsonValue:
    """Return a fresh value of what `pack` stored."""
    if text is _NULL:
        return None
    value: JsonValue = from_json(text)
    return value


def part_of_state(texts: Mapping[str, bytes], key: str) -> StatePart:
    """Return a state as `ReadStore.state_at` gives it: whole while it is small, else one key of it."""
    size = sum(map(len, texts.values()))
    is_whole = len(texts) <= SMALL_STATE_KEYS and size <= SMALL_STATE_BYTES
    if not is_whole:
        texts = {key: texts[key]} if key in texts else {}
    return StatePart({name: unpack(text) for name, text in texts.items()}, is_whole)


@dataclass(slots=True)
class LogLine:
    """A stored entry; `entry()` makes a fresh value of it."""

    seq: int
    kind: str
    position: str
    payload: bytes
    ts: datetime

    def entry(self, run_id: RunId) -> RunLogEntry:
        """Return the entry with a payload of its own."""
        return RunLogEntry(
            run_id, self.seq, self.kind, self.position, from_json(self.payload), self.ts
        )


@dataclass(slots=True)
class InboxRow:
    """A message of an agent; `body` is None once it cannot be needed any more."""

    key: MessageKey
    arrival: int
    shell: Message | None
    payload: bytes
    received_at: datetime
    state: Literal["pending", "bound", "done"] = "pending"
    run_id: RunId | None = None
    submitted_run: RunId | None = None
    is_lazy: bool = False
    """True if the message waits without a notification."""
    is_alone: bool = False
    """True if the message starts a run by itself."""

    @classmethod
    def of(cls, key: MessageKey, message: Message, arrival: int, *, at: datetime) -> InboxRow:
        """Return a pending row that shares nothing mutable with `message`."""
        shell = replace(message, payload=None, metadata=dict(message.metadata))
        return cls(key, arrival, shell, pack(message.payload), at)

    def arrived(self) -> Arrived:
        """Return the row as its reader sees it, with a message of its own."""
        return Arrived(
            self.message(),
            self.key.sender,
            self.key.agent,
            self.arrival,
            run_id=self.run_id,
            alone=self.is_alone,
        )

    def message(self) -> Message:
        """Return a fresh copy of the message."""
        assert self.shell is not None, "a done message has no body"
        return replace(self.shell, payload=unpack(self.payload), metadata=dict(self.shell.metadata))

    def drop_body(self) -> None:
        """Keep the key only, for dedup."""
        self.state, self.shell, self.payload = "done", None, _NULL


@dataclass(slots=True)
class SignalRow:
    """A buffered signal."""

    name: str
    n: int
    payload: bytes
    about: int | None = None


@dataclass(slots=True)
class AnswerRow:
    """An answer that ended a wait, or will; `is_taken` once a commit has consumed it."""

    status: AnswerStatus
    result: bytes
    error: bytes
    by: RunId | None
    last_seq: int
    is_taken: bool = False

    @classmethod
    def of(cls, answer: Answer) -> AnswerRow:
        """Return a row that shares nothing mutable with `answer`."""
        result, error = pack(answer.result), pack(answer.error)
        return cls(answer.status, result, error, answer.by, answer.last_seq)

    def answer(self, run_id: RunId, key: str) -> Answer:
        """Return the answer with values of its own."""
        error = unpack(self.error)
        return Answer(
            run_id=run_id,
            key=key,
            status=self.status,
            result=unpack(self.result),
            error=error if isinstance(error, dict) else None,
            by=self.by,
            last_seq=self.last_seq,
        )


@dataclass(slots=True)
class WaitRow:
    """An open wait of a run, without its request, which is kept as JSON text."""

    wait: Wait
    request: bytes
    since: datetime
    must_since: datetime
    """When it last became one without which its run cannot go on."""

    def opened(self, run: RunRecord) -> OpenWait:
        """Return the wait of `run` as readers see it."""
        wait = replace(self.wait, request=unpack(self.request))
        return OpenWait(run.cause.run_id, run.cause.agent_id, wait, self.since)


@dataclass(slots=True)
class RunRecord:
    """A run: its cause, its columns and its log."""

    cause: NewRun
    arrival: int
    created_at: datetime
    updated_at: datetime
    status: RunStatus = RunStatus.PENDING
    attempt: int = 0
    wake: WakeSet | None = None
    wake_at: datetime | None = None
    parked: str | None = None
    cancel_requested: str | None = None
    result: bytes = _NULL
    error: bytes = _NULL
    log: list[LogLine] = field(default_factory=list)
    bound: list[InboxRow] = field(default_factory=list)
    children: list[RunId] = field(default_factory=list)
    signals: list[SignalRow] = field(default_factory=list)
    decisions: dict[tuple[str, int], bytes] = field(default_factory=dict)
    """Decisions of operators, by name and entry, also consumed ones."""
    answers: dict[str, AnswerRow] = field(default_factory=dict)
    """Answers by key, also consumed ones. A later answer with the same key is ignored."""
    waits: list[WaitRow] = field(default_factory=list)
    swept: bool = False
    continued_at: int = 0
    """Seq of the last `run.continued` entry: replay reads from there."""

    @property
    def last_seq(self) -> int:
        """The seq of the last entry, -1 without one."""
        return len(self.log) - 1

    @property
    def has_ended(self) -> bool:
        """True if the log ends with a terminal entry."""
        return bool(self.log) and self.log[-1].kind in TERMINAL_KINDS

    @property
    def is_suspended(self) -> bool:
        """True if the run is suspended and not parked."""
        return self.status is RunStatus.SUSPENDED and self.parked is None

    @property
    def is_asleep(self) -> bool:
        """True if the run is suspended and no signal, answer or cancel is there for it."""
        is_answered = any(not answer.is_taken for answer in self.answers.values())
        has_news = bool(self.signals) or is_answered or self.cancel_requested is not None
        return self.is_suspended and not has_news

    def base(self) -> RunRow:
        """Return the row as it was before its first entry: what a refold starts from."""
        cause = self.cause
        return RunRow(
            cause.run_id,
            cause.agent_id,
            RunStatus.PENDING,
            priority=cause.priority,
            retry_policy=cause.retry_policy,
            parent=cause.parent,
            root=cause.root or cause.run_id,
            depth=cause.depth,
            cancel_requested=self.cancel_requested,
            deadline_at=cause.deadline_at,
            version=cause.version,
            trace=cause.trace,
            created_at=self.created_at,
            updated_at=self.updated_at,
            arrival=self.arrival,
            supervision=cause.supervision,
            swept=self.swept,
            fork=cause.fork,
            parent_agent=cause.parent_agent,
        )

    def sweep(self) -> None:
        """Keep the run's position and status only."""
        self.cause = replace(self.cause, supervision=None, trace=None)
        self.result = self.error = _NULL
        self.log, self.signals, self.answers = [], [], {}
        self.continued_at, self.swept = 0, True

    def cancel_reason(self) -> str:
        """Return why the run was cancelled, as its log says it."""
        reason = self.log[-1].entry(self.cause.run_id).payload.get("reason") if self.log else None
        return reason if isinstance(reason, str) else self.cancel_requested or ""

    def row(self) -> RunRow:
        """Return the row as readers see it."""
        error = unpack(self.error)
        return replace(
            self.base(),
            status=self.status,
            attempt=self.attempt,
            wake=self.wake,
            wake_at=self.wake_at,
            parked=self.parked,
            last_seq=self.last_seq,
            result=unpack(self.result),
            error=error if isinstance(error, dict) else None,
        )

    def to_loaded_run(self) -> LoadedRun:
        """Return the run as the worker that will execute it needs it."""
        run_id = self.cause.run_id
        entries = tuple(line.entry(run_id) for line in self.log[self.continued_at :])
        # A run may be parked before it has begun: then it still needs its first messages.
        has_begun = any(line.kind != EntryKind.RUN_PARKED for line in self.log)
        messages = () if has_begun else tuple(row.arrived() for row in self.bound)
        return LoadedRun(self.row(), entries, messages)

    def timer(self) -> Timer | None:
        """Return when the run is to go on by itself, if it is."""
        if self.wake_at is None or self.parked is not None:
            return None
        return Timer(self.cause.run_id, self.cause.agent_id, self.wake_at)


@dataclass(slots=True)
class ShardRow:
    """The owner of the single shard, and the lease's epoch."""

    owner: HostIncarnation | None = None
    epoch: int = 0
    expires_at: datetime | None = None
    broken_at: int | None = None
    """Number of the next arrival when the owner before this one died, or None if it released the shard."""
    claimed_by: ReferenceType[object] | None = None
    """The store at which its owner claimed it."""

    def is_held_by(self, lease: Lease) -> bool:
        """Return True if the lease still is the shard's: owner and epoch, not its expiry."""
        return self.owner == lease.owner and self.epoch == lease.epoch


def decide(record: RunRecord, name: str, payload: bytes, message_id: str) -> int | SignalOutcome:
    """Note a decision and return the seq that it is about, or why it does not count."""
    loaded_run = record.to_loaded_run()
    now, about = to_decide(name, loaded_run.row, loaded_run.entries), decided_seq(name, message_id)
    about = now if about is None else about
    previous = None if about is None else record.decisions.get((name, about))
    if about is None or about != now or previous is not None:
        return SignalOutcome(False, record.cause.agent_id, same=previous == payload)
    record.decisions[name, about] = payload
    return about


@dataclass(slots=True)
class TreeAccount:
    """A tree's budgets, and what it has spent of them."""

    spawn: SpawnBudget
    execution: ExecutionBudget
    runs: int = 0
    open: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    turns: int = 0

    @classmethod
    def of(cls, supervision: Supervision | None) -> TreeAccount:
        """Return the empty account of a root with these terms."""
        if supervision is None:
            return cls(SpawnBudget(), ExecutionBudget())
        return cls(supervision.spawn_budget, supervision.execution_budget)

    def free_slots(self) -> tuple[int, str]:
        """Return how many runs may be spawned now, and which limit says so."""
        slots, limit = self.spawn.max_runs - self.runs, f"max_runs {self.spawn.max_runs}"
        max_concurrent = self.spawn.max_concurrent
        if max_concurrent is not None and max_concurrent - self.open < slots:
            slots, limit = max_concurrent - self.open, f"max_concurrent {max_concurrent}"
        return max(0, slots), limit

    def exhausted(self, delta: BudgetDelta) -> str | None:
        """Return the limit that forbids the model calls that the commit begins, or None if no limit does."""
        budget = self.execution
        if delta.turns == 0:
            return None
        if budget.max_turns is not None and self.turns + delta.turns > budget.max_turns:
            return f"max_turns {budget.max_turns}"
        if budget.max_tokens is not None and self.tokens >= budget.max_tokens:
            return f"max_tokens {budget.max_tokens}"
        if budget.max_cost_usd is not None and self.cost_usd >= budget.max_cost_usd:
            return f"max_cost_usd {budget.max_cost_usd}"
        return None

    def tokens_left(self) -> int | None:
        """Return how many tokens may still be used, None for any number."""
        max_tokens = self.execution.max_tokens
        return None if max_tokens is None else max(0, max_tokens - self.tokens)

    def spend(self, delta: BudgetDelta) -> None:
        """Add what a commit used."""
        self.tokens += delta.tokens
        self.cost_usd += delta.cost_usd
        self.turns += delta.turns
