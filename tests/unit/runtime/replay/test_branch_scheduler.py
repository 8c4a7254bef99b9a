"""Branches that are stopped in the instant in which they would begin."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from actors._inmemory.runs.store import MemoryStore
from actors._kernel.runtime.ids import AgentId
from actors._runtime import Runtime
from actors._runtime.execution.execution import Execution
from actors._runtime.loop.clock import SystemClock
from actors._runtime.replay.branch_scheduler import BranchScheduler
from actors._runtime.replay.branches import Branch, Gather
from actors.errors import RunFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from actors._runtime import RunContext

LIMIT_S = 5.0
"""Half of what a run gets to stop before it is left behind."""


class Stopped:
    """Has three branches; its first execution is stopped after the first of them was let go."""

    id = AgentId("stopped", "one")

    def __init__(self, executions: list[Execution], stop: Callable[[Execution], object]) -> None:
        self._executions, self._stop = executions, stop

    async def run(self, ctx: RunContext, inbox: object) -> list[int]:
        """See the class."""
        del inbox
        if len(self._executions) == 1:
            asyncio.get_running_loop().call_soon(self._stop, self._executions[0])
        return await ctx.gather(*(self._branch(ctx, n) for n in range(3)))

    async def _branch(self, ctx: RunContext, n: int) -> int:
        return await ctx.step(f"step {n}", self._work, n)

    async def _work(self, n: int) -> int:
        return n


def test_what_a_run_does_not_use_takes_no_memory() -> None:
    """Most have one branch: each empty deque would be 0.7 KB of a thousand runs."""

    def ignore(*_: object) -> None:
        pass

    tracemalloc.start()
    try:
        schedulers = [
            BranchScheduler(on_idle=ignore, on_move=ignore, on_closed=ignore) for _ in range(50)
        ]
        each = tracemalloc.get_traced_memory()[0] / len(schedulers)
    finally:
        tracemalloc.stop()

    assert each < 1_500


async def _play(
    stop: Callable[[Execution], object], monkeypatch: pytest.MonkeyPatch
) -> tuple[object, list[Execution]]:
    executions: list[Execution] = []
    executed = Execution.run

    async def run(execution: Execution) -> Any:
        executions.append(execution)
        return await executed(execution)

    monkeypatch.setattr(Execution, "run", run)
    async with Runtime(store=MemoryStore(clock=SystemClock())) as runtime:
        await runtime.register(Stopped(executions, stop))
        async with asyncio.timeout(LIMIT_S):
            return await runtime.result(await runtime.submit(Stopped.id, None)), executions


async def test_a_run_cancelled_then_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code is not left behind as if it did not stop."""
    with pytest.raises(RunFailedError, match="CANCELLED"):
        await _play(lambda execution: execution.cancel("enough"), monkeypatch)


async def test_a_run_handed_over_then_leaves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on by replay in its next execution."""
    output, executions = await _play(Execution.hand_over, monkeypatch)

    assert (output, len(executions)) == ([0, 1, 2], 2)


async def test_a_branch_that_never_begins_has_ended() -> None:
    """Its parent goes on, with what unwinds the run; its coroutine is closed."""
    scheduler = BranchScheduler(on_idle=_nothing, on_move=_nothing, on_closed=lambda _: None)
    group = Gather(scheduler.adopt_root(""))
    scheduler.open_group(group)
    branch = Branch("0.0.", asyncio.sleep(0))
    scheduler.add(group, branch)

    def stop() -> None:
        scheduler.cancel_running()
        scheduler.unwind(asyncio.CancelledError("stop"))

    asyncio.get_running_loop().call_soon(stop)
    with pytest.raises(asyncio.CancelledError, match="stop"):
        await asyncio.wait_for(scheduler.group(group, "gather"), LIMIT_S)

    assert (branch.is_done, branch.coro) == (True, None)


async def test_no_branch_outlives_a_root_that_is_cut_off() -> None:
    """A worker that stops cancels the root's task: what its branches wait for never comes any more."""
    scheduler = BranchScheduler(on_idle=_nothing, on_move=_nothing, on_closed=lambda _: None)
    branches: list[Branch] = []
    is_running = asyncio.Event()

    def add(group: Gather, code: Coroutine[Any, Any, Any]) -> None:
        branches.append(Branch(f"{len(branches)}.", code))
        scheduler.add(group, branches[-1])

    async def wait_for_one() -> None:
        group = Gather(branches[0])
        scheduler.open_group(group)
        add(group, asyncio.sleep(0))
        await scheduler.group(group, "gather")

    async def run() -> None:
        is_running.set()
        await asyncio.get_running_loop().create_future()

    async def root() -> None:
        group = Gather(scheduler.adopt_root(""))
        scheduler.open_group(group)
        add(group, wait_for_one())
        add(group, run())
        try:
            await scheduler.group(group, "gather")
        finally:
            scheduler.end_root()

    task = asyncio.ensure_future(root())
    async with asyncio.timeout(LIMIT_S):
        await is_running.wait()
        scheduler.unwind(asyncio.CancelledError("stop"))
        task.cancel()
        await asyncio.wait({t for t in (task, *(b.task for b in branches)) if t is not None})

    assert [branch.coro for branch in branches] == [None] * 3


async def test_groups_one_after_another_have_one_watch_between_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run that gathers a thousand times a second has no thousand timers, and ends with none."""
    watches: list[asyncio.TimerHandle] = []
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def counted(*args: Any) -> asyncio.TimerHandle:
        watches.append(call_later(*args))
        return watches[-1]

    monkeypatch.setattr(loop, "call_later", counted)
    scheduler = BranchScheduler(on_idle=_nothing, on_move=_nothing, on_closed=lambda _: None)
    root = scheduler.adopt_root("")
    for _ in range(1_000):
        group = Gather(root)
        scheduler.open_group(group)
        scheduler.groups.close(group)
    scheduler.end_root()
    scheduler.detach()

    weak_scheduler = weakref.ref(scheduler)
    gc.disable()
    try:
        del scheduler
        assert weak_scheduler() is None, "the watch of an ended run keeps it"
    finally:
        gc.enable()
    assert [watch.cancelled() for watch in watches] == [True]


def _nothing() -> None:
    """Do nothing."""
