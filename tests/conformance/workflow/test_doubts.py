"""Effects in doubt of the embedded driver: reconcile functions, decisions, and crashes at each point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from actors._workflow.embedded.stores.ledgers import HashChainedLedgerStore
from actors.errors import EffectDidNotHappen
from actors.workflow import (
    Effect,
    EffectMode,
    EffectOutcome,
    EffectType,
    ReconciledHandler,
    RunStatus,
    StaleResumeError,
    StepPlan,
    WaitReason,
    WaitState,
    WorkflowSpec,
    open_waits,
    verify_ledger_chain,
)
from tests.conformance.workflow.stores import end_node
from tests.conformance.workflow.test_effects import Counting, Deaths, Dying

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.workflow import RunState
    from tests.conformance.workflow.stores import Stores

T = EffectType


def once(run: RunState, _ctx: Any) -> StepPlan:
    """Request an at-most-once effect."""
    run.vars["asked"] = run.vars.get("asked", 0) + 1
    effect = Effect(T.LLM_CALL, {"order": 7}, "out", EffectMode.AT_MOST_ONCE)
    return StepPlan(run.current_node, effect, next_node="end")


ONCE = WorkflowSpec("graph", "once", {"once": once, "end": end_node})
DECISIONS: list[tuple[dict[str, Any], str, int]] = [
    ({"result": "told"}, "completed", 1),
    ({"error": "refused"}, "failed", 1),
    ({"execute": True}, "completed", 2),
]


class AnyPoint(Dying):
    """A hook that crashes at the n-th point, whichever it is."""

    @override
    def __call__(self, _point: str) -> None:
        """Crash, if this is the chosen time."""
        super().__call__(self.point)


def doubted(stores: Stores, handler: Any, spec: WorkflowSpec = ONCE) -> str:
    """Return a run whose driver crashes after the effect was executed."""
    dying = stores.runtime(spec, effect_handlers={T.LLM_CALL: handler}, fault=Dying("executed"))
    run_id = dying.start(spec)
    with pytest.raises(Deaths):
        dying.tick(spec, run_id)
    return run_id


def did_not_happen(_run: RunState, _effect: Effect) -> Any:
    """Know that the effect did not happen."""
    raise EffectDidNotHappen


async def coroutine(_run: RunState, _effect: Effect) -> Any:
    """Find out, which the embedded driver does not wait for."""


@pytest.mark.item(441)
@pytest.mark.parametrize(
    ("reconcile", "ends"),
    [
        (lambda *_: EffectOutcome.completed("found"), ("completed", 1)),
        (lambda *_: EffectOutcome.failed("refused"), ("failed", 1)),
        (did_not_happen, ("completed", 2)),
        (lambda *_: None, ("waiting", 1)),
        (coroutine, ("waiting", 1)),
    ],
    ids=["happened", "failed", "did not happen", "unknown", "coroutine"],
)
def test_a_reconcile_function_decides(
    stores: Stores, reconcile: Callable[..., Any], ends: tuple[str, int]
) -> None:
    """It gets the idempotency key. If it does not decide, the run waits."""
    handler, keys = Counting(), list[str]()

    def look(run: RunState, effect: Effect, key: str) -> Any:
        keys.append(key)
        assert run.vars["asked"] == 1
        return reconcile(run, effect)

    both = ReconciledHandler(handler, look)
    run_id = doubted(stores, both)
    runtime = stores.reopen().runtime(ONCE, effect_handlers={T.LLM_CALL: both})

    state = runtime.tick(ONCE, run_id)

    assert (state.status.value, handler.calls) == ends
    started = stores.ledger.list(run_id)[1]
    assert keys == [started["idempotency_key"]]
    if state.waiting is not None:
        assert ("coroutine" in str(state.waiting.prompt)) is (reconcile is coroutine)


@pytest.mark.item(414, 441)
@pytest.mark.parametrize(("decision", "status", "calls"), DECISIONS, ids=["told", "no", "again"])
def test_a_decision_survives_a_crash_at_each_point(
    stores: Stores, decision: dict[str, Any], status: str, calls: int
) -> None:
    """It is made once, and the effect executes as often as was ordered, or is in doubt again."""
    points, again = 0, 0
    while True:
        handler = Counting()
        handlers: dict[EffectType, Any] = {T.LLM_CALL: handler}
        run_id = doubted(stores, handler)
        fault = AnyPoint("", points + 1)
        try:
            decide(stores, run_id, decision, effect_handlers=handlers, fault=fault)
        except Deaths:
            state = decide(stores.reopen(), run_id, decision, effect_handlers=handlers)
        else:
            break
        statuses = [record["status"] for record in stores.ledger.list(run_id)]
        doubts, where = statuses.count("waiting"), f"died at point {points}"
        again += doubts - 1
        points += 1
        assert state.status.value == status, where
        assert handler.calls <= calls + doubts - 1, where
        assert state.vars["asked"] == 1, where
        assert doubts == 1 or "execute" in decision, where
    assert points > 2
    assert (again > 0) is ("execute" in decision)


def decide(stores: Stores, run_id: str, decision: dict[str, Any], **more: Any) -> RunState:
    """Drive a run to its end, and decide on each doubt."""
    runtime = stores.runtime(ONCE, **more)
    state = runtime.tick(ONCE, run_id)
    while state.waiting is not None:
        state = runtime.resume(ONCE, run_id, state.waiting.wait_key, decision)
    return state


@pytest.mark.item(414, 441, 446)
def test_a_doubt_is_decided_once(stores: Stores) -> None:
    """A second decision is refused, also if the same effect is in doubt again."""
    handler = Counting()
    run_id = doubted(stores, handler)
    dying = stores.reopen().runtime(
        ONCE, effect_handlers={T.LLM_CALL: handler}, fault=Dying("executed")
    )
    [first] = open_waits(dying.tick(ONCE, run_id))
    with pytest.raises(Deaths):
        dying.resume(ONCE, run_id, first.wait_key, {"execute": True})
    runtime = stores.reopen().runtime(ONCE, effect_handlers={T.LLM_CALL: handler})
    with pytest.raises(StaleResumeError):
        runtime.resume(ONCE, run_id, first.wait_key, {"execute": True})
    [second] = open_waits(runtime.tick(ONCE, run_id))

    state = runtime.resume(ONCE, run_id, second.wait_key, {"result": "told"})

    assert (state.vars["asked"], state.output["out"], handler.calls) == (1, "told", 2)
    assert first.wait_key != second.wait_key
    keys = [record["idempotency_key"] for record in stores.ledger.list(run_id) if record["effect"]]
    assert keys[0] == keys[3], "the effect keeps its key"


@pytest.mark.item(414, 441)
def test_nobody_decides_before_a_doubt(stores: Stores) -> None:
    """An answer of another form to a handler's own wait of this kind fails the run."""
    details = {"mode": "in_doubt", "node": "once", "effect": {"type": "llm_call"}}

    def wait(_run: RunState, _effect: Effect) -> EffectOutcome:
        return EffectOutcome.waiting(WaitState(WaitReason.JOB, wait_key="own", details=details))

    runtime = stores.runtime(ONCE, effect_handlers={T.LLM_CALL: wait})
    run_id = runtime.start(ONCE)
    with pytest.raises(StaleResumeError):
        runtime.answer(run_id, "in_doubt:1", {"result": "early"})
    runtime.answer(run_id, "own", None)

    state = runtime.tick(ONCE, run_id)

    assert state.status is RunStatus.FAILED
    assert "the decision is none" in str(state.error)


@pytest.mark.item(441)
def test_the_deepest_payload_can_be_in_doubt(stores: Stores) -> None:
    """The wait shows the payload, and the records, the checkpoint and the chain keep it."""
    deepest: Any = 0
    for _ in range(62):
        deepest = [deepest]
    nodes = {
        "once": lambda _run, _ctx: StepPlan(
            "once",
            Effect(T.LLM_CALL, {"deep": deepest}, "out", EffectMode.AT_MOST_ONCE),
            next_node="end",
        ),
        "fork": lambda _run, _ctx: StepPlan("fork", parallel={"a": "once"}, next_node="end"),
        "end": end_node,
    }
    spec = WorkflowSpec("graph", "fork", nodes)
    stores.ledger = HashChainedLedgerStore(stores.ledger)
    handler = Counting()
    run_id = doubted(stores, handler, spec)
    runtime = stores.runtime(spec, effect_handlers={T.LLM_CALL: handler})
    [wait] = open_waits(runtime.tick(spec, run_id))
    assert wait.reason is WaitReason.JOB
    assert (wait.details or {})["effect"]["payload"]["deep"] == deepest

    state = runtime.resume(spec, run_id, wait.wait_key, {"execute": True})

    assert (state.status, handler.calls) == (RunStatus.COMPLETED, 2), state.error
    assert verify_ledger_chain(stores.ledger.list(run_id))["ok"]
