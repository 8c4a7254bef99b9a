"""Middleware around a run, and hooks that observe it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.agent.hooks import HookKind
from actors._kernel.runtime.log_entry import EntryKind
from actors._kernel.runtime.scheduler import RunStatus
from actors._runtime.verbs import middleware as lifecycle
from actors.errors import BudgetExhaustedError, MiddlewareTermination

if TYPE_CHECKING:
    from actors._kernel.agent.hooks import CallNext, HookEvent, InvocationContext
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


async def _echo(ctx: RunContext, inbox: list[Message]) -> object:
    return await ctx.step("echo", lambda: inbox[0].payload)


class Wraps:
    """Records its start and end, and adds its name to the output."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self._name = name
        self._notes = notes

    async def process(self, context: InvocationContext, call_next: CallNext) -> None:
        """See `Middleware.process`."""
        self._notes.append(f"> {self._name}")
        await call_next(context)
        context.output = f"{self._name}({context.output})"
        self._notes.append(f"< {self._name}")


@pytest.mark.item(50)
async def test_the_first_middleware_is_the_outermost(bed: Bed) -> None:
    """It gets the output of the inner ones, and its output is the run's output."""
    notes: list[str] = []
    agent = await bed.serve(_echo, middleware=[Wraps("a", notes), Wraps("b", notes)])
    assert await bed.result(await bed.submit(agent, "x")) == "a(b(x))"
    assert notes == ["> a", "> b", "< b", "< a"]


@pytest.mark.item(50)
async def test_middleware_may_be_one_pipeline(bed: Bed) -> None:
    """An object with `execute` wraps the call itself."""

    class Pipeline:
        """A chain of one."""

        async def execute(self, context: InvocationContext, final: CallNext) -> None:
            """See `MiddlewarePipeline.execute`."""
            await final(context)
            context.output = [context.output]

    agent = await bed.serve(_echo, middleware=Pipeline())
    assert await bed.result(await bed.submit(agent, "x")) == ["x"]


@pytest.mark.item(50)
async def test_middleware_may_end_the_run_without_the_agent(bed: Bed) -> None:
    """Without `call_next`, `context.output` is the output; its ctx calls are recorded."""

    class Cached:
        """Answers without the agent."""

        async def process(self, context: InvocationContext, call_next: CallNext) -> None:
            """See `Middleware.process`."""
            del call_next
            context.output = await context.ctx.step("cached", bed.world.do, "cached", "hit")

    agent = await bed.serve(_echo, middleware=[Cached()])
    assert await bed.result(await bed.submit(agent, "x")) == "hit"


@pytest.mark.item(61, 62)
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MiddlewareTermination("this topic is off limits"), "guardrail_tripped"),
        (BudgetExhaustedError("100 tokens used"), "budget_exhausted"),
    ],
    ids=["guardrail", "budget"],
)
async def test_middleware_may_stop_a_run_without_an_error(
    bed: Bed, error: Exception, status: str
) -> None:
    """The run has one attempt and no error, and its messages count as handled."""

    class Guard:
        """Stops every run."""

        async def process(self, context: InvocationContext, call_next: CallNext) -> None:
            """See `Middleware.process`."""
            await call_next(context)
            raise error

    agent = await bed.serve(_echo, middleware=[Guard()])
    run_id = await bed.submit(agent, "x")
    row = await bed.ended(run_id)
    assert row.status is RunStatus.FAILED
    [failed] = await bed.log(run_id, EntryKind.RUN_FAILED)
    assert failed.payload["status"] == status
    error_record: Any = failed.payload["error"]
    assert error_record["message"] == str(error)
    assert not await bed.log(run_id, EntryKind.RUN_ATTEMPT_FAILED)
    assert await bed.runtime.store.lists.pending_count(agent) == 0
    assert await bed.runtime.store.lists.dead_letters(agent=agent) == []


class Watch:
    """A hook that records its events."""

    def __init__(self) -> None:
        self.events: list[HookEvent] = []

    async def __call__(self, event: HookEvent) -> None:
        """See `Hook`."""
        self.events.append(event)

    @property
    def kinds(self) -> list[str]:
        """Return the kinds of the events, in order."""
        return [event.kind for event in self.events]


@pytest.mark.item(47, 48)
@pytest.mark.parametrize("ends", ["completed", "failed", "cancelled"])
async def test_run_start_and_run_end_once_per_attempt(bed: Bed, ends: str) -> None:
    """With agent, run and attempt; run_end also if the run fails or is cancelled."""
    watch = Watch()

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del ctx, inbox
        if ends == "failed":
            raise ValueError
        if ends == "cancelled":
            await bed.world.hang("hang")

    agent = await bed.serve(act, hooks=[watch])
    run_id = await bed.submit(agent, max_retries=0)
    if ends == "cancelled":
        async with asyncio.timeout(20):
            await bed.world.entered.wait()
        await bed.runtime.cancel(run_id)
    await bed.ended(run_id)
    await bed.until(lambda: not bed.runtime._host.worker.dispatcher.load)
    assert watch.kinds == [HookKind.RUN_START, HookKind.RUN_END]
    assert {(e.run_id, e.agent_id, e.attempt) for e in watch.events} == {(run_id, agent, 1)}


@pytest.mark.item(47)
async def test_the_events_of_each_attempt_have_its_number(bed: Bed) -> None:
    """Two attempts are two starts and two ends."""
    watch = Watch()

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        if ctx.meta.attempt == 1:
            raise ValueError

    run_id = await bed.submit(await bed.serve(act, hooks=[watch]))
    await bed.result(run_id)
    await bed.until(lambda: not bed.runtime._host.worker.dispatcher.load)
    assert [e.attempt for e in watch.events] == [1, 1, 2, 2]
    assert watch.kinds == [HookKind.RUN_START, HookKind.RUN_END] * 2


@pytest.mark.item(49)
@pytest.mark.parametrize("manner", ["raises", "hangs", "cancels"])
async def test_a_bad_hook_changes_nothing(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, manner: str
) -> None:
    """The run completes, and the next hook is called, too."""
    monkeypatch.setattr(lifecycle, "HOOK_LIMIT_S", 0.05)
    watch = Watch()

    async def bad(event: HookEvent) -> None:
        del event
        if manner == "hangs":
            await asyncio.Event().wait()
        if manner == "cancels":
            raise asyncio.CancelledError
        raise RuntimeError("the dashboard is down")

    agent = await bed.serve(_echo, hooks=[bad, watch])
    assert await bed.result(await bed.submit(agent, "x")) == "x"
    assert await bed.result(await bed.submit(agent, "y")) == "y"
    await bed.until(lambda: not bed.runtime._host.worker.dispatcher.load)
    step = [HookKind.STEP_START, HookKind.STEP_END]
    assert watch.kinds == [HookKind.RUN_START, *step, HookKind.RUN_END] * 2
