"""Sources of a run: who starts it, the mailbox that feeds it, and the log that its row is computed from.

The mailbox of an agent delivers idempotently, keeps the order per sender, and has dead letters.

Every store keeps the columns of a run's row beside the log because reading them is cheaper; `fold` computes
what they must be equal to, from the log's entries alone. The rules:

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

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import ClassVar, Final, Protocol

from pydantic import BaseModel, ConfigDict, Field
from pydantic import JsonValue as ModelJson

from actors._kernel.agent.agent import Agent, Supervision
from actors._kernel.agent.message import Message
from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.log_entry import TERMINAL_KINDS, EntryKind, NewEntry, RunLogEntry
from actors._kernel.runtime.rows import DeadLetter, RunRow
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.runtime.waits import WakeSet


@dataclass(frozen=True, slots=True)
class RunHandle:
    """Names a run; holds nothing alive. `parent_run` is the run that spawned it, if one did."""

    run_id: RunId
    agent_id: AgentId
    parent_run: RunId | None = None


class RunResult(BaseModel):
    """The result of a run that ended.

    Attributes:
        run_id: The run.
        status: COMPLETED, FAILED or CANCELLED.
        output: What its `run` returned.
        error: Type and message, for FAILED; the reason, for CANCELLED.
        metadata: Small facts, for example token counts.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    status: RunStatus
    output: ModelJson = None
    error: dict[str, ModelJson] | None = None
    metadata: dict[str, ModelJson] = Field(default_factory=dict)


class Supervisor(Protocol):
    """The tree of runs: who spawned whom, and how each ended."""

    async def spawn(
        self,
        child_agent: Agent | AgentId,
        *,
        parent: RunId,
        supervision: Supervision,
        boot: Message | None = None,
    ) -> RunHandle:
        """Create a child run and return at once; its id is derived, so a replay creates none.

        The child, ``child.spawned`` in the parent's log and the boot message are one commit.

        Raises:
            SpawnDenied: The tree's budget is used up.
        """

    async def join(self, handle: RunHandle) -> RunResult:
        """Return the run's result, also when it ended before the call.

        Cancelling the call does not touch the run.
        """

    async def cancel(self, handle: RunHandle, *, reason: str = "") -> None:
        """Ask the run and everything below it to stop. See `ArrivalStore.request_cancel`."""

    async def children_of(self, run_id: RunId) -> list[RunHandle]:
        """Return the runs spawned by this one, in the order they were."""

    async def record_completion(self, run_id: RunId, result: RunResult) -> None:
        """Keep a run's result and wake who waits for it; a second one is ignored."""


class Inbox(Protocol):
    """Messages waiting for agents."""

    async def deliver(self, agent_id: AgentId, msg: Message, *, notify: bool = True) -> bool:
        """Keep a message for the agent; False (and no change) when its id is known from its sender.

        `notify=False` leaves the deliver hook uncalled: the caller starts the run itself.
        """

    async def drain(self, agent_id: AgentId, *, max: int = 100) -> list[Message]:  # noqa: A002
        """Return up to `max` waiting messages, in arrival order per sender, without removing them."""

    async def ack(self, agent_id: AgentId, msg_id: str) -> None:
        """Mark a message as handled; delivering it again stays refused."""

    async def nack(self, agent_id: AgentId, msg_id: str, *, error: str = "") -> None:
        """Count a failed attempt; after the limit the message becomes a dead letter."""

    async def dead_letters(self, agent_id: AgentId) -> list[DeadLetter]:
        """Return the agent's messages that were given up."""

    async def redrive(self, agent_id: AgentId, msg_id: str) -> bool:
        """Make a dead letter wait again with a fresh counter; False when there is none of that id."""

    async def pending_count(self, agent_id: AgentId) -> int:
        """Return how many messages wait or are being handled."""

    def set_deliver_hook(self, hook: Callable[[AgentId], None] | None) -> None:
        """Call `hook` once per new message delivered with `notify=True`."""


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
        _with_status(cause, RunStatus.PENDING), attempt=0, last_seq=-1, result=None, error=None
    )
    is_executing, previous_row, last_kind = False, row, ""
    for entry in entries:
        next_row = _step(row, entry)
        if next_row is None:
            attempt = row.attempt if is_executing else row.attempt + 1
            attempt = 1 if entry.kind == EntryKind.RUN_CONTINUED else attempt
            next_row = replace(_with_status(row, RunStatus.RUNNING), attempt=attempt)
            is_executing = True
        elif entry.kind == EntryKind.RUN_ATTEMPT_FAILED:
            is_executing = False
        elif not is_executing and ends_execution(entry):
            next_row = replace(next_row, attempt=row.attempt + 1)
        elif (
            last_kind == EntryKind.RUN_ATTEMPT_FAILED
            and entry.kind == EntryKind.RUN_PARKED
            and entry.payload["reason"] == "retries"
        ):
            # A commit that parks a run leaves the error column: the last attempt's error is only in the log.
            next_row = replace(next_row, error=previous_row.error)
        previous_row, last_kind = row, entry.kind
        row = replace(next_row, last_seq=entry.seq)
    return row


def ends_execution(entry: RunLogEntry | NewEntry) -> bool:
    """Return True if this is an end that only executing code reaches."""
    if entry.kind == EntryKind.RUN_PARKED:
        return entry.payload["reason"] in ("non_determinism", "in_doubt")
    return entry.kind in (EntryKind.RUN_COMPLETED, EntryKind.RUN_FAILED)


def _step(row: RunRow, entry: RunLogEntry) -> RunRow | None:
    """Return the row after an entry that sets a status; None for an entry of executing code."""
    payload = entry.payload
    next_row: RunRow | None = None
    match entry.kind:
        case EntryKind.RUN_COMPLETED:
            next_row = _with_status(row, RunStatus.COMPLETED)
            next_row = replace(next_row, result=payload["output"], error=None)
        case EntryKind.RUN_FAILED:
            next_row = replace(_with_status(row, RunStatus.FAILED), error=_object(payload["error"]))
        case EntryKind.RUN_CANCELLED:
            next_row = replace(_with_status(row, RunStatus.CANCELLED), error=None)
        case EntryKind.RUN_SUSPENDED:
            wake = WakeSet.from_json(_object(payload["wake"]) or {})
            next_row = _with_status(row, RunStatus.SUSPENDED)
            next_row = replace(next_row, wake=wake, wake_at=wake.at)
        case EntryKind.RUN_PARKED:
            next_row = _with_status(row, RunStatus.SUSPENDED)
            next_row = replace(next_row, parked=str(payload["reason"]))
        case EntryKind.RUN_ATTEMPT_FAILED:
            at = payload["at"]
            next_row = replace(
                _with_status(row, RunStatus.PENDING),
                attempt=int(str(payload["attempt"])),
                wake_at=datetime.fromisoformat(at) if isinstance(at, str) else None,
                error=_object(payload["error"]),
            )
        case EntryKind.CANCEL_REQUESTED | EntryKind.ORPHANS_RESOLVED:
            next_row = row
    return next_row


def _with_status(row: RunRow, status: RunStatus) -> RunRow:
    return replace(row, status=status, wake=None, wake_at=None, parked=None)


def _object(value: JsonValue) -> dict[str, JsonValue] | None:
    return value if isinstance(value, dict) else None
