"""Calls of ctx inside the function of an effect: they are refused, because a replay does not call it."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, Final

import pytest

from actors import ChatMessage, idempotency_key
from actors._kernel.agent.hooks import Allow, GuardStage, GuardVerdict
from actors._kernel.agent.tools import Tool, ToolCall
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.sources import RunHandle
from actors._runtime import RunContext
from actors._runtime.verbs.conversation.history import ConversationHistory
from actors._runtime.verbs.memory import AgentMemory
from actors._runtime.verbs.run_context import AgentState
from actors.errors import CallInEffectError, ContractError, RunFailedError
from actors.testing import ModelReply, ScriptedModel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from actors._kernel.agent.message import Message
    from tests.behaviour.bed import Bed

ALLOWED: Final = {"emit_delta"}
"""A verb that records nothing."""


async def _scope(ctx: RunContext) -> None:
    async with ctx.scope():
        pass


def _calls(ctx: RunContext, inbox: list[Message]) -> dict[str, Callable[[], Awaitable[Any]]]:
    """Return a call of each verb, by its name."""
    target = inbox[0].target
    handle: Any = RunHandle(ctx.run_id, ctx.agent_id)
    return {
        "step": lambda: ctx.step("inner", lambda: 1),
        "tool": lambda: ctx.tool("use"),
        "llm": lambda: ctx.llm("?"),
        "generate": lambda: ctx.generate("?"),
        "chat": lambda: ctx.chat("?"),
        "sleep": lambda: ctx.sleep(0),
        "sleep_until": lambda: ctx.sleep_until(inbox[0].created_at),
        "sleep_until_signal": lambda: ctx.sleep_until_signal("go"),
        "receive": ctx.receive,
        "approval": lambda: ctx.approval("go?"),
        "gather": lambda: ctx.gather(ctx.now()),
        "select": lambda: ctx.select(ctx.now()),
        "scope": lambda: _scope(ctx),
        "send": lambda: ctx.send(target, 1),  # type: ignore[arg-type]
        "ask": lambda: ctx.ask(target, 1, timeout=1),  # type: ignore[arg-type]
        "reply": lambda: ctx.reply(inbox[0], 1),
        "follow": lambda: ctx.follow("news"),
        "unfollow": lambda: ctx.unfollow("news"),
        "emit": lambda: ctx.emit("news", 1),
        "spawn": lambda: ctx.spawn("other", 1),
        "join": lambda: ctx.join(handle),
        "cancel": lambda: ctx.cancel(handle),
        "status": lambda: ctx.status(handle),
        "now": ctx.now,
        "random": ctx.random,
        "uuid": ctx.uuid,
        "patched": lambda: ctx.patched("p"),
        "continue_as_new": lambda: ctx.continue_as_new(1),
        "state.get": lambda: ctx.state.get("k"),
        "state.set": lambda: ctx.state.set("k", 1),
        "state.clear": lambda: ctx.state.clear("k"),
        "history.append": lambda: ctx.history.append("said"),
        "history.get": ctx.history.get,
        "history.count": ctx.history.count,
        "memory.remember": lambda: ctx.memory.remember("text"),
        "memory.recall": lambda: ctx.memory.recall("text"),
        "memory.forget": lambda: ctx.memory.forget("key"),
        "memory.block": lambda: ctx.memory.block("b"),
        "memory.set_block": lambda: ctx.memory.set_block("b", "text", expected=0),
    }


def _verbs(prefix: str, owner: type) -> set[str]:
    members = inspect.getmembers(owner, inspect.iscoroutinefunction)
    return {f"{prefix}{name}" for name, _ in members if not name.startswith("_")}


async def test_every_verb_is_refused_inside_a_step(bed: Bed) -> None:
    """Nothing of it is recorded, the error names verb and step, and the run goes on."""
    refused: dict[str, str] = {}

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        calls = _calls(ctx, inbox)

        async def inner() -> str:
            for verb, call in calls.items():
                try:
                    await call()
                except CallInEffectError as exc:
                    refused[verb] = str(exc)
            await ctx.emit_delta("shown")
            ctx.check()
            return idempotency_key()

        await ctx.step("outer", inner)
        return [*calls]

    tool = Tool("use", "", lambda: None, idempotent=True)
    agent = await bed.serve(act, model=ScriptedModel(otherwise="x"), tools=[tool])
    run_id = await bed.submit(agent)
    verbs = await bed.result(run_id)

    assert [*refused] == verbs
    assert all("inside step 'outer'" in text for text in refused.values())
    owners = {"": RunContext, "state.": AgentState, "history.": ConversationHistory}
    every = set().union(*(_verbs(prefix, owner) for prefix, owner in owners.items()))
    assert {*verbs} == (every | _verbs("memory.", AgentMemory) | {"scope"}) - ALLOWED
    recorded = await bed.log(run_id, K.EFFECT_INTENT, K.TIMER_SET, K.ASK_SENT, K.MSG_SENT)
    assert [entry.payload.get("name") for entry in recorded] == ["outer"]


async def _in_a_task(call: Callable[[], Awaitable[Any]]) -> None:
    async def refused() -> None:
        with pytest.raises(CallInEffectError):
            await call()
        raise ContractError("it was refused")

    await asyncio.create_task(refused())


def _in_a_thread(call: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    with pytest.raises(CallInEffectError):
        call().send(None)
    raise ContractError("it was refused")


@pytest.mark.parametrize("thread", [False, True])
async def test_a_verb_is_refused_wherever_the_function_calls_it(bed: Bed, thread: bool) -> None:
    """In a task that the function starts, and in the thread that it is called in."""

    async def act(ctx: RunContext, _: list[Message]) -> None:
        if thread:
            await ctx.step("outer", lambda: _in_a_thread(ctx.now), thread=True)
        else:
            await ctx.step("outer", lambda: _in_a_task(ctx.now))

    with pytest.raises(RunFailedError, match="it was refused"):
        await bed.result(await bed.submit(await bed.serve(act), max_retries=0))


class _Asks:
    """A guard that calls ctx."""

    def __init__(self, call: Callable[[], Awaitable[Any]]) -> None:
        self._call = call

    async def check(self, stage: GuardStage, messages: Sequence[ChatMessage]) -> GuardVerdict:
        """See `Guard.check`."""
        del stage, messages
        await self._call()
        return Allow()


@pytest.mark.parametrize("part", ["tool", "guard", "reconcile"])
async def test_parts_of_effects_are_refused_the_same(bed: Bed, part: str) -> None:
    """Tools, guards of model calls and `reconcile` functions make no calls of ctx; the run fails at once."""
    contexts: list[RunContext] = []

    async def look() -> Any:
        return await contexts[-1].uuid()

    async def act(ctx: RunContext, _: list[Message]) -> Any:
        contexts.append(ctx)
        if part != "reconcile":
            return (await ctx.chat("go")).text

        async def reconcile(_: str) -> Any:
            return await ctx.uuid()

        hang = bed.world.hang
        return await ctx.step("once", hang, "x", effect="at_most_once", reconcile=reconcile)

    calls = ModelReply(calls=[ToolCall(id="c", name="look", arguments={})])
    guards = [_Asks(look)] if part == "guard" else []
    tool = Tool("look", "", look, idempotent=True)
    agent = await bed.serve(act, model=ScriptedModel(calls), tools=[tool], guards=guards)
    run_id = await bed.submit(agent, max_retries=0)
    if part == "reconcile":
        await bed.seen(run_id, K.EFFECT_INTENT)
        await bed.restart()

    with pytest.raises(RunFailedError, match=r"ctx\.uuid was called inside (tool|llm|step)"):
        await bed.result(run_id)
