"""How an attempt ends, in the model; docs/replay.md, the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from actors.errors import (
    BudgetExhaustedError,
    ContractError,
    EffectInDoubtError,
    RetryAfter,
    TerminalError,
)
from actors.kernel.runtime.scheduler import RetryPolicy
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
    if isinstance(error, BudgetExhaustedError):
        return [("run.failed", {"status": "budget_exhausted", "error": error_record(error)})]
    attempt = run.memory.attempts + 1
    ending, record = ending_of(error), error_record(error)
    policy = policy_of(run.case.retry) if run.box.agent == run.case.root else RetryPolicy()
    if _is_final(run, error, ending, policy):
        return [("run.failed", {"status": "terminal", "error": record})]
    if attempt > policy.max_retries and policy.on_exhausted != "pause":
        return [("run.failed", {"status": "agent_crashed", "error": record})]
    wait = error.delay_s if isinstance(error, RetryAfter) else policy.delay_s(attempt, 0.5)
    failed = {
        "attempt": attempt,
        "error": record,
        "retry_from": len(run.log) - 1 if ending is None else ending,
        "ending": ending is not None,
        "at": run.world.now + wait,
    }
    if attempt > policy.max_retries:
        return [("run.attempt_failed", failed), ("run.parked", {"reason": "retries"})]
    return [("run.attempt_failed", failed)]


def _is_final(run: Run, error: BaseException, ending: int | None, policy: RetryPolicy) -> bool:
    if isinstance(error, TerminalError | ContractError):
        return True
    if type(error).__name__ in policy.non_retryable:
        return True
    return ending is not None and _is_sticky(run, ending)


def _is_sticky(run: Run, ending: int) -> bool:
    """Whether the recorded error is an at-most-once effect's that may have happened."""
    position = run.log[ending].position
    begins = [line for line in run.log[:ending] if line.position == position]
    mode = next((line.data["mode"] for line in reversed(begins) if "mode" in line.data), "")
    cause = rebuilt(run.log[ending].data["error"])
    return mode == "at_most_once" and not isinstance(cause, RetryAfter)
