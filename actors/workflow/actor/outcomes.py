"""Conversion of outcomes of effects to the JSON data of the log and back."""

from __future__ import annotations

from typing import Any, Final

from actors.kernel.workflow.effects import EffectOutcome, StepStatus, WaitState

_STATUSES: Final = frozenset(StepStatus)


def told_of(outcome: EffectOutcome) -> dict[str, Any]:
    """Return a checked outcome as JSON data."""
    told: dict[str, Any] = {"status": str(outcome.status), "result": outcome.result}
    if outcome.changes is not None:
        told["changes"] = outcome.changes
    if outcome.wait is not None:
        told["wait"] = outcome.wait.to_dict()
    if outcome.error is not None:
        told |= {"error": outcome.error, "retryable": outcome.retryable}
    return told


def outcome_in(told: Any) -> EffectOutcome:
    """Return the outcome that an entry keeps. A value that an operator set in its place becomes the result."""
    if not isinstance(told, dict) or told.get("status") not in _STATUSES:
        return EffectOutcome.completed(told)
    wait = told.get("wait")
    return EffectOutcome(
        StepStatus(told["status"]),
        result=told.get("result"),
        wait=None if wait is None else WaitState.from_dict(wait),
        error=told.get("error"),
        changes=told.get("changes"),
        retryable=bool(told.get("retryable", True)),
    )
