"""Secrets: the function gets the value; everything that is recorded or shown has the name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.tools import Risk, Tool
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.secrets import Secret
from actors.errors import RunFailedError
from tests.behaviour.test_approvals import opened

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import RunId
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

VALUE = "sk-canary/1+2"
KEY = Secret("API_KEY")


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLBOARD_SECRET_API_KEY", VALUE)


async def written(bed: Bed, run_id: RunId) -> str:
    """Return the run's whole log and row as text."""
    entries = [dict(entry.payload) for entry in await bed.log(run_id)]
    return json.dumps([entries, str(await bed.row(run_id))])


async def test_a_step_gets_the_value_and_the_log_the_name(bed: Bed) -> None:
    """Live and on replay; a result that has the value is returned without it."""
    got: list[str] = []
    run_ids: list[RunId] = []

    async def charge(key: str, amount: int) -> dict[str, object]:
        got.append(key)
        return {"amount": amount, "echo": f"Bearer {key}", "url": "?k=sk-canary%2F1%2B2", key: 1}

    async def body(ctx: RunContext) -> object:
        run_ids.append(ctx.run_id)
        return await ctx.step("charge", charge, KEY, 5)

    values = await bed.live_and_replayed(body)
    hidden = "[secret API_KEY]"
    expected = {"amount": 5, "echo": f"Bearer {hidden}", "url": f"?k={hidden}", hidden: 1}

    assert got == [VALUE]
    assert all(value == expected for value in values)
    assert VALUE not in await written(bed, run_ids[0])


async def test_an_error_is_raised_without_the_value(bed: Bed) -> None:
    """Also if it was raised from another error; its class stays."""

    async def charge(key: str) -> None:
        raise ValueError(f"{key} was refused") from ConnectionError(f"GET /?key={key}")

    async def act(ctx: RunContext, inbox: list[Message]) -> list[str]:
        del inbox
        try:
            await ctx.step("charge", charge, KEY)
        except ValueError as exc:
            return [str(exc), repr(exc.__cause__), repr(exc.__context__)]
        return []

    run_id = await bed.submit(await bed.serve(act))

    assert await bed.result(run_id) == ["[secret API_KEY] was refused", "None", "None"]
    assert VALUE not in await written(bed, run_id)


async def test_a_tool_gets_the_value_and_an_approval_shows_the_name(bed: Bed) -> None:
    """The text of a failed tool is a result: the value is removed from it, too."""

    async def pay(key: str, amount: int) -> None:
        raise ConnectionError(f"{key} {amount}")

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        return (await ctx.tool("pay", key=KEY, amount=2)).text

    agent = await bed.serve(act, tools=[Tool("pay", "Pay.", pay, risk=Risk.HIGH)])
    run_id = await bed.submit(agent)
    (request,) = await opened(bed.runtime, run_id)
    assert request.args == {
        "risk": "high",
        "arguments": {"key": {"$secret": "API_KEY"}, "amount": 2},
    }
    await bed.runtime.approvals.decide(request.id, approve=True, by="Alex")

    assert await bed.result(run_id) == "ConnectionError: [secret API_KEY] 2"
    assert VALUE not in await written(bed, run_id)


async def test_data_that_looks_like_a_handle_is_data(bed: Bed) -> None:
    """A model or an external client cannot request a secret."""

    async def echo(value: object) -> object:
        return value

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        tool = await ctx.tool("echo", value=inbox[0].payload)
        return [await ctx.step("echo", echo, inbox[0].payload), tool.structured]

    agent = await bed.serve(act, tools=[Tool("echo", "Echo.", echo)])
    handle = {"$secret": "API_KEY"}

    assert await bed.result(await bed.submit(agent, handle)) == [handle, handle]


async def test_an_unknown_secret_fails_the_run(bed: Bed) -> None:
    """The run fails with the name and the remedy."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        return await ctx.step("echo", str, Secret("NO_SUCH"))

    run_id = await bed.submit(await bed.serve(act), max_retries=0)
    with pytest.raises(RunFailedError, match="set CALLBOARD_SECRET_NO_SUCH"):
        await bed.result(run_id)


async def test_a_secret_is_refused_in_messages_and_outputs(bed: Bed) -> None:
    """In a message, an output or inside an object it is refused; the error has its name only."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        if inbox[0].payload == "nested":
            return await ctx.step("echo", str, [KEY])
        if inbox[0].payload == "send":
            await ctx.send(ctx.agent_id, KEY)
        return KEY

    agent = await bed.serve(act)
    for how in ("nested", "send", "return"):
        run_id = await bed.submit(agent, how, max_retries=0)
        with pytest.raises(RunFailedError, match="cannot be recorded"):
            await bed.result(run_id)
        assert VALUE not in await written(bed, run_id)
        assert await bed.log(run_id, K.MSG_SENT) == []
