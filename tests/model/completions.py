"""The end of an attempt in the model; docs/replay.md, the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from actors._kernel.runtime.scheduler import RetryPolicy
from actors.errors import (
    BudgetExhaustedError,
    ContractError,
    EffectInDoubtError,
    RetryAfter,
    TerminalError,
)
from tests.model.program import DEFAULT_RETRY
from tests.model.verbs import ending_of, error_record, rebuilt

if TYPE_CHECKING:
    from tests.model.branches import Branch
    from tests.model.run import Run

TERMINAL: Final = ("COMPLETED", "FAILED", "CANCELLED")


def policy_of(retry: dict[str, Any]) -> RetryPolicy:
    """Return the run's retry policy."""
    return RetryPolicy(**{**DEFAULT_RETRY, **retry})


def end_of_attempt(run: Run, root: Branch) -> list[tuple[str, dict[str, Any]]]:
    """Return kind and data of the entries that end an attempt."""
    error = root.error
    if error is None:
        return [("run.completed", {"output": root.value})]
    if isinstance(error, EffectInDoubtError):
        return [("run.parked", {"reason": "in_doubt"})]
    return _end_by(error, run)


def _end_by(error: BaseException, run: Run) -> list[tuple[str, dict[str, Any]]]:
    counted = run.memory.counted + 1
    policy = policy_of(run.case.retry) if run.box.agent == run.case.root else RetryPolicy()
    record, ending = error_record(error), ending_of(error)
    wait = error.delay_s if isinstance(error, RetryAfter) else policy.delay_s(counted, 0.5)
    if run.others():
        run.drop_from(run.beginning)
        wait = 0.0 if _is_hopeless(error, policy) else wait
        return [_failed(run, record, None, wait, kept_count=1)]
    if isinstance(error, BudgetExhaustedError):
        return [("run.failed", {"status": "budget_exhausted", "error": record})]
    if _is_hopeless(error, policy) or (ending is not None and _is_sticky(run, ending)):
        return [("run.failed", {"status": "terminal", "error": record})]
    if counted > policy.max_retries and policy.on_exhausted != "pause":
        return [("run.failed", {"status": "agent_crashed", "error": record})]
    failed = _failed(run, record, ending, wait)
    if counted > policy.max_retries:
        return [failed, ("run.parked", {"reason": "retries"})]
    return [failed]


def _failed(
    run: Run,
    record: dict[str, Any],
    ending: int | None,
    wait: float,
    *,
    kept_count: int | None = None,
) -> tuple[str, dict[str, Any]]:
    return "run.attempt_failed", {
        "attempt": run.memory.attempts + 1,
        "error": record,
        "retry_from": len(run.log) - 1 if ending is None else ending,
        "ending": ending is not None,
        "at": run.world.now + wait,
        "kept": kept_count,
    }


def _is_hopeless(error: BaseException, policy: RetryPolicy) -> bool:
    """Return whether the error ends a run without a retry."""
    if isinstance(error, TerminalError | ContractError | BudgetExhaustedError):
        return True
    return type(error).__name__ in policy.non_retryable


def _is_sticky(run: Run, ending: int) -> bool:
    """Return whether the recorded error is that of an at-most-once effect that may have happened."""
    position = run.log[ending].position
    begins = [line for line in run.log[:ending] if line.position == position]
    mode = next((line.data["mode"] for line in reversed(begins) if "mode" in line.data), "")
    cause = rebuilt(run.log[ending].data["error"])
    return mode == "at_most_once" and not isinstance(cause, RetryAfter)
