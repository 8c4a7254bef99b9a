"""The events of sessions: one closed vocabulary, for every way in which they are read.

`docs/session-events.schema.json` is their JSON Schema. An event that was stored has an `event_id`. With it as a
cursor a reader goes on behind that event, in any process.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Literal, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from actors.sessions import payloads


class _Event(BaseModel):
    """What all events have.

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


class RunQueued(_Event):
    """The run waits for others of its session."""

    type: Literal["run_queued"] = "run_queued"
    payload: payloads.Queued


class LoopStarted(_Event):
    """The run began."""

    type: Literal["loop_started"] = "loop_started"
    payload: payloads.Started


class MessageSaid(_Event):
    """A turn was stored: `node_id` is its node, if it is one of the session."""

    type: Literal["message"] = "message"
    payload: payloads.Said


class TextDelta(_Event):
    """A piece of an answer, live."""

    type: Literal["text_delta"] = "text_delta"
    payload: payloads.Piece


class ReasoningDelta(_Event):
    """A piece of a model's reasoning, live."""

    type: Literal["reasoning_delta"] = "reasoning_delta"
    payload: payloads.Piece


class TextSnapshot(_Event):
    """All of an answer that is under way: in place of the pieces so far."""

    type: Literal["text_snapshot"] = "text_snapshot"
    payload: payloads.Piece


class ToolCallStarted(_Event):
    """A tool is called."""

    type: Literal["tool_started"] = "tool_started"
    payload: payloads.ToolStarted


class ToolCallFinished(_Event):
    """A tool gave its result."""

    type: Literal["tool_finished"] = "tool_finished"
    payload: payloads.ToolFinished


class ApprovalRequested(_Event):
    """A person is asked."""

    type: Literal["approval_requested"] = "approval_requested"
    payload: payloads.ApprovalRequested


class ApprovalDecided(_Event):
    """A person has decided, or the time for it is over."""

    type: Literal["approval_decided"] = "approval_decided"
    payload: payloads.ApprovalDecided


class ChildStarted(_Event):
    """The run has spawned another one."""

    type: Literal["child_started"] = "child_started"
    payload: payloads.ChildStarted


class ChildFinished(_Event):
    """A spawned run has ended."""

    type: Literal["child_finished"] = "child_finished"
    payload: payloads.ChildFinished


class RunWaiting(_Event):
    """The run waits as rows only."""

    type: Literal["run_waiting"] = "run_waiting"
    payload: payloads.Waiting


class RunResumed(_Event):
    """The run goes on."""

    type: Literal["run_resumed"] = "run_resumed"
    payload: payloads.Resumed


class AttemptFailed(_Event):
    """An attempt of the run failed, and another one follows."""

    type: Literal["attempt_failed"] = "attempt_failed"
    payload: payloads.AttemptFailed


class CancelRequested(_Event):
    """Somebody asked the run to stop."""

    type: Literal["cancel_requested"] = "cancel_requested"
    payload: payloads.Reason


class CancelTimeout(_Event):
    """`SessionRun.cancel` waited in vain; told to this process only."""

    type: Literal["cancel_timeout"] = "cancel_timeout"
    payload: payloads.TimedOut


class RunCompleted(_Event):
    """The run has ended well."""

    type: Literal["run_completed"] = "run_completed"
    payload: payloads.Completed


class RunFailed(_Event):
    """The run has failed for good."""

    type: Literal["run_failed"] = "run_failed"
    payload: payloads.Failed


class RunCancelled(_Event):
    """The run was cancelled."""

    type: Literal["run_cancelled"] = "run_cancelled"
    payload: payloads.Reason


class RunDequeued(_Event):
    """A run that was cancelled before it began waits no more."""

    type: Literal["run_dequeued"] = "run_dequeued"
    payload: payloads.Nothing


SessionEvent: TypeAlias = (
    RunQueued
    | LoopStarted
    | MessageSaid
    | TextDelta
    | ReasoningDelta
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
