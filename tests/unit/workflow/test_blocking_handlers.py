"""Handlers that block: each call of one has a thread, and the event loop goes on."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from actors import idempotency_key
from actors._runtime import Runtime
from actors.workflow import (
    Effect,
    EffectOutcome,
    EffectType,
    FlowRuns,
    Flows,
    NoRetryPolicy,
    RunStatus,
    StepPlan,
    WorkflowSpec,
)

if TYPE_CHECKING:
    from actors.workflow import RunState

PATIENCE_S = 20


def flow(name: str, kind: EffectType) -> WorkflowSpec:
    """A graph of one effect, which is its output."""

    def work(run: RunState, _ctx: Any) -> StepPlan:
        if "out" in run.vars:
            return StepPlan("work", complete_output=run.vars["out"])
        return StepPlan("work", Effect(kind, {}, "out"), next_node="work")

    return WorkflowSpec(name, "work", {"work": work})


FLOWS = [flow("tool", EffectType.TOOL_CALLS), flow("model", EffectType.LLM_CALL)]


async def test_the_loop_goes_on_while_a_handler_blocks() -> None:
    """What it waits for is done by a coroutine on the loop. Both know their idempotency key."""
    loop_thread, done = threading.get_ident(), threading.Event()

    def block(_run: RunState, _effect: Effect) -> EffectOutcome:
        is_set = done.wait(PATIENCE_S)
        return EffectOutcome.completed(
            [is_set, threading.get_ident() == loop_thread, bool(idempotency_key())]
        )

    async def answer(_run: RunState, _effect: Effect) -> EffectOutcome:
        done.set()
        return EffectOutcome.completed(
            [True, threading.get_ident() == loop_thread, bool(idempotency_key())]
        )

    handlers = {EffectType.TOOL_CALLS: block, EffectType.LLM_CALL: answer}
    async with Runtime() as runtime, asyncio.timeout(PATIENCE_S):
        await Flows("app", FLOWS, effect_handlers=handlers, blocking=True).register(runtime)
        runs = FlowRuns(runtime, "app")
        blocked = await runs.start("tool")
        other = await runs.start("model")
        assert await runtime.result(other) == [True, True, True]
        assert await runtime.result(blocked) == [True, False, True]


async def test_what_a_handler_in_a_thread_raises_is_a_failed_attempt() -> None:
    """As on the loop. A function that returns a coroutine is called in a thread, and awaited on the loop."""

    def fail(_run: RunState, _effect: Effect) -> EffectOutcome:
        raise StopIteration("no more")

    async def later() -> EffectOutcome:
        return EffectOutcome.completed(threading.get_ident())

    handlers = {EffectType.TOOL_CALLS: fail, EffectType.LLM_CALL: lambda _run, _effect: later()}
    async with Runtime() as runtime, asyncio.timeout(PATIENCE_S):
        flows = Flows(
            "app", FLOWS, effect_handlers=handlers, blocking=True, effect_policy=NoRetryPolicy()
        )
        await flows.register(runtime)
        runs = FlowRuns(runtime, "app")
        failed, model = await runs.start("tool"), await runs.start("model")
        await runtime.wait(failed)

        assert await runtime.result(model) == threading.get_ident()
        state = await runs.state(failed)
    assert state.status is RunStatus.FAILED
    assert "StopIteration" in str(state.error)


async def test_a_run_is_cancelled_while_its_handler_blocks() -> None:
    """It ends at once, and what the thread returns is dropped."""
    has_begun, may_end, has_ended = threading.Event(), threading.Event(), threading.Event()

    def block(_run: RunState, _effect: Effect) -> EffectOutcome:
        has_begun.set()
        may_end.wait(PATIENCE_S)
        has_ended.set()
        return EffectOutcome.completed("too late")

    handlers = {EffectType.TOOL_CALLS: block}
    async with Runtime() as runtime, asyncio.timeout(PATIENCE_S):
        await Flows("app", FLOWS, effect_handlers=handlers, blocking=True).register(runtime)
        runs = FlowRuns(runtime, "app")
        run_id = await runs.start("tool")
        await asyncio.to_thread(has_begun.wait, PATIENCE_S)
        await runs.cancel(run_id)
        await runtime.wait(run_id)
        was_blocked = not has_ended.is_set()
        may_end.set()
        await asyncio.to_thread(has_ended.wait, PATIENCE_S)
        state = await runs.state(run_id)

    assert was_blocked
    assert state.status is RunStatus.CANCELLED
    assert "out" not in state.vars
