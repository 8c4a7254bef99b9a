"""Plain functions in threads: what they see, what comes of them, and what happens without them."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from actors import idempotency_key
from actors._kernel.agent.tools import Tool
from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors._runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.rows import RunRow
    from actors._runtime import RunContext

ONCE = RetryPolicy(max_retries=0)


class Acting:
    """An agent that does what the test says."""

    def __init__(self, act: Callable[[RunContext], Awaitable[Any]], *tools: Tool) -> None:
        self.id, self.tools, self._act = AgentId("acting", "a"), tools, act

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        """Act."""
        assert inbox
        return await self._act(ctx)


async def ended(agent: Acting) -> RunRow:
    """How one run of it ends."""
    async with Runtime() as runtime, asyncio.timeout(20):
        await runtime.register(agent)
        run_id = await runtime.submit(agent.id, None, retry_policy=ONCE)
        return await runtime.wait(run_id)


async def test_a_step_in_a_thread_sees_its_key_and_its_value_is_recorded() -> None:
    """The loop's thread is another one."""

    def work(word: str) -> list[Any]:
        return [word, idempotency_key(), threading.get_ident() == loop_thread]

    loop_thread = threading.get_ident()
    row = await ended(Acting(lambda ctx: ctx.step("work", work, "hello", thread=True)))
    assert isinstance(row.result, list)
    assert row.result[0] == "hello"
    assert row.result[1]
    assert row.result[2] is False


async def test_an_iterator_that_ends_in_a_thread_fails_the_step() -> None:
    """It is no error that a future takes: the step would never end."""

    def work() -> object:
        return next(iter(()))

    row = await ended(Acting(lambda ctx: ctx.step("work", work, thread=True)))

    assert row.status is RunStatus.FAILED
    assert "StopIteration" in str(row.error)


async def test_what_a_step_in_a_thread_raises_is_recorded() -> None:
    """As if it had been raised on the loop."""

    def work() -> None:
        raise ZeroDivisionError("by nothing")

    row = await ended(Acting(lambda ctx: ctx.step("work", work, thread=True)))
    assert row.status is RunStatus.FAILED
    assert row.error is not None
    assert "by nothing" in str(row.error)


async def test_a_coroutine_function_is_refused_at_the_call() -> None:
    """It has nothing to block with; the message says what to write instead."""

    async def work() -> None:
        raise AssertionError

    row = await ended(Acting(lambda ctx: ctx.step("work", work, thread=True)))
    assert row.status is RunStatus.FAILED
    assert "thread=True is for plain functions" in str(row.error)


async def test_a_tool_may_be_a_plain_function_in_a_thread() -> None:
    """Called with its arguments by keyword."""

    def double(n: int) -> int:
        assert threading.get_ident() != loop_thread
        return 2 * n

    async def act(ctx: RunContext) -> Any:
        return (await ctx.tool("double", n=21)).structured

    loop_thread = threading.get_ident()
    row = await ended(Acting(act, Tool("double", "Doubles.", double, thread=True)))
    assert row.result == 42


async def test_a_thread_that_was_cancelled_goes_on_and_its_result_is_dropped() -> None:
    """The run ends at once; nobody is kept by what still blocks."""
    has_begun, may_end, has_ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> str:
        has_begun.set()
        may_end.wait(20)
        has_ended.set()
        return "too late"

    agent = Acting(lambda ctx: ctx.step("work", work, thread=True))
    async with Runtime() as runtime, asyncio.timeout(20):
        await runtime.register(agent)
        run_id = await runtime.submit(agent.id, None)
        await asyncio.to_thread(has_begun.wait, 20)
        await runtime.cancel(run_id)
        row = await runtime.wait(run_id)
        was_blocked = not has_ended.is_set()
        may_end.set()
        await asyncio.to_thread(has_ended.wait, 20)
        again = await runtime.store.reads.run(run_id)

    assert row.status is RunStatus.CANCELLED
    assert was_blocked
    assert again is not None
    assert again.result is None


async def test_a_step_out_of_time_leaves_its_thread_behind() -> None:
    """`timeout` ends the step; what the thread does afterwards changes nothing."""
    may_end = threading.Event()

    def work() -> str:
        may_end.wait(20)
        return "done"

    row = await ended(Acting(lambda ctx: ctx.step("work", work, timeout=0.2, thread=True)))
    may_end.set()
    assert row.status is RunStatus.FAILED
    assert "DeadlineExceededError" in str(row.error)
