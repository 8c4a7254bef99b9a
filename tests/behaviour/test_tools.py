"""Tools: each error of a call is a result, and an unsafe call happens once."""

from __future__ import annotations

import asyncio
import math
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.agent.tools import InvocationResult, Tool
from actors._kernel.runtime.log_entry import EntryKind
from actors._kernel.runtime.scheduler import RunStatus
from actors._runtime import idempotency_key
from actors.errors import RunFailedError, TerminalError

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


def _tools(bed: Bed) -> list[Tool]:
    async def pay(amount: int) -> dict[str, object]:
        return {"paid": await bed.world.do("pay", amount), "key": idempotency_key()}

    async def broken() -> None:
        await bed.world.fail("broken", ConnectionError)

    async def final() -> None:
        raise TerminalError("the account is closed")

    async def slow() -> None:
        await asyncio.Event().wait()

    return [
        Tool("pay", "Pay an amount.", pay),
        Tool("broken", "Never works.", broken, idempotent=True),
        Tool("final", "Ends the run.", final),
        Tool("slow", "Takes too long.", slow, idempotent=True, timeout_s=0.05),
    ]


@pytest.mark.item(44, 71, 74, 79, 187)
async def test_each_outcome_of_a_call_is_a_result(bed: Bed) -> None:
    """Value, failure, unknown name, wrong arguments, time-out: results, the same on replay."""

    async def body(ctx: RunContext) -> list[InvocationResult]:
        return [
            await ctx.tool("pay", amount=3),
            await ctx.tool("broken"),
            await ctx.tool("nowhere", x=1),
            await ctx.tool("pay", wrong=1),
            await ctx.tool("slow"),
        ]

    values = await bed.live_and_replayed(body, tools=_tools(bed))
    assert all(value == values[0] for value in values)
    paid, broken, unknown, wrong, slow = values[0]
    assert (paid.status, paid.structured["paid"]) == ("ok", 3)
    assert (broken.status, broken.error_type) == ("error", "builtins:ConnectionError")
    assert "broken is broken" in broken.text
    assert unknown.status == "error"
    assert "'nowhere' is not declared" in unknown.text
    assert "pay" in unknown.text
    assert (wrong.status, wrong.error_type) == ("error", "builtins:ValueError")
    assert (slow.status, slow.error_type) == ("error", "builtins:TimeoutError")
    assert slow.text == "TimeoutError: tool 'slow' took longer than 0.05 s"
    assert bed.world.count == {"pay": 1, "broken": 1, "mark": 1}


@pytest.mark.item(81, 184, 485)
async def test_the_log_of_a_call(bed: Bed) -> None:
    """tool.called with effect id and mode is durable before the tool runs; then one tool.result."""
    before: list[list[str]] = []
    keys: list[str] = []

    async def look(ctx_run: str) -> str:
        before.append(await bed.kinds(ctx_run))  # type: ignore[arg-type]
        keys.append(idempotency_key())
        return "seen"

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.tool("look", ctx_run=ctx.run_id)

    run_id = await bed.submit(await bed.serve(act, tools=[Tool("look", "Look.", look)]))
    await bed.result(run_id)
    assert before == [["run.started", "msg.received", "tool.called"]]
    [called] = await bed.log(run_id, EntryKind.TOOL_CALLED)
    [result] = await bed.log(run_id, EntryKind.TOOL_RESULT)
    assert called.payload["id"] == result.payload["id"] == keys[0]
    assert (called.payload["name"], called.payload["mode"]) == ("look", "at_most_once")
    value: Any = result.payload["value"]
    assert (value["status"], value["structured"]) == ("ok", "seen")


@pytest.mark.item(191)
async def test_a_tools_schema_states_whether_it_is_idempotent(bed: Bed) -> None:
    """As a flag and in the description that the model reads."""
    specs = {tool.name: tool.spec().description for tool in _tools(bed)}
    assert specs["pay"] == "Pay an amount. Not safe to repeat."
    assert specs["broken"] == "Never works. Safe to repeat."


@pytest.mark.item(80, 186, 189)
@pytest.mark.parametrize("idempotent", [True, False])
async def test_only_idempotent_tools_are_called_again_after_a_crash(
    bed: Bed, idempotent: bool
) -> None:
    """An idempotent tool is called again, any other one never; its call is in doubt."""

    async def charge() -> str:
        return str(await bed.world.hang("charge", "done"))

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        return (await ctx.tool("charge")).structured

    tool = Tool("charge", "Charge.", charge, idempotent=idempotent)
    run_id = await bed.submit(await bed.serve(act, tools=[tool]))
    async with asyncio.timeout(20):
        await bed.world.entered.wait()
    await bed.restart()
    if idempotent:
        assert await bed.result(run_id) == "done"
        assert bed.world.count["charge"] == 2
        return
    parked = await bed.seen(run_id, EntryKind.RUN_PARKED)
    assert parked.payload["reason"] == "in_doubt"
    assert parked.payload["at"] == "0"
    assert bed.world.count["charge"] == 1
    await bed.runtime.cancel(run_id)
    assert (await bed.ended(run_id)).status is RunStatus.CANCELLED


@pytest.mark.item(80, 186)
async def test_the_result_before_a_crash_is_replayed(bed: Bed) -> None:
    """Its recorded result is used; the side effect happened once."""

    async def body(ctx: RunContext) -> object:
        return (await ctx.tool("pay", amount=1)).structured

    assert len({str(value) for value in await bed.live_and_replayed(body, tools=_tools(bed))}) == 1
    assert bed.world.count["pay"] == 1


@pytest.mark.item(79)
async def test_errors_about_the_run_pass_through_a_tool(bed: Bed) -> None:
    """A tool that raises TerminalError ends the run."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.tool("final")

    run_id = await bed.submit(await bed.serve(act, tools=_tools(bed)))
    with pytest.raises(RunFailedError, match="the account is closed"):
        await bed.result(run_id)


@pytest.mark.item(79)
async def test_a_value_of_any_type_is_a_result(bed: Bed) -> None:
    """The tool has acted: no value of it ends the run. The result is JSON data, the same on replay."""
    text, bad_text = InvocationResult(status="ok", text="a\0b", structured={1}), "half \udcff"
    values = [
        object(),
        {"at": date(2026, 1, 2), 3: Decimal("1.10")},
        math.nan,
        b"\xff",
        bad_text,
        text,
    ]
    rest = iter(values * 2)

    async def odd() -> object:
        return next(rest)

    async def body(ctx: RunContext) -> list[InvocationResult]:
        return [await ctx.tool("odd") for _ in values]

    tools = [Tool("odd", "Returns anything.", odd)]
    live, replayed = await bed.live_and_replayed(body, tools=tools)
    assert live == replayed
    assert [result.status for result in live] == ["ok"] * len(values)
    first, *others = [result.structured for result in live]
    assert first.startswith("<object object")
    assert others == [{"at": "2026-01-02", "3": "1.10"}, "nan", "/w==", "half \ufffd", [1]]
    assert [result.text for result in live[-2:]] == ["half \ufffd", "a\ufffdb"]


@pytest.mark.item(44)
async def test_an_agent_without_tools_may_call_none(bed: Bed) -> None:
    """The result says that none is declared."""

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        return (await ctx.tool("pay", amount=1)).text

    assert "declared: none" in await bed.play(act)
