"""What an asker gets, and what others may know of a run."""

from __future__ import annotations

from enum import StrEnum

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, JsonValue

from actors.kernel.runtime.scheduler import RunStatus


class AskKind(StrEnum):
    """The four ends of an ask; there is exactly one.

    REPLIED: an answer came, or the target ended and this is its result.
    TIMED_OUT: no answer in time; the target lives, `handle` names its run.
    TARGET_FAILED: the target failed for good, or the question was dead-lettered.
    TARGET_CANCELLED: the target was cancelled.
    """

    REPLIED = "replied"
    TIMED_OUT = "timed_out"
    TARGET_FAILED = "target_failed"
    TARGET_CANCELLED = "target_cancelled"


class AskOutcome(BaseModel):
    """What became of an ask.

    Attributes:
        kind: Which end.
        result: The answer, or the target's error.
        handle: Id of the target's run, where one is known: `ctx.status` follows it.
        last_seq: How far the target's log was then; -1 when unknown.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: AskKind
    result: JsonValue = None
    handle: str | None = None
    last_seq: int = Field(default=-1, ge=-1)


class RunStatusSummary(BaseModel):
    """How far a run is, without its contents.

    Attributes:
        run_id: The run.
        status: In its life cycle.
        last_seq: Where its log ends; -1 when empty.
        last_milestone: Kind of the last entry about the run itself or one of its effects.
        parked: Why it waits for an operator, if it does.
        updated_at: When the last entry was written.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    status: RunStatus
    last_seq: int = Field(default=-1, ge=-1)
    last_milestone: str | None = None
    parked: str | None = None
    updated_at: AwareDatetime | None = None
