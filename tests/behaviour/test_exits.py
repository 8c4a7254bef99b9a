"""Agents' code that raises SystemExit or KeyboardInterrupt: its run or call fails, and the host survives."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.agent.tools import Tool
from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.scheduler import RunStatus
from actors.errors import EffectDidNotHappen, RunFailedError
from tests.behaviour.agents import Acting

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors._kernel.agent.hooks import CallNext, HookEvent, InvocationContext
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


def _exit() -> None:
    sys.exit("goodbye")


def _interrupt() -> None:
    raise KeyboardInterrupt("goodbye")


SIGNALS = {"exit": _exit, "interrupt": _interrupt}


async def _polite(ctx: RunContext, inbox: list[Message]) -> str:
    del ctx, inbox
    return "alive"


@pytest.mark.parametrize("signal", SIGNALS)
async def test_a_hook_that_ends_the_process_changes_nothing(bed: Bed, signal: str) -> None:
    """The run completes if a hook raises at its start, at its steps or at its end."""
    hook_calls = 0

    async def bad(event: HookEvent) -> None:
        nonlocal hook_calls
        del event
        hook_calls += 1
        SIGNALS[signal]()

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        del inbox
        return await ctx.step("echo", bed.world.do, "echo", 1)

    agent = await bed.serve(act, hooks=[bad])
    assert await bed.result(await bed.submit(agent)) == 1
    assert await bed.play(_polite) == "alive"
    assert hook_calls >= 3


@pytest.mark.parametrize("signal", SIGNALS)
async def test_a_factory_that_ends_the_process_is_called_again(bed: Bed, signal: str) -> None:
    """Its agents wait as after any error of a factory; other agents do not."""
    factory_calls = 0

    def make(agent_id: AgentId) -> Acting:
        nonlocal factory_calls
        factory_calls += 1
        if factory_calls == 1:
            SIGNALS[signal]()
        return Acting(agent_id, _polite)

    type_ = bed.name().type
    await bed.runtime.register_type(type_, make)
    run_id = await bed.submit(AgentId(type_, "1"))

    assert await bed.result(run_id) == "alive"
    assert factory_calls >= 2


def _middleware(signal: Callable[[], None]) -> object:
    class Leaving:
        async def process(self, call: InvocationContext, following: CallNext) -> None:
            del call, following
            signal()

    return Leaving()


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("position", ["run", "middleware", "branch", "reconcile"])
async def test_a_run_that_ends_the_process_fails(bed: Bed, position: str, signal: str) -> None:
    """Wherever it is raised, it counts as the run's error, and the next run is executed."""
    leave = SIGNALS[signal]
    more = {"middleware": [_middleware(leave)]} if position == "middleware" else {}

    async def branch() -> None:
        leave()

    async def reconcile(effect_id: str) -> None:
        del effect_id
        leave()
        raise EffectDidNotHappen

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        if position == "run":
            leave()
        if position == "branch":
            await ctx.gather(ctx.now(), branch())
        if position == "reconcile":
            await ctx.step("pay", bed.world.hang, "pay", effect="at_most_once", reconcile=reconcile)

    run_id = await bed.submit(await bed.serve(act, **more), max_retries=0)
    if position == "reconcile":
        await bed.world.entered.wait()
        await bed.restart()
    with pytest.raises(RunFailedError, match="goodbye"):
        await bed.result(run_id)
    assert await bed.play(_polite) == "alive"


@pytest.mark.parametrize("mode", ["idempotent", "at_most_once"])
async def test_an_effect_that_ends_the_process_has_failed(bed: Bed, mode: Any) -> None:
    """It is recorded as an error like any other: executed once, never in doubt."""

    def leave() -> None:
        bed.world.count["leave"] += 1
        _exit()

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.step("leave", leave, effect=mode)

    row = await bed.ended(await bed.submit(await bed.serve(act), max_retries=0))

    assert row.status is RunStatus.FAILED
    assert row.error is not None
    assert row.error["message"] == "goodbye" or "SystemExit" in str(row.error["message"])
    assert bed.world.count["leave"] == 1


async def test_a_tool_that_ends_the_process_answers_with_an_error(bed: Bed) -> None:
    """The model reads the error as the tool's result."""

    async def leave() -> None:
        _exit()

    async def act(ctx: RunContext, inbox: list[Message]) -> list[Any]:
        del inbox
        result = await ctx.tool("leave")
        return [result.status, result.error_type]

    agent = await bed.serve(act, tools=[Tool("leave", "Ends all.", leave)])

    assert await bed.result(await bed.submit(agent)) == ["error", "builtins:SystemExit"]
