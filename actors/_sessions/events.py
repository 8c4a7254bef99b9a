"""Events of sessions: a closed list of types, the same for all readers, and positions among them.

`docs/session-events.schema.json` is their JSON Schema. The payload of each type is a JSON object. A stored
event has an `event_id`. A reader in any process may use it as a cursor and continues after that event.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Literal, NotRequired, Self, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict, override

from actors._kernel.basics import MAX_INT
from actors._kernel.stores.conversations import NO_FACT
from actors._sessions.errors import CursorError


class QueuedData(TypedDict):
    """The number of open runs of the session before this run."""

    ahead: int


class NothingData(TypedDict):
    """An empty object."""


class StartedData(TypedDict):
    """The mode whose agent executes the run."""

    mode: str


class SaidData(TypedDict):
    """A turn of the conversation. An answer also has the model, its usage, and the position of its pieces.

    `stopped`: ``length`` if a limit of tokens cut the answer off, ``cancelled`` if it is what was shown of an
    answer until its run was stopped.
    """

    role: Literal["system", "user", "assistant", "tool"]
    text: str
    content: list[dict[str, Any]]
    model: NotRequired[str]
    usage: NotRequired[dict[str, Any] | None]
    position: NotRequired[str]
    stopped: NotRequired[Literal["length", "cancelled"]]


class PieceData(TypedDict):
    """A piece of a text that is being generated. If `attempt` grows, the earlier pieces are void."""

    text: str
    attempt: int
    position: str


class ToolStartedData(TypedDict):
    """A call of a tool begins. `arguments` are the arguments that the model gave, if a model called it.

    `client`: true if the run's client executes the call. Then the run waits for the result.
    """

    name: str
    arguments: NotRequired[dict[str, Any]]
    client: NotRequired[bool]


class ToolFinishedData(TypedDict):
    """The result of a call of a tool."""

    name: str
    status: str
    result: Any


class ApprovalRequestedData(TypedDict):
    """A request of an approval."""

    approval_id: str
    what: str
    args: Any
    expires_at: NotRequired[str]


class ApprovalDecidedData(TypedDict):
    """The decision: ``approved``, ``denied`` or ``expired``."""

    approval_id: str
    status: str
    by: NotRequired[str | None]
    comment: NotRequired[str]


class ChildStartedData(TypedDict):
    """A run was spawned."""

    child: str
    agent: str


class ChildFinishedData(TypedDict):
    """A spawned run has ended, and this run has recorded it."""

    child: str
    status: str
    output: NotRequired[Any]
    error: NotRequired[dict[str, Any] | None]


class WaitingData(TypedDict):
    """The run was evicted from memory.

    `until`: the instant at which it continues at the latest. `parked`: the reason why an operator has to
    decide.
    """

    until: NotRequired[str]
    signals: NotRequired[list[str]]
    parked: NotRequired[str]
    detail: NotRequired[str]


class ResumedData(TypedDict):
    """The reason why the run continues: ``woken``, ``recovered`` (after a crash) or ``continued`` (as new)."""

    reason: str


class AttemptFailedData(TypedDict):
    """An attempt failed. The next attempt begins at `retry_at`."""

    attempt: int
    error: dict[str, Any]
    retry_at: str


class ReasonData(TypedDict):
    """The reason, in the words of the caller."""

    reason: str


class TimedOutData(TypedDict):
    """The time limit of a cancel, after which the run still has not ended."""

    waited_s: float


class CompletedData(TypedDict):
    """The output of the run."""

    output: Any


class FailedData(TypedDict):
    """The error of the run."""

    error: dict[str, Any]


class _SessionEvent(BaseModel):
    """The fields that all events have.

    Attributes:
        event_id: A cursor after this event, or None if the event is not stored.
        session_id: The session.
        run_id: The run of the event.
        agent_id: The agent of that run.
        seq: The number of the entry in the run's log. -1: the event has no entry.
        node_id: The node of the session, for a message.
        tool_call_id: The model's id of the tool call, for an event about one.
        at: The instant of the event, aware UTC.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    event_id: str | None = None
    session_id: str
    run_id: str
    agent_id: str
    seq: int = -1
    node_id: str | None = None
    tool_call_id: str | None = None
    at: datetime


class RunQueued(_SessionEvent):
    """The run waits for earlier runs of its session."""

    type: Literal["run_queued"] = "run_queued"
    payload: QueuedData


class LoopStarted(_SessionEvent):
    """The run began."""

    type: Literal["loop_started"] = "loop_started"
    payload: StartedData


class MessageSaid(_SessionEvent):
    """A turn was stored. `node_id` is its node if it is a turn of the session."""

    type: Literal["message"] = "message"
    payload: SaidData


class TextPiece(_SessionEvent):
    """A piece of an answer, sent while the model answers."""

    type: Literal["text_delta"] = "text_delta"
    payload: PieceData


class ReasoningPiece(_SessionEvent):
    """A piece of a model's reasoning, sent while the model answers."""

    type: Literal["reasoning_delta"] = "reasoning_delta"
    payload: PieceData


class TextSnapshot(_SessionEvent):
    """The text so far of an answer in progress, in place of its earlier pieces."""

    type: Literal["text_snapshot"] = "text_snapshot"
    payload: PieceData


class ToolCallStarted(_SessionEvent):
    """A call of a tool began."""

    type: Literal["tool_started"] = "tool_started"
    payload: ToolStartedData


class ToolCallFinished(_SessionEvent):
    """A tool returned its result."""

    type: Literal["tool_finished"] = "tool_finished"
    payload: ToolFinishedData


class ApprovalRequested(_SessionEvent):
    """An approval was requested."""

    type: Literal["approval_requested"] = "approval_requested"
    payload: ApprovalRequestedData


class ApprovalDecided(_SessionEvent):
    """An approval was decided or has expired."""

    type: Literal["approval_decided"] = "approval_decided"
    payload: ApprovalDecidedData


class ChildStarted(_SessionEvent):
    """The run spawned another run."""

    type: Literal["child_started"] = "child_started"
    payload: ChildStartedData


class ChildFinished(_SessionEvent):
    """A spawned run has ended."""

    type: Literal["child_finished"] = "child_finished"
    payload: ChildFinishedData


class RunWaiting(_SessionEvent):
    """The run waits and was evicted from memory."""

    type: Literal["run_waiting"] = "run_waiting"
    payload: WaitingData


class RunResumed(_SessionEvent):
    """The run continues."""

    type: Literal["run_resumed"] = "run_resumed"
    payload: ResumedData


class AttemptFailed(_SessionEvent):
    """An attempt of the run failed, and another one follows."""

    type: Literal["attempt_failed"] = "attempt_failed"
    payload: AttemptFailedData


class CancelRequested(_SessionEvent):
    """A client requested the run's cancellation."""

    type: Literal["cancel_requested"] = "cancel_requested"
    payload: ReasonData


class CancelTimeout(_SessionEvent):
    """`SessionRun.cancel` reached its time limit. The event is sent in this process only."""

    type: Literal["cancel_timeout"] = "cancel_timeout"
    payload: TimedOutData


class RunCompleted(_SessionEvent):
    """The run has ended successfully."""

    type: Literal["run_completed"] = "run_completed"
    payload: CompletedData


class RunFailed(_SessionEvent):
    """The run has failed permanently."""

    type: Literal["run_failed"] = "run_failed"
    payload: FailedData


class RunCancelled(_SessionEvent):
    """The run was cancelled."""

    type: Literal["run_cancelled"] = "run_cancelled"
    payload: ReasonData


class RunDequeued(_SessionEvent):
    """A run was cancelled before it began and leaves the queue."""

    type: Literal["run_dequeued"] = "run_dequeued"
    payload: NothingData


SessionEvent: TypeAlias = (
    RunQueued
    | LoopStarted
    | MessageSaid
    | TextPiece
    | ReasoningPiece
    | TextSnapshot
    | ToolCallStarted
    | ToolCallFinished
    | ApprovalRequested
    | ApprovalDecided
    | ChildStarted
    | ChildFinished
    | RunWaiting
    | RunResumed
    | AttemptFailed
    | CancelRequested
    | CancelTimeout
    | RunCompleted
    | RunFailed
    | RunCancelled
    | RunDequeued
)

EVENTS: Final[TypeAdapter[SessionEvent]] = TypeAdapter(
    Annotated[SessionEvent, Field(discriminator="type")]
)
"""The reader of events from JSON: ``EVENTS.validate_json(line)``."""

EVENT_TYPES: Final[tuple[str, ...]] = tuple(
    str(kind.model_fields["type"].default) for kind in get_args(SessionEvent)
)
"""The types of all events."""


def events_schema() -> dict[str, Any]:
    """Return the JSON Schema of events of all types. `docs/session-events.schema.json` is its text."""
    schema = EVENTS.json_schema(mode="serialization")
    for kind in get_args(SessionEvent):
        schema["$defs"][kind.__name__]["required"].insert(0, "type")
    draft = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": draft, "title": "Event of a session", **schema}


_FORM: Final = re.compile(
    r"(?P<fact>\d{1,15})(?P<half>\.0)?:(?:-1|(?P<seq>\d{1,15})(?:\.(?P<part>\d{1,9}))?)", re.ASCII
)


@dataclass(frozen=True, slots=True)
class EventCursor:
    """The position after an event. Its text is ``fact:seq``.

    Attributes:
        fact: The number of the last fact of the session that was read.
        seq: The number of the last entry that was read of the run that is active after that fact. -1: no entry
            was read.
        part: The number of the last event of that entry that was read, or None if all its events were read.
        is_half: True if only the first of the fact's two events was read.
    """

    fact: int = NO_FACT
    seq: int = -1
    part: int | None = None
    is_half: bool = False

    @classmethod
    def parse(cls, text: str, session: str) -> Self:
        """Return the cursor from its text.

        Raises:
            CursorError: The text is not a cursor.
        """
        match = _FORM.fullmatch(text)
        if match is None:
            raise CursorError(text[:60], session, "it is not the `event_id` of an event")
        seq, part = match["seq"], match["part"]
        if int(seq or 0) > MAX_INT:
            raise CursorError(text[:60], session, f"its second number is above {MAX_INT}")
        return cls(
            int(match["fact"]),
            -1 if seq is None else int(seq),
            None if part is None else int(part),
            match["half"] is not None,
        )

    @property
    def last_fact(self) -> int:
        """Number of the last fact of which all events were read."""
        return self.fact - 1 if self.is_half else self.fact

    @property
    def next_seq(self) -> int:
        """Number of the first entry to read."""
        return self.seq + 1 if self.part is None else self.seq

    @property
    def skip(self) -> int:
        """The number of events of that entry that were read already."""
        return 0 if self.part is None else self.part + 1

    @override
    def __str__(self) -> str:
        half = ".0" if self.is_half else ""
        part = "" if self.part is None else f".{self.part}"
        return f"{self.fact}{half}:{self.seq}{part}"
