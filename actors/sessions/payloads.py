"""What each type of event says, as JSON objects."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict


class Queued(TypedDict):
    """How many open runs of the session are before this one."""

    ahead: int


class Nothing(TypedDict):
    """An empty object."""


class Started(TypedDict):
    """The mode whose agent executes the run."""

    mode: str


class Said(TypedDict):
    """A turn of the conversation. Of an answer also the model and what it used."""

    role: Literal["system", "user", "assistant", "tool"]
    text: str
    content: list[dict[str, Any]]
    model: NotRequired[str]
    usage: NotRequired[dict[str, Any] | None]


class Piece(TypedDict):
    """A piece of a text while it is said. If `attempt` grows, the pieces before it are void."""

    text: str
    attempt: int
    position: str


class ToolStarted(TypedDict):
    """A call of a tool begins. `arguments` are those that the model gave, if a model did."""

    name: str
    arguments: NotRequired[dict[str, Any]]


class ToolFinished(TypedDict):
    """The result of a call of a tool."""

    name: str
    status: str
    result: Any


class ApprovalRequested(TypedDict):
    """A person is asked whether something may be done."""

    approval_id: str
    what: str
    args: Any
    expires_at: NotRequired[str]


class ApprovalDecided(TypedDict):
    """The decision: ``approved``, ``denied`` or ``expired``."""

    approval_id: str
    status: str
    by: NotRequired[str | None]
    comment: NotRequired[str]


class ChildStarted(TypedDict):
    """A run was spawned."""

    child: str
    agent: str


class ChildFinished(TypedDict):
    """A spawned run has ended, and this one knows it."""

    child: str
    status: str
    output: NotRequired[Any]
    error: NotRequired[dict[str, Any] | None]


class Waiting(TypedDict):
    """The run left memory. `until`: when it goes on at the latest. `parked`: an operator has to decide."""

    until: NotRequired[str]
    signals: NotRequired[list[str]]
    parked: NotRequired[str]
    detail: NotRequired[str]


class Resumed(TypedDict):
    """Why the run goes on: ``woken``, ``recovered`` after a crash, or ``continued`` as a new generation."""

    reason: str


class AttemptFailed(TypedDict):
    """An attempt failed; the next one begins at `retry_at`."""

    attempt: int
    error: dict[str, Any]
    retry_at: str


class Reason(TypedDict):
    """Why, as whoever asked for it said."""

    reason: str


class TimedOut(TypedDict):
    """The run goes on although its cancel was waited for so long."""

    waited_s: float


class Completed(TypedDict):
    """What the run returned."""

    output: Any


class Failed(TypedDict):
    """Why the run failed."""

    error: dict[str, Any]
