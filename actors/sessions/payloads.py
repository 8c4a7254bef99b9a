"""Payloads of events by type, as JSON objects."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict


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
