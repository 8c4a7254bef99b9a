"""Risky tools: a person approves one call with exactly its arguments, or it is not made."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.tools import ApprovalPolicy, Risk, Tool
from actors._kernel.runtime.log_entry import EntryKind as K
from actors.errors import UnknownApprovalError
from tests.behaviour.test_approvals import opened

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._kernel.agent.tools import InvocationResult
    from actors._kernel.runtime.ids import RunId
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


def paying(bed: Bed, risk: Risk = Risk.HIGH) -> Tool:
    """A tool that counts its payments."""

    async def pay(amount: int) -> str:
        await bed.world.do("pay", amount)
        return f"paid {amount}"

    return Tool("pay", "Pay.", pay, risk=risk)


async def pays(ctx: RunContext, inbox: list[Message]) -> object:
    """Return an agent that pays its first message's amount."""
    result = await ctx.tool("pay", amount=inbox[0].payload)
    return [result.status, result.text]


@pytest.mark.parametrize("risk", [Risk.HIGH, Risk.CRITICAL])
async def test_a_risky_call_waits_for_a_person(bed: Bed, risk: Risk) -> None:
    """The request has tool, risk and arguments; before the approval nothing is called or started."""
    run_id = await bed.submit(await bed.serve(pays, tools=[paying(bed, risk)]), 9000)
    (request,) = await opened(bed.runtime, run_id)

    assert request.what == "tool pay"
    assert request.args == {"risk": risk.value, "arguments": {"amount": 9000}}
    assert bed.world.count["pay"] == 0
    assert await bed.log(run_id, K.TOOL_CALLED) == []
    await bed.runtime.approvals.decide(request.id, approve=True, by="Alex")
    assert await bed.result(run_id) == ["ok", "paid 9000"]
    assert bed.world.count["pay"] == 1


async def test_a_denied_call_is_a_result(bed: Bed) -> None:
    """The model reads the person and the reason; the tool was never called."""
    run_id = await bed.submit(await bed.serve(pays, tools=[paying(bed)]), 9000)
    (request,) = await opened(bed.runtime, run_id)
    await bed.runtime.approvals.decide(request.id, approve=False, by="Alex", comment="too much")

    status, text = await bed.result(run_id)
    assert (status, text) == ("denied", "tool 'pay' was not called: Alex denied it: too much")
    assert bed.world.count["pay"] == 0


async def test_a_call_without_a_decision_is_denied(bed: Bed) -> None:
    """If the policy has a time limit."""
    policy = ApprovalPolicy(timeout_s=0.1)
    agent = await bed.serve(pays, tools=[paying(bed)], approval_policy=policy)

    status, text = await bed.result(await bed.submit(agent, 1))
    assert status == "denied"
    assert "nobody decided in time" in text
    assert bed.world.count["pay"] == 0


async def test_a_decision_is_for_one_call_with_its_arguments(bed: Bed) -> None:
    """The same call again, and one with another amount, are requests of their own."""

    async def act(ctx: RunContext, inbox: list[Message]) -> list[str]:
        del inbox
        return [(await ctx.tool("pay", amount=amount)).status for amount in (5, 5, 6)]

    run_id = await bed.submit(await bed.serve(act, tools=[paying(bed)]))
    request_ids = []
    for is_approved in (True, False, True):
        (request,) = await opened(bed.runtime, run_id)
        request_ids.append(request.id)
        await bed.runtime.approvals.decide(request.id, approve=is_approved, by="Alex")
        with pytest.raises(UnknownApprovalError):
            await bed.runtime.approvals.decide(request.id, approve=True, by="Robin")
        await bed.seen(run_id, K.ASK_REPLIED, times=len(request_ids))

    assert await bed.result(run_id) == ["ok", "denied", "ok"]
    assert len(set(request_ids)) == 3
    assert bed.world.count["pay"] == 2


async def test_a_crash_between_approval_and_call_makes_no_new_request(bed: Bed) -> None:
    """The decision is recorded: no new request is made, and the tool is called once."""
    run_id = await bed.submit(await bed.serve(pays, tools=[paying(bed)]), 7)
    (request,) = await opened(bed.runtime, run_id)
    await bed.crash()
    async with bed.client() as client:
        await client.approvals.decide(request.id, approve=True, by="Alex")
    await bed.start()

    assert await bed.result(run_id) == ["ok", "paid 7"]
    assert bed.world.count["pay"] == 1
    assert len(await bed.log(run_id, K.ASK_SENT)) == 1


async def test_decision_and_result_are_the_same_on_replay(bed: Bed) -> None:
    """The recorded decision leads to the recorded result."""
    asks: asyncio.Queue[RunId] = asyncio.Queue()

    async def body(ctx: RunContext) -> InvocationResult:
        asks.put_nowait(ctx.run_id)
        return await ctx.tool("pay", amount=3)

    async def decide() -> None:
        [request] = await opened(bed.runtime, await asks.get())
        await bed.runtime.approvals.decide(request.id, approve=True, by="Alex")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(decide())
        values = await bed.live_and_replayed(body, tools=[paying(bed)])

    assert all(value == values[0] for value in values)
    assert bed.world.count["pay"] == 1


async def test_the_agents_policy_overrides_the_tools_risk(bed: Bed) -> None:
    """A tool may be exempt by name; a harmless one may need an approval."""
    trusting = ApprovalPolicy(never=frozenset({"pay"}))
    agent = await bed.serve(pays, tools=[paying(bed)], approval_policy=trusting)
    assert (await bed.result(await bed.submit(agent, 1)))[0] == "ok"
    careful = ApprovalPolicy(always=frozenset({"pay"}))
    harmless = [paying(bed, Risk.SAFE)]
    run_id = await bed.submit(await bed.serve(pays, tools=harmless, approval_policy=careful), 2)
    (request,) = await opened(bed.runtime, run_id)
    await bed.runtime.approvals.decide(request.id, approve=False, by="Alex")

    assert (await bed.result(run_id))[0] == "denied"
    assert bed.world.count["pay"] == 1
