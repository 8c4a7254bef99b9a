"""The events of sessions: one closed vocabulary, for every way in which they are read.

`docs/session-events.schema.json` is their JSON Schema. An event that was stored has an `event_id`. With it as a
cursor a reader goes on behind that event, in any process.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from actors.sessions import payloads


class _SessionEvent(BaseModel):
    """The fields that all events have.

    Attributes:
        event_id: A cursor behind this event; None: it was never stored.
        session_id: The session.
        run_id: The run that it is about.
        agent_id: The agent of that run.
        seq: Of the entry of the run's log; -1: none.
        node_id: The node of the session that a message is.
        tool_call_id: The model's id of the tool call that it is about.
        at: When, aware UTC.
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
    """The run waits for others of its session."""

    type: Literal["run_queued"] = "run_queued"
    payload: payloads.QueuedData


class LoopStarted(_SessionEvent):
    """The run began."""

    type: Literal["loop_started"] = "loop_started"
    payload: payloads.StartedData


class MessageSaid(_SessionEvent):
    """A turn was stored: `node_id` is its node, if it is one of the session."""

    type: Literal["message"] = "message"
    payload: payloads.SaidData


class TextPiece(_SessionEvent):
    """A piece of an answer, live."""

    type: Literal["text_delta"] = "text_delta"
    payload: payloads.PieceData


class ReasoningPiece(_SessionEvent):
    """A piece of a model's reasoning, live."""

    type: Literal["reasoning_delta"] = "reasoning_delta"
    payload: payloads.PieceData


class TextSnapshot(_SessionEvent):
    """The whole text of an answer that is under way, instead of the pieces so far."""

    type: Literal["text_snapshot"] = "text_snapshot"
    payload: payloads.PieceData


class ToolCallStarted(_SessionEvent):
    """A tool is called."""

    type: Literal["tool_started"] = "tool_started"
    payload: payloads.ToolStartedData


class ToolCallFinished(_SessionEvent):
    """A tool gave its result."""

    type: Literal["tool_finished"] = "tool_finished"
    payload: payloads.ToolFinishedData


class ApprovalRequested(_SessionEvent):
    """A person is asked."""

    type: Literal["approval_requested"] = "approval_requested"
    payload: payloads.ApprovalRequestedData


class ApprovalDecided(_SessionEvent):
    """A person has decided, or the time for it is over."""

    type: Literal["approval_decided"] = "approval_decided"
    payload: payloads.ApprovalDecidedData


class ChildStarted(_SessionEvent):
    """The run has spawned another one."""

    type: Literal["child_started"] = "child_started"
    payload: payloads.ChildStartedData


class ChildFinished(_SessionEvent):
    """A spawned run has ended."""

    type: Literal["child_finished"] = "child_finished"
    payload: payloads.ChildFinishedData


class RunWaiting(_SessionEvent):
    """The run waits as rows only."""

    type: Literal["run_waiting"] = "run_waiting"
    payload: payloads.WaitingData


class RunResumed(_SessionEvent):
    """The run goes on."""

    type: Literal["run_resumed"] = "run_resumed"
    payload: payloads.ResumedData


class AttemptFailed(_SessionEvent):
    """An attempt of the run failed, and another one follows."""

    type: Literal["attempt_failed"] = "attempt_failed"
    payload: payloads.AttemptFailedData


class CancelRequested(_SessionEvent):
    """A client asked the run to stop."""

    type: Literal["cancel_requested"] = "cancel_requested"
    payload: payloads.ReasonData


class CancelTimeout(_SessionEvent):
    """`SessionRun.cancel` waited in vain; sent in this process only."""

    type: Literal["cancel_timeout"] = "cancel_timeout"
    payload: payloads.TimedOutData


class RunCompleted(_SessionEvent):
    """The run has ended well."""

    type: Literal["run_completed"] = "run_completed"
    payload: payloads.CompletedData


class RunFailed(_SessionEvent):
    """The run has failed for good."""

    type: Literal["run_failed"] = "run_failed"
    payload: payloads.FailedData


class RunCancelled(_SessionEvent):
    """The run was cancelled."""

    type: Literal["run_cancelled"] = "run_cancelled"
    payload: payloads.ReasonData


class RunDequeued(_SessionEvent):
    """A run that was cancelled before it began waits no more."""

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
"""Reads an event from JSON: ``EVENTS.validate_json(line)``."""

EVENT_TYPES: Final[tuple[str, ...]] = tuple(
    str(kind.model_fields["type"].default) for kind in get_args(SessionEvent)
)
"""The closed list of types."""


def events_schema() -> dict[str, Any]:
    """Return the JSON Schema of an event, with all types: `docs/session-events.schema.json` is its text."""
    schema = EVENTS.json_schema(mode="serialization")
    for kind in get_args(SessionEvent):
        schema["$defs"][kind.__name__]["required"].insert(0, "type")
    draft = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": draft, "title": "Event of a session", **schema}
