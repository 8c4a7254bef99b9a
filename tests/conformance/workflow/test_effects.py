"""Effects on every store: their order, attempts, keys, and their state after a crash."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest

from actors.workflow import (
    DefaultEffectPolicy,
    Effect,
    EffectMode,
    EffectOutcome,
    EffectType,
    HashChainedLedgerStore,
    NoRetryPolicy,
    ObservableLedgerStore,
    RetryPolicy,
    RunStatus,
    StaleResumeError,
    StepPlan,
    WaitReason,
    WaitState,
    WorkflowSpec,
    compute_idempotency_key,
    verify_ledger_chain,
)
from tests.conformance.workflow.stores import effect_then, end_node, one_effect

if TYPE_CHECKING:
    from actors.workflow import RunState
    from tests.conformance.workflow.stores import Stores


class Deaths(BaseException):
    """Stands for the crash of a driver: no code of the runtime may catch it."""


class Dying:
    """A hook that crashes the n-th time a point is reached."""

    def __init__(self, point: str, nth: int = 1) -> None:
        self.point, self.left = point, nth

    def __call__(self, point: str) -> None:
        """Crash, if this is the chosen time."""
        if point == self.point:
            self.left -= 1
            if self.left == 0:
                raise Deaths


class Counting:
    """A handler that fails this many times, and counts its calls."""

    def __init__(self, fails: int = 0) -> None:
        self.fails, self.calls = fails, 0
        self.keys: list[str] = []

    def __call__(self, _run: RunState, effect: Effect) -> EffectOutcome:
        """Fail, or return."""
        self.calls += 1
        trace = (effect.payload.get("params") or {}).get("trace_metadata") or {}
        self.keys.append(trace.get("effect_idempotency_key", ""))
        if self.calls <= self.fails:
            return EffectOutcome.failed(f"no luck {self.calls}")
        return EffectOutcome.completed({"call": self.calls})


@pytest.mark.item(437, 438)
def test_policies_set_number_and_pauses_of_attempts() -> None:
    """A model three times, tools twice, other effects once; pauses double up to a limit."""
    retry, none = RetryPolicy(), NoRetryPolicy()
    kinds = (EffectType.LLM_CALL, EffectType.TOOL_CALLS, EffectType.EMIT_EVENT)
    assert [retry.max_attempts(Effect(kind)) for kind in kinds] == [3, 2, 1]
    assert [none.max_attempts(Effect(kind)) for kind in kinds] == [1, 1, 1]
    policy = DefaultEffectPolicy(
        default_backoff_base=1, default_backoff_max=10, effect_max_attempts={"llm_call": 7}
    )
    effect = Effect(EffectType.LLM_CALL)
    pauses = [policy.backoff_seconds(effect=effect, attempt=n) for n in (1, 2, 3, 4, 5, 900)]
    assert pauses == [1, 2, 4, 8, 10, 10]
    assert policy.max_attempts(effect) == 7


@pytest.mark.item(437, 440)
def test_a_failed_attempt_is_followed_by_another(stores: Stores) -> None:
    """After its pause. Each attempt has its number, and all have one key."""
    handler = Counting(fails=2)
    spec = one_effect(EffectType.LLM_CALL, {"prompt": "x"})
    runtime = stores.runtime(
        effect_handlers={EffectType.LLM_CALL: handler}, effect_policy=RetryPolicy()
    )
    run_id = runtime.start(spec)

    state = runtime.tick(spec, run_id)

    assert state.output["out"] == {"call": 3}
    assert stores.clock.slept == [1, 2]
    records = [record for record in runtime.get_ledger(run_id) if record["node_id"] == "work"][1:]
    assert [(record["status"], record["attempt"]) for record in records] == [
        ("started", 1),
        ("failed", 1),
        ("started", 2),
        ("failed", 2),
        ("started", 3),
        ("completed", 3),
    ]
    assert len({record["idempotency_key"] for record in records}) == 1
    assert len({record["step_id"] for record in records}) == 3
    assert handler.keys == [records[0]["idempotency_key"]] * 3


@pytest.mark.item(437, 438)
def test_the_last_failed_attempt_fails_the_run(stores: Stores) -> None:
    """The error has the number of attempts; an error that is not retryable has none."""
    spec = one_effect(EffectType.LLM_CALL, {"prompt": "x"})
    for policy, calls, problem in (
        (RetryPolicy(llm_max_attempts=3), 3, "after 3 attempts: no luck 3"),
        (NoRetryPolicy(), 1, "at its first attempt: no luck 1"),
    ):
        handler = Counting(fails=9)
        runtime = stores.runtime(
            effect_handlers={EffectType.LLM_CALL: handler}, effect_policy=policy
        )
        state = runtime.tick(spec, runtime.start(spec))
        assert state.status is RunStatus.FAILED
        assert problem in (state.error or "")
        assert handler.calls == calls
    hopeless = stores.runtime(
        effect_handlers={
            EffectType.LLM_CALL: lambda _r, _e: EffectOutcome.failed("no", retryable=False)
        },
        effect_policy=RetryPolicy(),
    )
    assert "first attempt" in (hopeless.tick(spec, hopeless.start(spec)).error or "")


@pytest.mark.item(439)
def test_a_key_names_one_effect_of_one_step() -> None:
    """The same input has the same key; another run, node, payload or step has another one."""
    effect = Effect(EffectType.LLM_CALL, {"prompt": "x", "n": 1})
    key = compute_idempotency_key(run_id="r", node_id="n", effect=effect, seq=3)
    again = Effect(EffectType.LLM_CALL, {"n": 1, "prompt": "x"})

    assert compute_idempotency_key(run_id="r", node_id="n", effect=again, seq=3) == key
    others = {
        compute_idempotency_key(run_id=run, node_id=node, effect=other_effect, seq=seq)
        for run, node, other_effect, seq in (
            ("r2", "n", effect, 3),
            ("r", "n2", effect, 3),
            ("r", "n", Effect(EffectType.LLM_CALL, {"prompt": "y"}), 3),
            ("r", "n", Effect(EffectType.TOOL_CALLS, effect.payload), 3),
            ("r", "n", effect, 4),
        )
    }
    assert len(others | {key}) == 6
    assert len(key) == 32


@pytest.mark.item(415, 440, 472)
def test_a_handler_cannot_change_what_is_recorded(stores: Stores) -> None:
    """A handler changes its effect and its run. Records, the next attempt and the vars do not change."""
    payloads: list[dict[str, Any]] = []

    def handler(run: RunState, effect: Effect) -> EffectOutcome:
        payloads.append(json.loads(json.dumps(effect.payload)))
        effect.payload["inner"]["list"].append("changed")
        effect.payload["new"], effect.result_key = "changed", "changed"
        run.vars["kept"]["list"].append("changed")
        return EffectOutcome.failed("again") if len(payloads) == 1 else EffectOutcome.completed(1)

    def work(run: RunState, _ctx: Any) -> StepPlan:
        run.vars["kept"] = {"list": [1]}
        return StepPlan(
            "work", Effect(EffectType.TOOL_CALLS, {"inner": {"list": [1]}}, "out"), "end"
        )

    runtime = stores.runtime(
        ledger_store=HashChainedLedgerStore(stores.ledger),
        effect_handlers={EffectType.TOOL_CALLS: handler},
        effect_policy=RetryPolicy(),
    )
    spec = WorkflowSpec("graph", "work", {"work": work, "end": end_node})
    run_id = runtime.start(spec)
    state = runtime.tick(spec, run_id)

    assert (state.output["kept"], state.output["out"]) == ({"list": [1]}, 1)
    records = [record for record in stores.ledger.list(run_id) if record["idempotency_key"]][:4]
    assert [record["status"] for record in records] == ["started", "failed", "started", "completed"]
    effect = {"type": "tool_calls", "payload": {"inner": {"list": [1]}}, "result_key": "out"}
    assert [record["effect"] for record in records] == [effect] * 4
    assert payloads == [effect["payload"]] * 2
    assert verify_ledger_chain(stores.ledger.list(run_id))["ok"]


@pytest.mark.item(439)
def test_a_repeated_request_executes_the_effect_again(stores: Stores) -> None:
    """A loop requests the same payload twice: two keys, two results."""

    def loop(run: RunState, _ctx: Any) -> StepPlan:
        n = run.vars["n"] = run.vars.get("n", 0) + 1
        if n > 2:
            return end_node(run, _ctx)
        return StepPlan("loop", Effect(EffectType.LLM_CALL, {"prompt": "x"}, f"r{n}"), "loop")

    handler = Counting()
    spec = WorkflowSpec("graph", "loop", {"loop": loop})
    runtime = stores.runtime(effect_handlers={EffectType.LLM_CALL: handler})

    state = runtime.tick(spec, runtime.start(spec))

    assert (state.output["r1"], state.output["r2"]) == ({"call": 1}, {"call": 2})
    assert len({*handler.keys}) == 2


class Watched:
    """A store that records its calls, among other events."""

    def __init__(self, inner: Any, seen: list[str]) -> None:
        self._inner, self._seen = inner, seen

    def save(self, run: RunState) -> None:
        """Store a run."""
        self._seen.append(f"save {run.status.value}")
        self._inner.save(run)

    def load(self, run_id: str) -> Any:
        """Return a run."""
        return self._inner.load(run_id)

    def append(self, record: Any) -> None:
        """Store a record."""
        self._seen.append(f"record {record.status.value}")
        self._inner.append(record)

    def list(self, run_id: str) -> Any:
        """Return records."""
        return self._inner.list(run_id)


@pytest.mark.item(415, 477)
@pytest.mark.parametrize(
    ("outcome", "last"),
    [
        (EffectOutcome.completed("x"), ["record completed", "save running"]),
        (EffectOutcome.waiting(WaitState(WaitReason.JOB, "k")), ["record waiting", "save waiting"]),
        (EffectOutcome.failed("x"), ["record failed", "record completed", "save failed"]),
    ],
)
def test_records_come_before_the_checkpoint(
    stores: Stores, outcome: EffectOutcome, last: list[str]
) -> None:
    """STARTED, the handler, its outcome, the checkpoint: in this order for each outcome."""
    seen: list[str] = []

    def handler(_run: RunState, _effect: Effect) -> EffectOutcome:
        seen.append("handler")
        return outcome

    spec = one_effect(EffectType.LLM_CALL, {})
    runtime = stores.runtime(
        run_store=Watched(stores.runs, seen),
        ledger_store=Watched(stores.ledger, seen),
        effect_handlers={EffectType.LLM_CALL: handler},
    )
    run_id = runtime.start(spec)
    seen.clear()
    runtime.tick(spec, run_id, max_steps=1)

    assert seen == ["record started", "handler", *last]


@pytest.mark.item(391, 393, 415, 441)
@pytest.mark.parametrize("mode", EffectMode)
@pytest.mark.parametrize("point", ["started", "executed", "ended", "saved"])
def test_the_next_driver_continues_after_a_crash(
    stores: Stores, point: str, mode: EffectMode
) -> None:
    """A recorded result is used; else the effect is repeated, or reported as in doubt.

    No node is called twice.
    """
    handler, asked_nodes = Counting(), []

    def work(run: RunState, _ctx: Any) -> StepPlan:
        asked_nodes.append(run.current_node)
        run.vars["asked"] = len(asked_nodes)
        return StepPlan("work", Effect(EffectType.LLM_CALL, {}, "out", mode), next_node="end")

    spec = WorkflowSpec("graph", "work", {"work": work, "end": end_node})
    handlers = {EffectType.LLM_CALL: handler}
    dying = stores.runtime(effect_handlers=handlers, fault=Dying(point))
    run_id = dying.start(spec)
    with pytest.raises(Deaths):
        dying.tick(spec, run_id)

    state = stores.reopen().runtime(effect_handlers=handlers).tick(spec, run_id)

    assert asked_nodes == ["work"]
    if point in {"ended", "saved"}:
        assert (state.status, handler.calls) == (RunStatus.COMPLETED, 1)
    elif mode is EffectMode.IDEMPOTENT:
        calls = 1 if point == "started" else 2
        assert (state.status, handler.calls) == (RunStatus.COMPLETED, calls)
        assert len({*handler.keys}) == 1
    else:
        calls = 0 if point == "started" else 1
        assert (state.status, handler.calls) == (RunStatus.WAITING, calls)
        assert state.waiting is not None
        assert state.waiting.reason is WaitReason.JOB
    if state.status is RunStatus.COMPLETED:
        assert state.output["asked"] == 1
    starts = [record for record in stores.ledger.list(run_id) if record["status"] == "started"]
    assert len(starts) == 1


@pytest.mark.item(441)
def test_a_crash_between_attempts_counts_no_attempt(stores: Stores) -> None:
    """The next driver continues with the attempt that is due, at its instant."""
    handler = Counting(fails=2)
    spec = one_effect(EffectType.LLM_CALL, {})
    more: dict[str, Any] = {
        "effect_handlers": {EffectType.LLM_CALL: handler},
        "effect_policy": RetryPolicy(),
    }
    dying = stores.runtime(**more, fault=Dying("ended", 2))
    run_id = dying.start(spec)
    with pytest.raises(Deaths):
        dying.tick(spec, run_id)
    assert (handler.calls, stores.clock.slept) == (2, [1])
    stores.clock.advance(0.5)

    state = stores.reopen().runtime(**more).tick(spec, run_id)

    assert (state.status, handler.calls, stores.clock.slept) == (RunStatus.COMPLETED, 3, [1, 1.5])


@pytest.mark.item(441)
def test_records_after_a_rolled_back_checkpoint_are_applied(stores: Stores) -> None:
    """Later records of the ledger are applied: no handler and no node is called."""
    handler = Counting()
    spec = one_effect(EffectType.LLM_CALL, {"prompt": "x"})
    runtime = stores.runtime(effect_handlers={EffectType.LLM_CALL: handler})
    run_id = runtime.start(spec)
    before = stores.runs.load(run_id)
    ended = runtime.tick(spec, run_id)
    stores.runs.save(before)

    again = stores.reopen().runtime(effect_handlers={EffectType.LLM_CALL: handler})

    assert dataclasses.asdict(again.tick(spec, run_id)) == dataclasses.asdict(ended)
    assert handler.calls == 1


@pytest.mark.item(391, 393)
def test_a_waiting_run_needs_no_thread(stores: Stores) -> None:
    """It needs no thread and no stack: it is a row, and another process answers it."""
    spec = one_effect(EffectType.ASK_USER, {"prompt": "Well?", "wait_key": "k"})
    runtime = stores.runtime(spec)
    run_id = runtime.start(spec)
    runtime.tick(spec, run_id)
    del runtime

    state = stores.reopen().runtime(spec).resume(spec, run_id, "k", "yes")

    assert state.output["out"] == "yes"


@pytest.mark.item(414)
def test_an_answer_before_its_wait_is_kept(stores: Stores) -> None:
    """One answer for each key, until the run waits for it."""
    spec = WorkflowSpec(
        "graph",
        "begin",
        {
            "begin": lambda _run, _ctx: StepPlan("begin", next_node="ask"),
            "ask": effect_then(EffectType.WAIT_EVENT, {"wait_key": "k"}),
            "end": end_node,
        },
    )
    runtime = stores.runtime(spec)
    run_id = runtime.start(spec)
    runtime.answer(run_id, "k", {"early": True})
    with pytest.raises(StaleResumeError, match="already"):
        runtime.answer(run_id, "k", {"second": True})

    state = stores.reopen().runtime(spec).tick(spec, run_id)

    assert state.output["out"] == {"early": True}
    assert state.vars["_runtime"]["answers"] == {}
    with pytest.raises(StaleResumeError, match="not waiting"):
        runtime.answer(run_id, "k", {"late": True})


@pytest.mark.item(414)
def test_an_answer_to_a_wait_is_given_once_over_crashes(stores: Stores) -> None:
    """A driver crashed after it: the run continues, and cannot be answered again."""
    spec = one_effect(EffectType.ASK_USER, {"prompt": "x", "wait_key": "k"})
    dying = stores.runtime(spec, fault=Dying("resumed"))
    run_id = dying.start(spec)
    dying.tick(spec, run_id)
    with pytest.raises(Deaths):
        dying.resume(spec, run_id, "k", "first")

    other = stores.reopen().runtime(spec)
    with pytest.raises(StaleResumeError):
        other.resume(spec, run_id, "k", "second")
    assert other.tick(spec, run_id).output["out"] == "first"


def test_a_paused_run_continues_only_by_a_resume(stores: Stores) -> None:
    """A wake does not continue it, a resume does. Pause and resume can be repeated."""
    spec = one_effect(EffectType.WAIT_UNTIL, {"timeout_s": 10})
    runtime = stores.runtime(spec)
    run_id = runtime.start(spec)
    runtime.tick(spec, run_id)
    for _ in range(2):
        assert runtime.pause_run(run_id, "lunch").vars["_runtime"]["control"]["reason"] == "lunch"
    stores.clock.advance(20)

    assert stores.reopen().runtime(spec).tick(spec, run_id).status is RunStatus.WAITING
    for _ in range(2):
        runtime.resume_run(run_id)
    assert runtime.tick(spec, run_id).status is RunStatus.COMPLETED


def test_a_listener_of_a_pause_may_cancel_the_run(stores: Stores) -> None:
    """The pause still locks the run then. The cancel is applied after it, and no wait stays open."""
    spec = one_effect(EffectType.WAIT_UNTIL, {"timeout_s": 10})
    runtime = stores.runtime(spec, ledger_store=ObservableLedgerStore(stores.ledger))
    run_id = runtime.start(spec)
    runtime.tick(spec, run_id)
    statuses: list[RunStatus] = []

    def hear(_record: dict[str, Any]) -> None:
        if not statuses:
            statuses.append(runtime.cancel_run(run_id).status)

    runtime.subscribe_ledger(hear, run_id=run_id)
    runtime.pause_run(run_id)

    assert statuses == [RunStatus.WAITING]
    assert stores.reopen().runs.load(run_id).status is RunStatus.CANCELLED


def test_a_run_that_is_paused_by_its_own_handler_keeps_the_result(stores: Stores) -> None:
    """The effect ends first, and is not repeated."""
    runtimes: list[Any] = []
    calls: list[str] = []

    def handler(run: RunState, _effect: Effect) -> EffectOutcome:
        calls.append(run.run_id)
        runtimes[0].pause_run(run.run_id)
        return EffectOutcome.completed("done")

    spec = one_effect(EffectType.LLM_CALL, {})
    runtimes.append(stores.runtime(effect_handlers={EffectType.LLM_CALL: handler}))
    run_id = runtimes[0].start(spec)
    state = runtimes[0].tick(spec, run_id)
    assert (state.status, state.vars["out"]) == (RunStatus.RUNNING, "done")
    other = stores.reopen().runtime(effect_handlers={EffectType.LLM_CALL: handler})
    with pytest.raises(StaleResumeError, match="but paused"):
        other.resume(spec, run_id, None, {})
    other.resume_run(run_id)

    assert other.tick(spec, run_id).status is RunStatus.COMPLETED
    assert len(calls) == 1


def test_a_cancel_during_an_effect_records_its_result(stores: Stores) -> None:
    """The record has the result; no node follows."""
    runtimes: list[Any] = []

    def handler(run: RunState, _effect: Effect) -> EffectOutcome:
        runtimes[0].cancel_run(run.run_id, reason="enough", cancelled_by="me")
        return EffectOutcome.completed("done")

    spec = one_effect(EffectType.LLM_CALL, {})
    runtimes.append(stores.runtime(effect_handlers={EffectType.LLM_CALL: handler}))
    run_id = runtimes[0].start(spec)

    state = runtimes[0].tick(spec, run_id)

    assert (state.status, state.error) == (RunStatus.CANCELLED, "enough")
    record = runtimes[0].get_ledger(run_id)[2]
    assert (record["status"], record["result"]["result"]) == ("cancelled", "done")
    assert record["result"]["cancelled_by"] == "me"
    assert runtimes[0].cancel_run(run_id).error == "enough"


def test_messages_for_a_run_are_in_its_inbox(stores: Stores) -> None:
    """In order, with numbers. An empty message and one for an ended run are refused."""
    spec = one_effect(EffectType.ASK_USER, {"prompt": "x", "wait_key": "k"})
    runtime = stores.runtime(spec)
    run_id = runtime.start(spec)
    runtime.tick(spec, run_id)
    assert [runtime.steer(run_id, "first"), runtime.steer(run_id, {"role": "user"})] == [1, 2]
    inbox = stores.reopen().runs.load(run_id).vars["_runtime"]["inbox"]
    assert [message["seq"] for message in inbox] == [1, 2]
    assert inbox[0]["message"] == {"role": "user", "content": "first"}
    with pytest.raises(ValueError, match="empty"):
        runtime.steer(run_id, "")
    runtime.resume(spec, run_id, "k", "x")
    with pytest.raises(ValueError, match="completed"):
        runtime.steer(run_id, "late")


def test_an_at_most_once_effect_is_never_retried(stores: Stores) -> None:
    """Its first failure is final, whatever the policy is."""
    handler = Counting(fails=1)

    def work(_run: RunState, _ctx: Any) -> StepPlan:
        return StepPlan("work", Effect(EffectType.LLM_CALL, {}, "out", EffectMode.AT_MOST_ONCE))

    spec = WorkflowSpec("graph", "work", {"work": work})
    runtime = stores.runtime(
        effect_handlers={EffectType.LLM_CALL: handler}, effect_policy=RetryPolicy()
    )

    state = runtime.tick(spec, runtime.start(spec))

    assert (state.status, handler.calls) == (RunStatus.FAILED, 1)
    assert "at its first attempt" in (state.error or "")


@pytest.mark.item(441)
def test_an_effect_stays_in_doubt_over_a_pause(stores: Stores) -> None:
    """An effect that one driver started and did not end is in doubt for the next one, also after the pause."""
    handler = Counting()

    def work(_run: RunState, _ctx: Any) -> StepPlan:
        return StepPlan("work", Effect(EffectType.LLM_CALL, {}, "out", EffectMode.AT_MOST_ONCE))

    begin = effect_then(EffectType.ANSWER_USER, {"message": "x"}, after="work")
    spec = WorkflowSpec("graph", "begin", {"begin": begin, "work": work})
    handlers = {EffectType.LLM_CALL: handler}
    dying = stores.runtime(effect_handlers=handlers, fault=Dying("executed", 2))
    run_id = dying.start(spec)
    with pytest.raises(Deaths):
        dying.tick(spec, run_id)
    for verb in ("pause_run", "resume_run"):
        getattr(stores.reopen().runtime(effect_handlers=handlers), verb)(run_id)

    runtime = stores.reopen().runtime(effect_handlers=handlers)
    wait = runtime.tick(spec, run_id).waiting

    assert wait is not None
    assert (wait.reason, handler.calls) == (WaitReason.JOB, 1)
    state = runtime.resume(spec, run_id, wait.wait_key, {"result": "told"})
    assert state.output == {"success": True, "result": "told"}


def test_a_woken_run_is_not_listed_as_waiting(stores: Stores) -> None:
    """While the nodes after a wait execute, the store does not list the run as waiting."""
    seen: list[RunStatus] = []

    def after(run: RunState, ctx: Any) -> StepPlan:
        seen.append(stores.reopen().runs.load(run.run_id).status)
        return end_node(run, ctx)

    wait = effect_then(EffectType.WAIT_UNTIL, {"timeout_s": 5}, after="after")
    spec = WorkflowSpec("graph", "wait", {"wait": wait, "after": after})
    runtime = stores.runtime(spec)
    run_id = runtime.start(spec)
    runtime.tick(spec, run_id)
    stores.clock.advance(5)
    runtime.tick(spec, run_id)

    assert seen == [RunStatus.RUNNING]


@pytest.mark.item(399, 441)
def test_a_message_to_a_run_keeps_its_effect_in_doubt(stores: Stores) -> None:
    """A driver crashed in an at-most-once effect: a message for the run does not hide the doubt."""
    done: list[int] = []

    def handle(_run: RunState, _effect: Effect) -> EffectOutcome:
        done.append(1)
        raise KeyboardInterrupt

    def once(run: RunState, _ctx: Any) -> StepPlan:
        effect = Effect(EffectType.LLM_CALL, {}, "x", EffectMode.AT_MOST_ONCE)
        return StepPlan(run.current_node, effect, next_node="end")

    spec = WorkflowSpec("graph", "once", {"once": once, "end": end_node})
    runtime = stores.runtime(spec, effect_handlers={EffectType.LLM_CALL: handle})
    run_id = runtime.start(spec)
    with pytest.raises(KeyboardInterrupt):
        runtime.tick(spec, run_id)

    runtime.steer(run_id, "hello")
    runtime.update_limits(run_id, {"max_tokens": 9})
    state = runtime.tick(spec, run_id)

    assert state.waiting is not None
    assert str(state.waiting.wait_key).startswith("in_doubt:")
    assert done == [1]
