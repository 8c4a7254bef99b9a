"""The verdict on an attempt, and summaries of a run for others. Pure, but for the reads of rows at the end.

What escaped `run()` decides the entries and the status that follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from actors._kernel.agent.agent import HistoryRetention
from actors._kernel.agent.message import MessageKey
from actors._kernel.basics import bounded_s
from actors._kernel.json import JsonValue
from actors._kernel.json_data import clean_text
from actors._kernel.runtime.commit import Finish, Park, Retry, Then
from actors._kernel.runtime.communication import RunStatusSummary
from actors._kernel.runtime.ids import RunId
from actors._kernel.runtime.log_entry import EntryKind, NewEntry
from actors._kernel.runtime.rows import RunRow
from actors._kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors._kernel.runtime.sources import RunHandle, RunResult
from actors._kernel.runtime.waits import Answer, AnswerStatus
from actors._kernel.stores.run_store import RunStore
from actors._kernel.text import is_name
from actors._runtime.replay.failures import is_named, origin_of, record_error, text_of
from actors.errors import (
    BudgetExhaustedError,
    ContractError,
    DeadlineExceededError,
    EffectInDoubtError,
    MiddlewareTermination,
    ModelError,
    NonDeterminismError,
    OutputError,
    RetryAfter,
    TerminalError,
    UnknownRunError,
)

FINAL: Final = (MiddlewareTermination, BudgetExhaustedError, TerminalError, ContractError)
"""Errors that end a run without a retry."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The entries that close the attempt, and the run's new status."""

    entries: tuple[NewEntry, ...]
    then: Then


@dataclass(frozen=True, slots=True)
class Attempt:
    """The facts that a verdict depends on beside the error.

    Attributes:
        number: 1 for the first.
        policy: The run's.
        last_seq: The last seq of the log, everything recorded included.
        now: The instant of the failure.
        chance: A random number in [0, 1), for the jitter of the wait.
        failures: The instants at which earlier attempts failed.
        deadline: The deadline of the run.
        other_messages: Messages of the run beside its first that can go back: no call of its code is durable.
    """

    number: int
    policy: RetryPolicy
    last_seq: int
    now: datetime
    chance: float
    failures: tuple[datetime, ...] = ()
    deadline: datetime | None = None
    other_messages: tuple[MessageKey, ...] = ()

    @property
    def failure_count(self) -> int:
        """The number of failures that count, this one included: all, or those of the policy's last seconds."""
        if self.policy.within_s is None:
            return 1 + len(self.failures)
        since = self.now - timedelta(seconds=bounded_s(self.policy.within_s))
        return 1 + sum(at >= since for at in self.failures)


def completed_verdict(output: JsonValue) -> Verdict:
    """Return the verdict on code that returned."""
    entry = NewEntry(EntryKind.RUN_COMPLETED, "", {"output": output})
    return Verdict((entry,), Finish(RunStatus.COMPLETED, result=output))


def cancelled_verdict(reason: str) -> Verdict:
    """Return the verdict on a run that was asked to stop."""
    # The agent's code may have asked, in any words.
    entry = NewEntry(EntryKind.RUN_CANCELLED, "", {"reason": clean_text(str(reason))})
    return Verdict((entry,), Finish(RunStatus.CANCELLED))


def parked_verdict(reason: str, detail: str, position: str = "") -> Verdict:
    """Return the verdict that parks the run until an operator decides."""
    position = clean_text(position)
    payload: dict[str, JsonValue] = {"reason": reason, "detail": detail, "at": position}
    return Verdict((NewEntry(EntryKind.RUN_PARKED, "", payload),), Park(reason, position))


def late_verdict(exc: DeadlineExceededError, number: int) -> Verdict:
    """Return the verdict on a run whose deadline, or its tree's, has passed."""
    return _failed_verdict("deadline_exceeded", exc, number)


def with_orphans(verdict: Verdict, policy: HistoryRetention, children: tuple[str, ...]) -> Verdict:
    """Return the verdict saying, if it ends the run, what becomes of children that were not joined."""
    if not (children and isinstance(verdict.then, Finish)):
        return verdict
    payload: dict[str, JsonValue] = {"policy": policy.value, "children": list(children)}
    entry = NewEntry(EntryKind.ORPHANS_RESOLVED, "", payload)
    return Verdict((*verdict.entries[:-1], entry, verdict.entries[-1]), verdict.then)


def judge(exc: BaseException, attempt: Attempt) -> Verdict:
    """Return what follows from an error that escaped `run()`; the table of docs/replay.md."""
    match exc:
        case NonDeterminismError():
            verdict = parked_verdict(exc.parked_as, text_of(exc), exc.position)
        case EffectInDoubtError():
            verdict = parked_verdict("in_doubt", text_of(exc), exc.position)
        case _ if attempt.other_messages:
            verdict = _split_verdict(exc, attempt)
        case MiddlewareTermination():
            verdict = _failed_verdict("guardrail_tripped", exc, attempt.number)
        case BudgetExhaustedError():
            status = str(getattr(exc, "status", "budget_exhausted"))
            verdict = _failed_verdict(status, exc, attempt.number)
        case TerminalError() | ContractError():
            verdict = _failed_verdict("terminal", exc, attempt.number, dead_letter="explicit")
        case _:
            verdict = _crash_verdict(exc, attempt)
    return verdict


def _split_verdict(exc: BaseException, attempt: Attempt) -> Verdict:
    """Return a verdict that splits a run of several messages: it keeps its first, the others wait.

    One of the messages may be the cause; each of the others then gets a run of its own.

    This failure counts for none of them. An error that no wait mends has none.
    """
    entry, then = _attempt_failure(exc, attempt)
    at, error = then.at, then.error
    is_named_by_policy = is_named(exc, attempt.policy.non_retryable)
    if isinstance(exc, FINAL) or is_named_by_policy or _is_final_for_models(exc):
        # A wait does not mend such an error, so the run with its first message begins at once.
        at = attempt.now
    payload: dict[str, JsonValue] = {
        "attempt": attempt.number,
        "error": error,
        "retry_from": attempt.last_seq,
        "at": at.isoformat(),
        "kept": 1,
    }
    failed_entry = NewEntry(entry.kind, "", payload)
    return Verdict((failed_entry,), Retry(at, error, attempt.last_seq, attempt.other_messages))


def _crash_verdict(exc: BaseException, attempt: Attempt) -> Verdict:
    """Return the verdict on an error of the agent's code: a retry while the policy has retries left."""
    origin = origin_of(exc)
    is_final = origin is not None and not origin.may_repeat
    if is_final or is_named(exc, attempt.policy.non_retryable):
        return _failed_verdict("terminal", exc, attempt.number, dead_letter="explicit")
    # The policy decides what becomes of the run, so that it may wait until a person has corrected a key.
    is_hopeless = _is_final_for_models(exc)
    is_exhausted = is_hopeless or attempt.failure_count > attempt.policy.max_retries
    if not is_exhausted:
        entry, then = _attempt_failure(exc, attempt)
        return Verdict((entry,), then)
    if attempt.policy.on_exhausted == "pause":
        entry, _ = _attempt_failure(exc, attempt)
        parking = parked_verdict("retries", f"{type(exc).__name__}: {text_of(exc)}")
        return Verdict((entry, *parking.entries), parking.then)
    dead_letter = "explicit" if is_hopeless else "max_retries"
    return _failed_verdict(
        "terminal" if is_hopeless else "agent_crashed",
        exc,
        attempt.number,
        dead_letter=dead_letter if attempt.policy.on_exhausted == "dead_letter" else None,
    )


def _is_final_for_models(exc: BaseException) -> bool:
    """Return True if the same request to a model would get the same error."""
    return isinstance(exc, OutputError) or (isinstance(exc, ModelError) and not exc.retryable)


def _failed_verdict(
    status: str, exc: BaseException, number: int, dead_letter: str | None = None
) -> Verdict:
    error = record_error(exc)
    error.pop("args", None)
    error["status"] = status
    payload: dict[str, JsonValue] = {"status": status, "error": error, "attempt": number}
    return Verdict(
        (NewEntry(EntryKind.RUN_FAILED, "", payload),),
        Finish(RunStatus.FAILED, error=error, dead_letter=dead_letter),
    )


def _attempt_failure(exc: BaseException, attempt: Attempt) -> tuple[NewEntry, Retry]:
    origin = origin_of(exc)
    delay = exc.delay_s if isinstance(exc, RetryAfter) else None
    if delay is None:
        delay = attempt.policy.delay_s(attempt.failure_count, attempt.chance)
    at = attempt.now + timedelta(seconds=bounded_s(delay))
    # The run ends at its deadline in any state, so no wait reaches beyond it.
    if attempt.deadline is not None:
        at = min(at, max(attempt.deadline, attempt.now))
    error = record_error(exc)
    error.pop("args", None)
    retry_from = attempt.last_seq if origin is None else origin.seq
    payload: dict[str, JsonValue] = {
        "attempt": attempt.number,
        "error": error,
        "retry_from": retry_from,
        "at": at.isoformat(),
    }
    if origin is not None:
        payload["ending"] = True
    entry = NewEntry(EntryKind.RUN_ATTEMPT_FAILED, "", payload)
    return entry, Retry(at, error, retry_from)


ANSWER_OF: Final[dict[RunStatus, AnswerStatus]] = {
    RunStatus.COMPLETED: "completed",
    RunStatus.FAILED: "failed",
    RunStatus.CANCELLED: "cancelled",
}
"""Statuses of the answer that the end of a run gives to waiting runs."""

_MILESTONES: Final = ("run.", "effect.", "tool.", "llm.", "child.", "ask.", "orphans.")
_LOOK_BACK: Final = 100


def known_id(run: RunHandle | RunId | str) -> RunId:
    """Return the id of a run that is named by its handle or its id.

    Raises:
        UnknownRunError: No run can have this id.
    """
    run_id = run.run_id if isinstance(run, RunHandle) else run
    if not is_name(run_id):
        raise UnknownRunError(clean_text(str(run_id), 60))
    return RunId(run_id)


async def row_of(store: RunStore, run_id: RunId) -> RunRow:
    """Return a run's row.

    Raises:
        UnknownRunError: There is no such run.
    """
    row = await store.reads.run(known_id(run_id))
    if row is None:
        raise UnknownRunError(run_id)
    return row


async def summary_of(store: RunStore, row: RunRow) -> RunStatusSummary:
    """Return how far the run is. Its last milestone is looked for among its last 100 entries."""
    milestone = None
    if row.last_seq >= 0:
        start = max(0, row.last_seq + 1 - _LOOK_BACK)
        async for entry in store.reads.entries(row.run_id, from_seq=start):
            if entry.seq <= row.last_seq and entry.kind.startswith(_MILESTONES):
                milestone = str(entry.kind)
    return RunStatusSummary(
        run_id=row.run_id,
        status=row.status,
        last_seq=row.last_seq,
        last_milestone=milestone,
        parked=row.parked,
        updated_at=row.updated_at,
    )


def answer_of_row(waiter: RunId, key: str, row: RunRow) -> Answer:
    """Return what the end of a run answers, read from the run itself."""
    return Answer(
        waiter,
        key,
        ANSWER_OF[row.status],
        result=row.result if row.status is RunStatus.COMPLETED else None,
        error=error_of_row(row),
        by=row.run_id,
        last_seq=row.last_seq,
    )


def error_of_row(row: RunRow) -> dict[str, JsonValue] | None:
    """Return why a run failed, or was cancelled."""
    if row.status is RunStatus.CANCELLED:
        return {"message": row.cancel_requested or ""}
    return row.error if row.status is RunStatus.FAILED else None


def result_of_row(row: RunRow) -> RunResult:
    """Return how a run ended that has ended."""
    return RunResult(
        run_id=row.run_id,
        status=row.status,
        output=row.result if row.status is RunStatus.COMPLETED else None,
        error=error_of_row(row),
    )
