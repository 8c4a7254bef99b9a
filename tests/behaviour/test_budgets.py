"""Budgets of a tree, deadlines, and limits on how often a run may fail."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.agent.agent import ExecutionBudget
from actors._kernel.agent.models import GenerationOptions
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors.errors import BudgetExhaustedError
from tests.behaviour.agents import greeter

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


async def asks_thrice(ctx: RunContext, inbox: list[Message]) -> Any:
    """Call the model three times, and return how many calls succeeded."""
    del inbox
    done = 0
    for n in range(3):
        try:
            await ctx.llm(f"q{n}")
        except BudgetExhaustedError:
            continue
        done += 1
    return done


async def test_model_calls_of_a_tree_are_counted_exactly(bed: Bed) -> None:
    """Parent and child share the root's budget; a call above it is refused and not executed."""
    model = greeter()
    child = await bed.serve(asks_thrice, model=model)

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        own = await asks_thrice(ctx, inbox)
        return [own, (await ctx.join(await ctx.spawn(child, 1))).output]

    agent = await bed.serve(act, model=model)
    run_id = await bed.submit(agent, execution_budget=ExecutionBudget(max_turns=4))
    assert await bed.result(run_id) == [3, 1]
    assert model.calls == 4


async def test_model_calls_at_once_are_counted_exactly(bed: Bed) -> None:
    """Branches start more calls at once than the budget allows: only the allowed number executes."""
    model = greeter()

    async def call_model(ctx: RunContext, n: int) -> bool:
        try:
            await ctx.llm(f"q{n}")
        except BudgetExhaustedError:
            return False
        return True

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        del inbox
        return sum(await ctx.gather(*(call_model(ctx, n) for n in range(5))))

    agent = await bed.serve(act, model=model)
    run_id = await bed.submit(agent, execution_budget=ExecutionBudget(max_turns=2))
    assert await bed.result(run_id) == 2
    assert model.calls == 2


async def test_a_run_above_its_tokens_fails_without_a_retry(bed: Bed) -> None:
    """10 tokens a call, 15 allowed: the third call is refused, and the run fails without a retry."""
    model = greeter()

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        del inbox
        for n in range(3):
            await ctx.llm(f"q{n}")

    agent = await bed.serve(act, model=model)
    run_id = await bed.submit(agent, execution_budget=ExecutionBudget(max_tokens=15))
    row = await bed.ended(run_id)
    assert row.error is not None
    assert (row.status, row.error["status"]) == (RunStatus.FAILED, "budget_exhausted")
    assert model.calls == 2
    assert len(await bed.log(run_id, K.RUN_ATTEMPT_FAILED)) == 0


@pytest.mark.parametrize(
    ("most", "limits"),
    [(25, [25, 15, 3, None]), (4105, [None, 4095, 3, 4075]), (10_000, [None, None, 3, 9970])],
)
async def test_an_answer_is_limited_to_what_the_budget_leaves(
    bed: Bed, most: int, limits: list[int | None]
) -> None:
    """An answer is limited to the tokens asked for, and to those that its tree has left.

    A call uses 10 tokens; the host may crash in between. Without a limit of the caller none is sent
    that a provider could refuse. The log records the limits of the budget. The child's call is
    refused if no tokens are left.
    """
    model, after = greeter(), []

    async def ask(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        return (await ctx.llm("d", options=GenerationOptions(max_tokens=20_000))).text

    child = await bed.serve(ask, model=model)

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        del inbox
        texts = [(await ctx.llm("a")).text, (await ctx.generate("b", session="s")).text]
        await ctx.step("mark", bed.world.do, "mark")
        await ctx.sleep_until_signal("go")
        texts.append((await ctx.llm("c", options=GenerationOptions(max_tokens=3))).text)
        after.append((await ctx.join(await ctx.spawn(child, 1))).status)
        return texts

    agent = await bed.serve(act, model=model)
    run_id = await bed.submit(agent, execution_budget=ExecutionBudget(max_tokens=most))
    await bed.marked(run_id)
    await bed.restart()
    await bed.runtime.signal(run_id, "go")
    assert await bed.result(run_id) == ["Hello there"] * 3

    is_refused = limits[-1] is None
    assert after[-1] == (RunStatus.FAILED if is_refused else RunStatus.COMPLETED)
    assert [request.options.max_tokens for request in model.asked] == limits[
        : 3 if is_refused else 4
    ]
    recorded = [entry.payload.get("max_tokens") for entry in await bed.log(run_id, K.LLM_CALL)]
    assert recorded == [*limits[:2], None]


async def test_the_cost_of_model_calls_is_counted(bed: Bed) -> None:
    """40 cents a call, one dollar allowed: the fourth is refused. A client that reports no cost is free."""
    paid, free = greeter(cost_usd=0.4), greeter()

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        del inbox
        done = 0
        for n in range(5):
            try:
                await ctx.llm(f"q{n}")
            except BudgetExhaustedError:
                break
            done += 1
        return done

    outputs = []
    for model in (paid, free):
        agent = await bed.serve(act, model=model)
        budget = ExecutionBudget(max_cost_usd=1.0)
        outputs.append(await bed.result(await bed.submit(agent, execution_budget=budget)))
    assert outputs == [3, 5]
    assert (paid.calls, free.calls) == (3, 5)


@pytest.mark.parametrize("at", ["a wait", "an effect", "its child"])
async def test_a_deadline_ends_the_tree(bed: Bed, at: str) -> None:
    """Suspended, in memory or executing, the run fails in time without a retry, and so does its child."""

    async def forever(ctx: RunContext, inbox: list[Message]) -> Any:
        del inbox
        await ctx.sleep(60)

    child = await bed.serve(forever)

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        del inbox
        if at == "a wait":
            await ctx.sleep(60)
        if at == "an effect":
            await ctx.step("gate", bed.world.wait, "gate")
        await ctx.join(await ctx.spawn(child, 1))

    agent = await bed.serve(act)
    run_id = await bed.submit(agent, execution_budget=ExecutionBudget(deadline_s=0.5))
    row = await bed.ended(run_id)
    assert row.error is not None
    assert (row.status, row.error["status"]) == (RunStatus.FAILED, "deadline_exceeded")
    for handle in await bed.runtime.children(run_id):
        ended = await bed.ended(handle.run_id)
        assert ended.status in {RunStatus.FAILED, RunStatus.CANCELLED}


async def test_a_deadline_farther_off_than_any_timer(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timer of the event loop cannot be that long: only the deadline cuts an effect off."""
    monkeypatch.setattr("actors._runtime.loop.timers.MAX_ARM_S", 0.05)

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        await ctx.step("work", asyncio.sleep, inbox[0].payload)
        return "done"

    agent = await bed.serve(act)
    in_time, late = [
        await bed.ended(
            await bed.submit(agent, work_s, execution_budget=ExecutionBudget(deadline_s=limit_s))
        )
        for work_s, limit_s in ((0.2, 30), (30, 0.2))
    ]
    assert (in_time.status, in_time.result) == (RunStatus.COMPLETED, "done")
    assert late.error is not None
    assert late.error["status"] == "deadline_exceeded"


async def test_a_queued_run_fails_at_its_deadline(bed: Bed) -> None:
    """Its deadline passes in the queue: it fails and its code is not called."""
    begun: list[str] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        begun.append(str(inbox[0].payload))
        await ctx.sleep_until_signal("go")

    agent = await bed.serve(act)
    first = await bed.submit(agent, "first")
    late = await bed.submit(agent, "late", execution_budget=ExecutionBudget(deadline_s=0.1))
    await asyncio.sleep(0.2)
    await bed.runtime.signal(first, "go")
    row = await bed.ended(late)
    assert row.error is not None
    assert row.error["status"] == "deadline_exceeded"
    assert "late" not in begun


@pytest.mark.item(63, 166)
async def test_only_failures_of_the_last_seconds_count(bed: Bed) -> None:
    """A run that fails rarely continues for ever; one with too many failures in that time is given up."""
    # A busy machine records a failure later than the next attempt is scheduled from it.
    policy = RetryPolicy(max_retries=1, backoff_s=0.8, factor=1, jitter=0, within_s=0.05)
    tries: list[int] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        del inbox
        tries.append(ctx.meta.attempt)
        if ctx.meta.attempt < 4:
            raise ValueError("again")
        return "at last"

    run_id = await bed.submit(await bed.serve(act), retry_policy=policy)
    assert await bed.result(run_id) == "at last"
    often = policy.model_copy(update={"within_s": 60.0})
    tries.clear()
    row = await bed.ended(await bed.submit(await bed.serve(act), retry_policy=often))
    assert row.status is RunStatus.FAILED
    assert max(tries) == 2
