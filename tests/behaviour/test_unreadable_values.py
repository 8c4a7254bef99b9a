"""Values that an encoder writes and no decoder reads are refused at every call that would keep them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from actors._context.history import StoreHistory
from actors._kernel.agent.agent import ExecutionBudget, SpawnBudget
from actors._kernel.agent.message import ChatMessage, ContentBlock, Message
from actors._kernel.json_data import MAX_DIGITS
from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.scheduler import RetryPolicy
from actors._kernel.stores.runs import RunFilter
from actors.errors import ContractError, NotSerializableError, RegistrationError
from actors.workflow import Effect, EffectOutcome, EffectType, StepPlan, WorkflowSpec
from tests.behaviour.flow_stage import single, staged
from tests.behaviour.talks import Echo, sessions_on

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from actors._runtime import RunContext
    from actors.workflow import RunState
    from tests.behaviour.bed import Bed

    Door = Callable[[Any], Awaitable[Any]]

LONGEST: Final = 10**MAX_DIGITS - 1
UNREADABLE: Final[tuple[Any, ...]] = (
    LONGEST + 1,
    [{"n": -LONGEST - 1}],
    float("-inf"),
    {"nan": float("nan")},
    {1: 2},
    [b"bytes"],
)
REMEDY: Final = f"more than {MAX_DIGITS:,} digits: record it as text"


async def refused(doors: Mapping[str, Door]) -> None:
    """Check that each call refuses each value, and names the remedy for an integer."""
    for name, door in doors.items():
        for n, odd in enumerate(UNREADABLE):
            with pytest.raises((ContractError, TypeError)) as caught:
                await door(odd)
            assert n > 1 or REMEDY in str(caught.value), (name, str(caught.value)[:200])


def turn(odd: object) -> ChatMessage:
    """Return a turn with a block that has a value of its own."""
    return ChatMessage(role="user", content=[ContentBlock(type="x", data=odd)])


async def test_calls_of_a_run_refuse_them(bed: Bed) -> None:
    """Each call raises in the code, which goes on; an output and the input of the next life end the run."""

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        other = AgentId(ctx.agent_id.type, "other")
        odd = UNREADABLE[inbox[0].payload] if isinstance(inbox[0].payload, int) else None

        async def give(value: Any) -> Any:
            return value

        if odd is not None:
            return odd
        question = Message("m", ctx.agent_id, 1, reply_to=ctx.run_id, correlation_id="m")
        await refused(
            {
                "result of a step": lambda value: ctx.step("s", lambda: value),
                "state": lambda value: ctx.state.set("k", value),
                "send": lambda value: ctx.send(other, value),
                "ask": lambda value: ctx.ask(other, value, timeout=1),
                "reply": lambda value: ctx.reply(question, value),
                "emit": lambda value: ctx.emit("news", value),
                "spawn": lambda value: ctx.spawn(other, value),
                "approval": lambda value: ctx.approval("pay", {"sum": value}, timeout=1),
                "continue_as_new": ctx.continue_as_new,
            }
        )
        with pytest.raises(NotSerializableError, match=REMEDY):
            await ctx.step("s", give, LONGEST + 1)
        with pytest.raises(NotSerializableError, match=REMEDY):
            await ctx.history.append(turn(LONGEST + 1))
        return await ctx.step("longest", lambda: [LONGEST, -LONGEST])

    agent = await bed.serve(act)
    outputs = [await bed.submit(agent, n, max_retries=0) for n in range(len(UNREADABLE))]
    for run_id in outputs:
        row = await bed.ended(run_id)
        assert row.error is not None
        assert row.error["type"] == "actors.errors:NotSerializableError"
    assert await bed.result(await bed.submit(agent, "all")) == [LONGEST, -LONGEST]
    rows = await bed.runtime.store.lists.runs(among=RunFilter(type=agent.type))
    assert len(rows) == len(outputs) + 1


async def test_calls_from_outside_refuse_them(bed: Bed) -> None:
    """Nothing is written by one that is refused."""

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        del inbox
        return await ctx.sleep_until_signal("go")

    agent, runtime = await bed.serve(act), bed.runtime
    run_id = await bed.submit(agent)
    topic = "news"
    await refused(
        {
            "submit": lambda value: runtime.submit(agent, value),
            "send": lambda value: runtime.send(agent, value),
            "publish": lambda value: runtime.publish(topic, "s", value),
            "signal": lambda value: runtime.signal(run_id, "go", value),
            "resolve": lambda value: runtime.resolve(run_id, action="value", value=value),
            "schedule": lambda value: runtime.schedules.create("s", agent, value, delay_s=9),
        }
    )
    many = LONGEST + 1
    policy = RetryPolicy(max_retries=many)
    for options in (
        {"priority": many},
        {"max_retries": many},
        {"retry_policy": policy},
        {"spawn_budget": SpawnBudget(max_runs=many)},
        {"spawn_budget": SpawnBudget(max_concurrent=many)},
        {"execution_budget": ExecutionBudget(max_tokens=many)},
        {"execution_budget": ExecutionBudget(max_turns=many)},
    ):
        with pytest.raises(ContractError):
            await runtime.submit(agent, 1, **options)
    for odd in (policy, RetryPolicy(non_retryable=("\ud800",))):
        with pytest.raises(RegistrationError, match="`retry`"):
            await bed.serve(act, retry=odd)
    await runtime.signal(run_id, "go", LONGEST)
    assert await bed.result(run_id) == LONGEST
    assert len(await runtime.store.lists.runs(among=RunFilter(type=agent.type))) == 1


async def test_calls_about_runs_of_flows_refuse_them(bed: Bed) -> None:
    """Vars, answers, messages and limits."""
    asking = single(EffectType.ASK_USER, {"prompt": "?", "wait_key": "k"})
    stage = await staged(bed, asking)
    runs, run_id = stage.runs, await stage.runs.start("flow", id="r")
    await stage.waits(run_id)
    await refused(
        {
            "vars": lambda value: runs.start("flow", vars={"a": value}),
            "resume": lambda value: runs.resume(run_id, "k", value),
            "answer": lambda value: runs.answer(run_id, "later", value),
            "emit": lambda value: runs.emit("e", value),
            "steer": lambda value: runs.steer(run_id, [value]),
            "limits": lambda value: runs.update_limits(run_id, {"max_tokens": value}),
        }
    )
    await runs.resume(run_id, "k", LONGEST)
    state = await stage.ended(run_id)
    assert state.output is not None
    assert state.output["out"] == LONGEST


@pytest.mark.parametrize("maker", ["node", "handler", "output"])
async def test_a_flow_that_makes_one_fails_with_a_record(bed: Bed, maker: str) -> None:
    """Its node or handler is not called again and again, and the run can be read."""
    calls: list[str] = []

    def node(run: RunState, _ctx: Any) -> StepPlan:
        calls.append("node")
        if maker == "node":
            run.vars["n"] = LONGEST + 1
        output = LONGEST + 1 if maker == "output" else None
        effect = Effect(EffectType.TOOL_CALLS, {}, "out") if maker == "handler" else None
        after = None if maker == "output" else "work"
        return StepPlan("work", effect, next_node=after, complete_output=output)

    def handle(_run: RunState, _effect: Effect) -> EffectOutcome:
        calls.append("handler")
        return EffectOutcome.completed([LONGEST + 1])

    flow = WorkflowSpec("flow", "work", {"work": node})
    stage = await staged(bed, flow, effect_handlers={EffectType.TOOL_CALLS: handle})
    state = await stage.ended(await stage.runs.start("flow"))
    assert state.status.value == "failed"
    assert REMEDY in str(state.error)
    assert len(calls) == len({*calls})


async def test_calls_of_memory_and_sessions_refuse_them(bed: Bed, app: str) -> None:
    """Metadata, filters and content of turns."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await refused(
            {
                "remember": lambda value: ctx.memory.remember("text", metadata={"a": value}),
                "recall": lambda value: ctx.memory.recall("text", filter={"a": value}),
            }
        )

    await bed.play(act)
    async with sessions_on(bed, Echo().agent(), app=app) as talks:
        block = ContentBlock(type="x", data=LONGEST + 1)
        with pytest.raises(NotSerializableError, match=REMEDY):
            await talks.start([block], session_id="s")
        history = bed.runtime.store.data.transcripts
        with pytest.raises(NotSerializableError, match=REMEDY):
            await StoreHistory(history).append(
                talks.agent_id("s"), turn(LONGEST + 1), session_id="s"
            )
