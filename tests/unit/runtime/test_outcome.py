"""How an attempt ends that was given several messages: the pure decision."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from actors.errors import (
    BudgetExhaustedError,
    EffectInDoubtError,
    NonDeterminismError,
    RetryAfter,
    TerminalError,
)
from actors.kernel.agent.message import MessageKey
from actors.kernel.runtime.commit import Finish, Park, Retry
from actors.kernel.runtime.ids import AgentId, RunId
from actors.kernel.runtime.scheduler import RetryPolicy
from actors.runtime.outcome import Attempt, judge

NOW = datetime(2030, 1, 1, tzinfo=UTC)
OTHERS = (MessageKey(AgentId("desk", "1"), "client:a", "2"),)


def attempt(
    policy: RetryPolicy | None = None, *, others: tuple[MessageKey, ...] = OTHERS
) -> Attempt:
    """A first attempt, of several messages unless others say so."""
    policy = policy or RetryPolicy(backoff_s=5, jitter=0)
    return Attempt(1, policy, 2, NOW, 0.5, others=others)


@pytest.mark.parametrize(
    ("exc", "wait_s"),
    [
        (ValueError("no"), 5),
        (RetryAfter(2, "later"), 2),
        (TerminalError("no"), 0),
        (BudgetExhaustedError("no"), 0),
        (KeyError("no"), 0),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("on_exhausted", ["fail", "pause", "dead_letter"])
def test_several_messages_are_taken_apart_whatever_follows_a_failure(
    exc: Exception, wait_s: int, on_exhausted: str
) -> None:
    """Also without a retry left: none is given up, parked or counted as handled with another."""
    policy = RetryPolicy.model_validate(
        {
            "max_retries": 0, "backoff_s": 5, "jitter": 0, "on_exhausted": on_exhausted,
            "non_retryable": ("KeyError",),
        }
    )  # fmt: skip

    verdict = judge(exc, attempt(policy))

    assert isinstance(verdict.then, Retry)
    assert verdict.then.release == OTHERS
    assert verdict.then.at == NOW + timedelta(seconds=wait_s)
    [entry] = verdict.entries
    assert (entry.payload["kept"], entry.payload["retry_from"]) == (1, 2)
    assert "ending" not in entry.payload


@pytest.mark.parametrize(
    "exc",
    [NonDeterminismError("0", "a", "b"), EffectInDoubtError(RunId("r"), "0", "pay")],
    ids=lambda value: type(value).__name__,
)
def test_a_run_that_needs_an_operator_keeps_its_messages(exc: Exception) -> None:
    """It is parked with all of them."""
    assert isinstance(judge(exc, attempt()).then, Park)


def test_a_single_message_is_judged_as_ever() -> None:
    """It counts its retries, or is given up."""
    policy = RetryPolicy(max_retries=0)

    verdict = judge(ValueError("no"), attempt(policy, others=()))

    assert isinstance(verdict.then, Finish)
    assert verdict.then.dead_letter == "max_retries"
