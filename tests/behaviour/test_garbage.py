"""What is over is freed at once: no cycle of references leaves it to the garbage collector."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.log_entry import EntryKind as K
from actors.workflow import (
    EffectOutcome,
    EffectType,
    RetryPolicy,
    RunStatus,
    StepPlan,
    WorkflowSpec,
)
from tests.behaviour.agents import greeter
from tests.behaviour.agui import Thread
from tests.behaviour.bed import LIMIT_S
from tests.behaviour.flow_stage import asking, completing, ending, staged
from tests.behaviour.talks import Echo
from tests.behaviour.web import create_session, web_on
from tests.harness.garbage import no_garbage

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from actors.workflow import Effect, RunState
    from tests.behaviour.bed import Bed

T = EffectType
ROUNDS = 3
FAST = RetryPolicy(backoff_base=0.01, backoff_max=0.02)


async def rests(bed: Bed) -> None:
    """Return when no run is in the host's memory."""
    await bed.until(lambda: not bed.runtime._host.worker.dispatcher.load)


@pytest.mark.item(107)
async def test_runs_of_agents_leave_no_garbage(bed: Bed) -> None:
    """Those with effects, failed effects, model calls, branches, children, questions and waits."""

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        await ctx.gather(ctx.step("one", _return_one), ctx.sleep(0.0))
        with suppress(ValueError):
            await ctx.step("two", _fails)
        answer = await ctx.llm(str(inbox[0].payload))
        child = await ctx.spawn(below, answer.text)
        await ctx.join(child)
        await ctx.ask(below, "what", timeout=LIMIT_S)
        return await ctx.sleep_until_signal("go")

    async def follow(ctx: RunContext, inbox: list[Message]) -> str:
        with suppress(ValueError):
            await ctx.step("two", _fails)
        return "done"

    below = await bed.serve(follow)
    agent = await bed.serve(act, model=greeter())

    async def play(text: str) -> None:
        run_id = await bed.submit(agent, text)
        await bed.seen(run_id, K.ASK_REPLIED)
        await bed.runtime.signal(run_id, "go", text)
        assert await bed.result(run_id) == text
        await rests(bed)

    await play("first")
    with no_garbage():
        for n in range(ROUNDS):
            await play(str(n))


@pytest.mark.item(107)
async def test_runs_of_flows_leave_no_garbage(bed: Bed) -> None:
    """Those with effects, failed attempts, branches, sub-graphs, and waits that are answered."""
    tries: list[str] = []

    def twice(run: RunState, effect: Effect) -> EffectOutcome:
        tries.append(run.run_id)
        return EffectOutcome.failed("no") if len(tries) % 2 else EffectOutcome.completed(1)

    def forked(run: RunState, _ctx: Any) -> StepPlan:
        return StepPlan(run.current_node, parallel={"one": "one", "two": "two"}, next_node="below")

    nodes = {
        "fork": forked,
        "one": asking(T.TOOL_CALLS, {}, key="one", after=None),
        "two": asking(T.LLM_CALL, {}, key="two", after=None),
        "below": asking(T.START_SUBWORKFLOW, {"workflow_id": "below"}, key="sub", after="ask"),
        "ask": asking(T.ASK_USER, {"prompt": "Sure?", "wait_key": "k"}, key="said"),
        "end": ending,
    }
    specs = [WorkflowSpec("flow", "fork", nodes), WorkflowSpec("below", "end", {"end": ending})]
    handlers = {T.TOOL_CALLS: twice, T.LLM_CALL: completing("x")}
    stage = await staged(bed, *specs, effect_handlers=handlers, effect_policy=FAST)

    async def play() -> None:
        run_id = await stage.runs.start("flow")
        await stage.waits(run_id)
        if bed.drops:
            await bed.seen(run_id, K.RUN_SUSPENDED)
        await stage.runs.resume(run_id, "k", "yes")
        assert (await stage.ended(run_id)).status is RunStatus.COMPLETED
        await rests(bed)

    await play()
    with no_garbage():
        for _ in range(ROUNDS):
            await play()


@pytest.mark.item(107)
async def test_turns_over_http_leave_no_garbage(bed: Bed, app: str) -> None:
    """Their streams, also those whose clients have disconnected, and the streams of AG-UI."""
    async with web_on(bed, Echo().agent(), app_name=app) as web:

        async def play(text: str) -> None:
            path = await create_session(web)
            async with web.stream(f"{path}/runs", {"text": text}) as stream:
                assert (await stream.until())[-1]["event"] == "run_completed"
            async with web.stream(f"{path}/events") as stream:
                await stream.until("run_completed")
            await Thread(web, f"/agui/{app}", text).ask("r", text)
            await rests(bed)

        await play("first")
        with no_garbage():
            for n in range(ROUNDS):
                await play(f"text {n}")


async def _return_one() -> int:
    return 1


async def _fails() -> None:
    raise ValueError("no")
