"""How an attempt ends: the pure decision, from what escaped `run()` to the entries that follow."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest

from actors._agents.react import TurnsExhaustedError
from actors._kernel.agent.agent import HistoryRetention
from actors._kernel.agent.message import MessageKey
from actors._kernel.runtime.commit import Finish, Park, Retry
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.log_entry import EntryKind
from actors._kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors._runtime.replay.failures import mark_recorded
from actors._runtime.replay.verdict import (
    Attempt,
    Verdict,
    cancelled_verdict,
    completed_verdict,
    judge,
    late_verdict,
    parked_verdict,
    with_orphans,
)
from actors.errors import (
    TRANSIENT_MODEL_ERRORS,
    BudgetExhaustedError,
    ContractError,
    DeadlineExceededError,
    EffectInDoubtError,
    MiddlewareTermination,
    ModelError,
    ModelErrorKind,
    NonDeterminismError,
    OutputError,
    RetryAfter,
    TerminalError,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)
OTHERS = (MessageKey(AgentId("desk", "1"), "client:a", "2"),)
SECOND = timedelta(seconds=1)


def kinds(verdict: Verdict) -> list[EntryKind]:
    """The kinds of its entries, in order."""
    return [entry.kind for entry in verdict.entries]


def crash(exc: BaseException | None = None, *, number: int = 1, **facts: Any) -> Verdict:
    """What follows from an agent's own error, after two seconds doubled each time unless facts say so."""
    policy = RetryPolicy.model_validate(
        {"max_retries": 2, "backoff_s": 2, "jitter": 0, **facts.pop("policy", {})}
    )
    return judge(exc or ValueError("no"), Attempt(number, policy, 7, NOW, 0.5, **facts))


def retried(verdict: Verdict) -> Retry:
    """The retry that it is."""
    assert isinstance(verdict.then, Retry), verdict
    return verdict.then


def failed(verdict: Verdict) -> Finish:
    """The failure that it is."""
    assert isinstance(verdict.then, Finish), verdict
    assert verdict.then.status is RunStatus.FAILED
    return verdict.then


def recorded(exc: Exception, seq: int, *, may_repeat: bool = True) -> Exception:
    """The error as it is raised from an entry of the log."""
    mark_recorded(exc, seq, may_repeat=may_repeat)
    return exc


def test_a_run_that_returns_is_completed_with_its_output() -> None:
    """The output stands in the entry and in the row."""
    verdict = completed_verdict({"sum": 3})

    assert kinds(verdict) == [EntryKind.RUN_COMPLETED]
    assert verdict.entries[0].payload == {"output": {"sum": 3}}
    assert verdict.then == Finish(RunStatus.COMPLETED, result={"sum": 3})


def test_the_words_of_who_cancels_and_of_what_parks_can_be_stored() -> None:
    """A NUL in them, which no row takes, is written out."""
    stopped, stands = cancelled_verdict("a\0b"), parked_verdict("in_doubt", "who knows", "1\0")

    assert stopped.entries[0].payload == {"reason": "a\\x00b"}
    assert stopped.then == Finish(RunStatus.CANCELLED)
    assert stands.entries[0].payload == {
        "reason": "in_doubt",
        "detail": "who knows",
        "at": "1\\x00",
    }
    assert stands.then == Park("in_doubt", "1\\x00")


def test_a_run_that_is_late_has_failed_and_its_messages_are_done() -> None:
    """No retry, and no dead letter: the time of the messages is over, too."""
    then = failed(late_verdict(DeadlineExceededError("the run", 5), 3))

    assert then.error is not None
    assert then.error["status"] == "deadline_exceeded"
    assert then.dead_letter is None


@pytest.mark.parametrize(
    ("exc", "status", "dead_letter"),
    [
        (MiddlewareTermination("guard"), "guardrail_tripped", None),
        (BudgetExhaustedError("turns"), "budget_exhausted", None),
        (TurnsExhaustedError(20, "so far"), "turns_exhausted", None),
        (ModelError("auth"), "terminal", "explicit"),
        (OutputError("a field is missing", "{}"), "terminal", "explicit"),
        (TerminalError("no"), "terminal", "explicit"),
        (ContractError("no"), "terminal", "explicit"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_that_no_retry_mends_fails_the_run_at_once(
    exc: Exception, status: str, dead_letter: str | None
) -> None:
    """Also the first time, with retries left."""
    verdict = crash(exc)

    assert kinds(verdict) == [EntryKind.RUN_FAILED]
    assert verdict.entries[0].payload["status"] == status
    assert verdict.entries[0].payload["attempt"] == 1
    assert failed(verdict).dead_letter == dead_letter


@pytest.mark.parametrize("kind", get_args(ModelErrorKind))
def test_only_errors_of_models_that_pass_are_tried_again(kind: ModelErrorKind) -> None:
    """A policy that parks runs also parks those that no retry mends, until a person has corrected the cause."""
    paused = crash(ModelError(kind), policy={"on_exhausted": "pause"})

    if kind in TRANSIENT_MODEL_ERRORS:
        retried(crash(ModelError(kind)))
        retried(paused)
    else:
        assert failed(crash(ModelError(kind))).dead_letter == "explicit"
        assert failed(crash(ModelError(kind), policy={"on_exhausted": "fail"})).dead_letter is None
        assert isinstance(paused.then, Park)


def test_only_the_policys_names_and_effects_that_may_not_repeat_end_a_crash_at_once() -> None:
    """The name is that of the class itself, without its module."""
    policy = {"non_retryable": ("KeyError",)}

    assert failed(crash(KeyError("k"), policy=policy)).dead_letter == "explicit"
    retried(crash(LookupError("k"), policy=policy))
    assert failed(crash(recorded(ValueError("no"), 4, may_repeat=False))).dead_letter == "explicit"
    retried(crash(recorded(ValueError("no"), 4)))


def test_a_crash_is_tried_again_behind_all_that_is_recorded() -> None:
    """After the pause of the policy; the error is in the entry, its arguments are not."""
    verdict = crash(ValueError("no", 1))

    then = retried(verdict)
    assert kinds(verdict) == [EntryKind.RUN_ATTEMPT_FAILED]
    assert (then.at, then.retry_from, then.release) == (NOW + 2 * SECOND, 7, ())
    assert then.error == {"type": "builtins:ValueError", "message": "('no', 1)"}
    assert verdict.entries[0].payload == {
        "attempt": 1,
        "error": then.error,
        "retry_from": 7,
        "at": "2030-01-01T00:00:02+00:00",
    }


def test_an_attempt_that_a_recorded_error_ended_is_tried_again_from_there() -> None:
    """What was recorded behind that entry may be met again, and the entry is said to be an ending."""
    verdict = crash(recorded(ValueError("no"), 4))

    assert retried(verdict).retry_from == 4
    assert verdict.entries[0].payload["ending"] is True


def test_the_pause_grows_with_the_failures_that_count() -> None:
    """The third failure waits twice as long as the second."""
    early = tuple(NOW - n * SECOND for n in (60, 1))
    policy = {"max_retries": 3}

    assert retried(crash(failures=early[1:], policy=policy)).at == NOW + 4 * SECOND
    assert retried(crash(failures=early, policy=policy)).at == NOW + 8 * SECOND


def test_retries_are_counted_by_failures_not_by_the_attempts_number() -> None:
    """Two retries: the third failure is the last, whichever attempts they were."""
    two = (NOW - SECOND, NOW - SECOND)

    retried(crash(number=9, failures=two[1:]))
    assert failed(crash(number=2, failures=two)).dead_letter == "max_retries"


def test_only_failures_of_the_policys_last_seconds_count() -> None:
    """One exactly as old as the window counts, an older one does not."""
    policy = {"within_s": 10, "max_retries": 1}

    failed(crash(failures=(NOW - 10 * SECOND,), policy=policy))
    then = retried(crash(failures=(NOW - 11 * SECOND,), policy=policy))
    assert then.at == NOW + 2 * SECOND, "it waits as after a first failure"


@pytest.mark.parametrize(
    ("on_exhausted", "dead_letter"), [("fail", None), ("dead_letter", "max_retries")]
)
def test_without_a_retry_left_the_policy_says_what_becomes_of_the_messages(
    on_exhausted: str, dead_letter: str | None
) -> None:
    """The run has crashed either way."""
    verdict = crash(policy={"max_retries": 0, "on_exhausted": on_exhausted})

    assert verdict.entries[0].payload["status"] == "agent_crashed"
    assert failed(verdict).dead_letter == dead_letter


def test_without_a_retry_left_a_run_that_is_to_pause_is_parked_behind_its_failure() -> None:
    """The failed attempt stands in the log first, so that a resolved run goes on behind it."""
    verdict = crash(policy={"max_retries": 0, "on_exhausted": "pause"})

    assert kinds(verdict) == [EntryKind.RUN_ATTEMPT_FAILED, EntryKind.RUN_PARKED]
    assert verdict.then == Park("retries")
    assert verdict.entries[1].payload["detail"] == "ValueError: no"


def test_an_author_who_names_a_delay_is_taken_at_his_word() -> None:
    """It is neither doubled nor made longer, and it counts as a failure."""
    early = (NOW - SECOND,)

    assert retried(crash(RetryAfter(60), failures=early)).at == NOW + 60 * SECOND
    failed(crash(RetryAfter(60), failures=early * 2))


def test_a_retry_comes_no_later_than_the_deadline_and_never_in_the_past() -> None:
    """The attempt at the deadline is the one that says that the run is late."""
    assert retried(crash(deadline=NOW + SECOND)).at == NOW + SECOND
    assert retried(crash(deadline=NOW + 9 * SECOND)).at == NOW + 2 * SECOND
    assert retried(crash(deadline=NOW - SECOND)).at == NOW


@pytest.mark.parametrize(
    ("exc", "reason"),
    [
        (NonDeterminismError("3.1", "a", "b"), "non_determinism"),
        (EffectInDoubtError(RunId("r"), "3.1", "pay"), "in_doubt"),
    ],
)
def test_what_only_an_operator_can_decide_is_parked_at_its_position(
    exc: Exception, reason: str
) -> None:
    """Whatever the policy says of retries."""
    verdict = crash(exc, policy={"max_retries": 0})

    assert kinds(verdict) == [EntryKind.RUN_PARKED]
    assert verdict.then == Park(reason, "3.1")
    assert verdict.entries[0].payload["detail"] == str(exc)


def test_children_nobody_joined_are_named_before_the_end_of_their_parent() -> None:
    """Once, in the entry before the last; the end itself does not change."""
    verdict = with_orphans(completed_verdict(1), HistoryRetention.PERMANENT, ("c1", "c2"))

    assert kinds(verdict) == [EntryKind.ORPHANS_RESOLVED, EntryKind.RUN_COMPLETED]
    assert verdict.entries[0].payload == {"policy": "permanent", "children": ["c1", "c2"]}
    assert verdict.then == completed_verdict(1).then


@pytest.mark.parametrize(
    "verdict", [crash(), parked_verdict("in_doubt", "")], ids=["retry", "park"]
)
def test_a_run_that_has_not_ended_has_no_orphans(verdict: Verdict) -> None:
    """Its next attempt may join them; so has one that ended without children."""
    assert with_orphans(verdict, HistoryRetention.RUN, ("c1",)) is verdict
    ended = completed_verdict(1)
    assert with_orphans(ended, HistoryRetention.RUN, ()) is ended


def attempt(
    policy: RetryPolicy | None = None, *, others: tuple[MessageKey, ...] = OTHERS
) -> Attempt:
    """A first attempt, of several messages unless others say so."""
    policy = policy or RetryPolicy(backoff_s=5, jitter=0)
    return Attempt(1, policy, 2, NOW, 0.5, other_messages=others)


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
            "max_retries": 0,
            "backoff_s": 5,
            "jitter": 0,
            "on_exhausted": on_exhausted,
            "non_retryable": ("KeyError",),
        }
    )

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
