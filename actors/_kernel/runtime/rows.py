"""Rows of a store as values: runs, messages, what a host reads of them, and operators' decisions.

A decision about a run that stopped is a signal with a reserved name. Its id holds the seq of the one entry
that it is about: a store takes it only while the run is at that, and once, so that it can never decide what
comes later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from actors._kernel.agent.agent import NewSession, Supervision
from actors._kernel.agent.message import Message
from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import AgentId, RunId, ShardId
from actors._kernel.runtime.log_entry import EXECUTES, RunLogEntry
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.scheduler import RetryPolicy, RunStatus, ShardLease
from actors._kernel.runtime.waits import WakeSet


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """The start of a forked run: it continues after entry `seq` of the log of `run_id`."""

    run_id: RunId
    seq: int


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to be created, PENDING. Creating it twice is a no-op.

    Attributes:
        run_id: Derived from what causes it (see `ids`).
        agent_id: The agent of the run.
        priority: Lower first.
        retry_policy: The run's one retry counter follows it. None if none was given, so it is the
            `retry` of the agent that begins the run, as its first entry says, else the default.
        parent: The spawning run.
        parent_agent: The agent of that run. Nothing stores it: it is for a run that begins on the host
            that made it. See `RunRow`.
        root: Root of the tree; the run itself when it has no parent.
        depth: 0 for a root.
        deadline_at: The deadline of the run.
        version: Code version it is pinned to.
        trace: W3C traceparent of what caused it.
        supervision: Its terms, where they are not the defaults; the budgets of a root's count for the
            whole tree, those of others are copies.
        fork: The run whose log is copied to its beginning, or None if its log begins empty.
        session: Set if its submit is a fact of a session.
    """

    run_id: RunId
    agent_id: AgentId
    priority: int = 5
    retry_policy: RetryPolicy | None = None
    parent: RunId | None = None
    root: RunId | None = None
    depth: int = 0
    deadline_at: datetime | None = None
    version: str | None = None
    trace: str | None = None
    supervision: Supervision | None = None
    fork: ForkPoint | None = None
    parent_agent: AgentId | None = None
    session: NewSession | None = None


@dataclass(frozen=True, slots=True)
class Arrived:
    """A message that is now a pending row of an inbox: `arrival` is its position in the queue."""

    message: Message
    sender: str
    agent_id: AgentId
    arrival: int
    run_id: RunId | None = None
    """The run it is bound to, if it is."""
    alone: bool = False
    """A run that had it with others failed: it starts one by itself."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run as stored: a fold of its log, plus what caused it."""

    run_id: RunId
    agent_id: AgentId
    status: RunStatus
    priority: int = 5
    attempt: int = 0
    retry_policy: RetryPolicy | None = None
    """Given by the caller that started it; see `NewRun`."""
    parent: RunId | None = None
    root: RunId | None = None
    depth: int = 0
    wake: WakeSet | None = None
    wake_at: datetime | None = None
    parked: str | None = None
    last_seq: int = -1
    cancel_requested: str | None = None
    result: JsonValue = None
    error: dict[str, JsonValue] | None = None
    deadline_at: datetime | None = None
    version: str | None = None
    trace: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    arrival: int = 0
    """Place of its first message in the agent's queue."""
    supervision: Supervision | None = None
    """The run's terms as stored, or None for the defaults."""
    swept: bool = False
    """A tombstone: ended long ago, its log, result and messages are gone."""
    fork: ForkPoint | None = None
    """Run whose log it began with, or will when its agent is free."""
    parent_agent: AgentId | None = None
    """The agent of its present parent, in a row that was loaded to be executed. Other rows have None."""
    unreadable: str | None = None
    """Columns that cannot be decoded, and why: None here, but for `result` and `error`, which say it."""


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """The rows that a worker needs to execute a run.

    Its row, its log since the last `run.continued`, and, for a run that has not started yet, the
    messages bound to it.
    """

    row: RunRow
    entries: tuple[RunLogEntry, ...]
    messages: tuple[Arrived, ...] = ()
    unreadable: str | None = None
    """The reason why its code cannot execute: rows that cannot be decoded. Log and messages are empty then."""


@dataclass(frozen=True, slots=True)
class BufferedSignal:
    """A signal that waits to be consumed; `n` grows with arrival."""

    name: str
    n: int
    payload: JsonValue
    about: int | None = None
    """Seq of the entry that an operator's decision is about; None for all other signals."""


@dataclass(frozen=True, slots=True)
class Timer:
    """A suspended or backing-off run that is to go on at `at`."""

    run_id: RunId
    agent_id: AgentId
    at: datetime


@dataclass(frozen=True, slots=True)
class CancelReport:
    """The runs that were asked to stop, with their agents, without runs that had ended before."""

    runs: tuple[tuple[RunId, AgentId], ...]


@dataclass(frozen=True, slots=True)
class SignalOutcome:
    """The outcome of a signal: `accepted` is False for a known id or an ended run.

    `same`: for a decision, True if exactly this decision was given before.
    """

    accepted: bool
    agent_id: AgentId | None = None
    same: bool = False


@dataclass(frozen=True, slots=True)
class Surplus:
    """More shards than this host's share: `count` of `shards`, all of one type, are to be given back."""

    shards: tuple[ShardId, ...]
    count: int


@dataclass(frozen=True, slots=True)
class HostReport:
    """The answer to a heartbeat: shards held here that the host does not know, lost ones, the time.

    Attributes:
        unknown: Shards that are this host's, but not among those it named.
        lost: The leases it named that are not its any more, as it named them.
        now: The store's time.
        surplus: What other hosts wait for; given back when it does no harm, idle shards first.
    """

    unknown: tuple[ShardId, ...]
    lost: tuple[ShardLease, ...]
    now: datetime
    surplus: tuple[Surplus, ...] = ()


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that was given up.

    Attributes:
        id: Names it for redrive.
        reason: ``max_retries``, ``explicit``, ``undecodable``, or ``unpublishable``: the broker took it
            for none that it could carry.
        attempts: Number of attempts.
        times: How many came. More than one only where none is a message: all of one sender and with one
            `last_error`, of which the first one's bytes are kept.
    """

    id: int
    agent_id: AgentId
    message: Message
    reason: str
    attempts: int
    last_error: str
    run_id: RunId | None = None
    at: datetime | None = None
    times: int = 1


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
    """Return which entry a decision is about, or None if its sender did not say."""
    seq = message_id.removeprefix(f"{name}@")
    return int(seq) if seq != message_id and seq.isdecimal() else None


def positions_in_doubt(row: RunRow, entries: Iterable[RunLogEntry]) -> dict[str, int]:
    """Return positions of effects in doubt, with the seq of their intents; none while the run executes.

    An effect that the parking itself closed, because its code was not to go on beside the effect in
    doubt, did not end: it is in doubt, too.
    """
    if row.parked != IN_DOUBT:
        return {}
    seqs_by_position: dict[str, int] = {}
    closed_seqs_by_position: dict[str, int] = {}
    for entry in entries:
        position, kind = entry.position, entry.kind
        if kind == K.EFFECT_ABANDONED and position in seqs_by_position:
            closed_seqs_by_position[position] = seqs_by_position.pop(position)
            continue
        if kind == K.RUN_PARKED:
            seqs_by_position.update(closed_seqs_by_position)
        closed_seqs_by_position.clear()
        if kind in EXECUTES and entry.payload.get("mode") == "at_most_once":
            seqs_by_position[position] = entry.seq
        elif kind == K.RUN_CONTINUED:
            seqs_by_position.clear()
        else:
            seqs_by_position.pop(position, None)
    return seqs_by_position


def to_decide(name: str, row: RunRow, entries: Sequence[RunLogEntry]) -> int | None:
    """Return the seq that a decision of this name is about now, or None if there is nothing to decide."""
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
