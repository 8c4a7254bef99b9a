"""The log: an append-only list of what happened in one run, and the closed registry of its kinds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import RunId
from actors.errors import InvalidEntryError

if TYPE_CHECKING:
    from actors._kernel.agent.message import ChatMessage


class EntryKind(StrEnum):
    """Every kind a log entry can have. Unknown kinds are refused at append, tolerated at read."""

    RUN_STARTED = "run.started"
    RUN_RESUMED = "run.resumed"
    RUN_SUSPENDED = "run.suspended"
    RUN_COMPLETED = "run.completed"
    RUN_ATTEMPT_FAILED = "run.attempt_failed"
    RUN_FAILED = "run.failed"
    RUN_CANCELLED = "run.cancelled"
    RUN_CONTINUED = "run.continued"
    RUN_PARKED = "run.parked"
    MSG_RECEIVED = "msg.received"
    MSG_SENT = "msg.sent"
    EFFECT_INTENT = "effect.intent"
    EFFECT_RESULT = "effect.result"
    EFFECT_ABANDONED = "effect.abandoned"
    TOOL_CALLED = "tool.called"
    TOOL_RESULT = "tool.result"
    LLM_CALL = "llm.call"
    TEXT_DELTA = "text.delta"
    REASONING_DELTA = "reasoning.delta"
    CHILD_SPAWNED = "child.spawned"
    CHILD_COMPLETED = "child.completed"
    ASK_SENT = "ask.sent"
    ASK_REPLIED = "ask.replied"
    ASK_TIMEOUT = "ask.timeout"
    SIGNAL_RECEIVED = "signal.received"
    TIMER_SET = "timer.set"
    TIMER_FIRED = "timer.fired"
    SELECT_WON = "select.won"
    STATE_SET = "state.set"
    FOLLOW_CHANGED = "follow.changed"
    CANCEL_REQUESTED = "cancel.requested"
    ORPHANS_RESOLVED = "orphans.resolved"
    IN_DOUBT_RESOLVED = "in_doubt.resolved"
    GRAPH_STEP = "graph.step"


EXECUTES: Final = frozenset({EntryKind.EFFECT_INTENT, EntryKind.TOOL_CALLED})
"""Entries that an effect records before it acts outside."""

OUTLIVED: Final = "outlived"
"""Reason of the `run.resumed` that ends a suspect's turn: see docs/replay.md, "Deaths of hosts"."""

TERMINAL_KINDS: Final = frozenset(
    {EntryKind.RUN_COMPLETED, EntryKind.RUN_FAILED, EntryKind.RUN_CANCELLED}
)

_EFFECT: Final = ("effect", "name", "hash", "id")
_RESULT: Final = (*_EFFECT, "status")

PAYLOADS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    # kind: (required keys, optional keys)
    EntryKind.RUN_STARTED: (
        ("agent",),
        ("version", "priority", "parent", "root", "trace", "retry", "mode"),
    ),
    EntryKind.RUN_RESUMED: (("reason",), ("died",)),
    EntryKind.RUN_SUSPENDED: (("wake",), ()),
    EntryKind.RUN_COMPLETED: (("output",), ()),
    EntryKind.RUN_ATTEMPT_FAILED: (("attempt", "error", "retry_from", "at"), ("ending", "kept")),
    EntryKind.RUN_FAILED: (("status", "error"), ("attempt", "turns")),
    EntryKind.RUN_CANCELLED: (("reason",), ("turns",)),
    EntryKind.RUN_CONTINUED: (
        ("generation", "input"),
        ("version", "retry", "refused", "session", "parent", "mode"),
    ),
    EntryKind.RUN_PARKED: (("reason",), ("detail", "at")),
    EntryKind.MSG_RECEIVED: (("message",), ("arrival", "hash")),
    EntryKind.MSG_SENT: (("message_id", "target", "hash"), ()),
    EntryKind.EFFECT_INTENT: ((*_EFFECT, "mode"), ()),
    EntryKind.EFFECT_RESULT: (("effect", "hash", "status"), ("name", "id", "value", "error")),
    EntryKind.EFFECT_ABANDONED: (("effect",), ()),
    EntryKind.TOOL_CALLED: ((*_EFFECT, "mode"), ("args", "call")),
    EntryKind.TOOL_RESULT: (_RESULT, ("value", "error", "call")),
    EntryKind.LLM_CALL: (_RESULT, ("value", "error", "model", "usage", "receipt", "max_tokens")),
    EntryKind.TEXT_DELTA: (("text",), ("attempt",)),
    EntryKind.REASONING_DELTA: (("text",), ("attempt",)),
    EntryKind.CHILD_SPAWNED: (("child", "agent"), ("boot", "supervision", "hash")),
    EntryKind.CHILD_COMPLETED: (("child", "status"), ("output", "error", "result_ref", "hash")),
    EntryKind.ASK_SENT: (("target", "message_id"), ("timeout_s", "at", "request", "call", "hash")),
    EntryKind.ASK_REPLIED: (("outcome",), ("result", "handle", "last_seq", "hash")),
    EntryKind.ASK_TIMEOUT: (("outcome",), ("handle", "last_seq", "hash")),
    EntryKind.SIGNAL_RECEIVED: (("name", "payload", "n"), ("hash",)),
    EntryKind.TIMER_SET: (("at", "hash"), ("verb",)),
    EntryKind.TIMER_FIRED: (("at",), ()),
    EntryKind.SELECT_WON: (("index",), ()),
    EntryKind.STATE_SET: (("key", "hash"), ("value", "deleted")),
    EntryKind.FOLLOW_CHANGED: (("topic", "following", "hash"), ("mode",)),
    EntryKind.CANCEL_REQUESTED: (("reason",), ("by",)),
    EntryKind.ORPHANS_RESOLVED: (("policy",), ("children",)),
    EntryKind.IN_DOUBT_RESOLVED: (("action",), ("value", "error")),
    EntryKind.GRAPH_STEP: (("records", "hash"), ()),
}
"""The payload schema of each kind: required and optional keys. `hash` and `id` are hexadecimal."""


@dataclass(frozen=True, slots=True)
class NewEntry:
    """An entry before it has a position in the log.

    Attributes:
        kind: One of `EntryKind`.
        position: Where in the run it stands, for example ``4`` or ``4.1.0``; empty for entries of
            the run itself (started, suspended, completed …).
        payload: JSON object; its keys are those of `PAYLOADS`.
    """

    kind: EntryKind
    position: str
    payload: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class RunLogEntry:
    """An entry of a run's log. `seq` counts from 0 without gaps; `ts` is aware UTC.

    Attributes:
        said: The messages of all turns that were written in the entry's commit, by the turns' ids. None if they
            are not known here, and have to be read.
    """

    run_id: RunId
    seq: int
    kind: str
    position: str
    payload: dict[str, JsonValue]
    ts: datetime
    said: Mapping[str, ChatMessage] | None = field(default=None, compare=False, repr=False)

    @property
    def is_terminal(self) -> bool:
        """True if the run ended with this entry; it is then the last one."""
        return self.kind in TERMINAL_KINDS


def check_entry(entry: NewEntry) -> None:
    """Check that the entry may be appended.

    Raises:
        InvalidEntryError: Unknown kind, missing key or unknown key.
    """
    schema = PAYLOADS.get(entry.kind)
    if schema is None:
        raise InvalidEntryError(str(entry.kind), "unknown kind")
    required, optional = schema
    for key in required:
        if key not in entry.payload:
            raise InvalidEntryError(entry.kind, f"payload lacks {key!r}")
    if len(entry.payload) > len(required):
        for key in entry.payload:
            if key not in required and key not in optional:
                raise InvalidEntryError(entry.kind, f"payload has unknown key {key!r}")


class EventLog(Protocol):
    """The logs of all runs. The log is the truth; everything else is derived from it."""

    async def append(self, run_id: RunId, entry: NewEntry, *, expected_seq: int) -> int:
        """Add one entry after `expected_seq` (-1 for an empty log) and return its seq.

        Durable when it returns, on durable backends. Never overwrites.

        Raises:
            ConcurrentAppendError: The log does not end at `expected_seq`.
            InvalidEntryError: The kind is unknown or the payload does not fit it.
            LeaseLostError: On durable backends, when the caller no longer owns the run's agent.
        """

    def read(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        """Yield the entries from `from_seq` (inclusive) to the present end, in order, then stop."""

    def tail(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        """Yield the entries from `from_seq`, then new ones as they come; ends after a terminal one.

        Safe to cancel; any number of readers; a reader resumes with the seq after its last.
        """

    async def last_seq(self, run_id: RunId) -> int:
        """Return the seq of the last entry, or -1 when there is none."""
