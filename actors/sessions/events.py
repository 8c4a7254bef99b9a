"""The events of sessions: a closed list of types, the same for all readers.

`docs/session-events.schema.json` is their JSON Schema. A stored event has an `event_id`. A reader in any
process may use it as a cursor and continues after that event.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from actors.sessions import payloads


class _SessionEvent(BaseModel):
    """The fields that all events have.

    Attributes:
        event_id: A cursor after this event. None: the event is not stored.
        session_id: The session.
        run_id: The run of the event.
        agent_id: The agent of that run.
        seq: The number of the entry in the run's log. -1: the event has no entry.
        node_id: The node of the session, for a message.
        tool_call_id: The model's id of the tool call, for an event about one.
        at: The instant of the event, aware UTC.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

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
    payload: payloads.QueuedData


class LoopStarted(_SessionEvent):
    """The run began."""

    type: Literal["loop_started"] = "loop_started"
    payload: payloads.StartedData


class MessageSaid(_SessionEvent):
    """A turn was stored. `node_id` is its node if it is a turn of the session."""

    type: Literal["message"] = "message"
    payload: payloads.SaidData


class TextPiece(_SessionEvent):
    """A piece of an answer, sent while the model answers."""

    type: Literal["text_delta"] = "text_delta"
    payload: payloads.PieceData


class ReasoningPiece(_SessionEvent):
    """A piece of a model's reasoning, sent while the model answers."""

    type: Literal["reasoning_delta"] = "reasoning_delta"
    payload: payloads.PieceData


class TextSnapshot(_SessionEvent):
    """The text so far of an answer in progress, in place of its earlier pieces."""

    type: Literal["text_snapshot"] = "text_snapshot"
    payload: payloads.PieceData


class ToolCallStarted(_SessionEvent):
    """A call of a tool began."""

    type: Literal["tool_started"] = "tool_started"
    payload: payloads.ToolStartedData


class ToolCallFinished(_SessionEvent):
    """A tool returned its result."""

    type: Literal["tool_finished"] = "tool_finished"
    payload: payloads.ToolFinishedData


class ApprovalRequested(_SessionEvent):
    """An approval was requested."""

    type: Literal["approval_requested"] = "approval_requested"
    payload: payloads.ApprovalRequestedData


class ApprovalDecided(_SessionEvent):
    """An approval was decided or has expired."""

    type: Literal["approval_decided"] = "approval_decided"
    payload: payloads.ApprovalDecidedData


class ChildStarted(_SessionEvent):
    """The run spawned another run."""

    type: Literal["child_started"] = "child_started"
    payload: payloads.ChildStartedData


class ChildFinished(_SessionEvent):
    """A spawned run has ended."""

    type: Literal["child_finished"] = "child_finished"
    payload: payloads.ChildFinishedData


class RunWaiting(_SessionEvent):
    """The run waits and was evicted from memory."""

    type: Literal["run_waiting"] = "run_waiting"
    payload: payloads.WaitingData


class RunResumed(_SessionEvent):
    """The run continues."""

    type: Literal["run_resumed"] = "run_resumed"
    payload: payloads.ResumedData


class AttemptFailed(_SessionEvent):
    """An attempt of the run failed, and another one follows."""

    type: Literal["attempt_failed"] = "attempt_failed"
    payload: payloads.AttemptFailedData


class CancelRequested(_SessionEvent):
    """A client requested the run's cancellation."""

    type: Literal["cancel_requested"] = "cancel_requested"
    payload: payloads.ReasonData


class CancelTimeout(_SessionEvent):
    """`SessionRun.cancel` reached its time limit. The event is sent in this process only."""

    type: Literal["cancel_timeout"] = "cancel_timeout"
    payload: payloads.TimedOutData


class RunCompleted(_SessionEvent):
    """The run has ended successfully."""

    type: Literal["run_completed"] = "run_completed"
    payload: payloads.CompletedData


class RunFailed(_SessionEvent):
    """The run has failed permanently."""

    type: Literal["run_failed"] = "run_failed"
    payload: payloads.FailedData


class RunCancelled(_SessionEvent):
    """The run was cancelled."""

    type: Literal["run_cancelled"] = "run_cancelled"
    payload: payloads.ReasonData


class RunDequeued(_SessionEvent):
    """A run was cancelled before it began and leaves the queue."""

    type: Literal["run_dequeued"] = "run_dequeued"
    payload: payloads.NothingData


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
