"""Values of communication: outcomes of asks and approvals, modes of following, a run's status for others."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Literal, TypeAlias

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, JsonValue

from actors._kernel.runtime.scheduler import RunStatus

FollowMode: TypeAlias = Literal["eager", "lazy"]
"""eager: a post wakes the follower. lazy: it gets the row but is not woken."""


class AskKind(StrEnum):
    """The four ends of an ask; there is exactly one.

    REPLIED: an answer came, or the target ended and this is its result.
    TIMED_OUT: no answer in time; the target goes on, `handle` names its run.
    TARGET_FAILED: the target failed for good, or the question was dead-lettered.
    TARGET_CANCELLED: the target was cancelled.
    """

    REPLIED = "replied"
    TIMED_OUT = "timed_out"
    TARGET_FAILED = "target_failed"
    TARGET_CANCELLED = "target_cancelled"


class AskOutcome(BaseModel):
    """The outcome of an ask.

    Attributes:
        kind: The way in which the ask ended.
        result: The answer, or the target's error.
        handle: Id of the target's run, where one is known: `ctx.status` follows it.
        last_seq: The last seq of the target's log at that time; -1 when unknown.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    kind: AskKind
    result: JsonValue = None
    handle: str | None = None
    last_seq: int = Field(default=-1, ge=-1)


class ApprovalStatus(StrEnum):
    """The three ends of a request for approval."""

    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"


class Approval(BaseModel):
    """The outcome of an approval: a person's decision, or none in time.

    Attributes:
        status: The way in which the approval ended.
        by: The person who decided; None when there is no decision.
        comment: What they said about it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    status: ApprovalStatus
    by: str | None = None
    comment: str = ""

    @property
    def is_approved(self) -> bool:
        """True if a person approved."""
        return self.status is ApprovalStatus.APPROVED


class ApprovalRequest(BaseModel):
    """A request for a person's approval, as a run made it.

    Attributes:
        id: Names it; depends on the run, the position in its code and the exact arguments, so a decision
            counts for nothing else.
        run_id: The run that asks.
        agent_id: The agent of that run, as text.
        what: Name of what is to be done.
        args: Its arguments.
        since: The instant of the question.
        expires_at: The instant at which the run goes on without a decision.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    run_id: str
    agent_id: str
    what: str
    args: JsonValue = None
    since: AwareDatetime
    expires_at: AwareDatetime | None = None


class RunStatusSummary(BaseModel):
    """The progress of a run, without its contents.

    Attributes:
        run_id: The run.
        status: Its status in the life cycle of runs.
        last_seq: The last seq of its log; -1 when empty.
        last_milestone: Kind of the last entry about the run itself or one of its effects.
        parked: Why it waits for an operator, if it does.
        updated_at: When the last entry was written.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    status: RunStatus
    last_seq: int = Field(default=-1, ge=-1)
    last_milestone: str | None = None
    parked: str | None = None
    updated_at: AwareDatetime | None = None
