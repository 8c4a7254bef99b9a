"""Runs of many branches that wait: how often each looks whether what it waits for is there."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from actors._inmemory.runs.store import MemoryStore
from actors._kernel.agent.agent import SpawnBudget
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.waits import Wait
from actors._runtime import Runtime
from actors._runtime.replay.branch_scheduler import BranchScheduler
from actors._runtime.replay.branches import Branch
from actors._runtime.verbs.waits import OpenWaits, PendingWait
from tests.harness.simloop import SimClock, SimEntropy, SimLoop, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext

MANY = 120
STEPS = 10
"""So often, at most, the code of a branch goes on from a pause or into one: at first, when it looks for
all, when it looks in vain, when it finds; each is one or two steps of a coroutine."""


class Slow:
    """Replies, and ends, later than agents that were given smaller numbers."""

    pause_s = 0.01

    def __init__(self, id: AgentId) -> None:  # noqa: A002
        self.id = id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        """See the class."""
        n: Any = inbox[0].payload
        if self.pause_s:
            await ctx.sleep(1 + self.pause_s * n)
        await ctx.reply(inbox[0], n)
        return n


class Fast(Slow):
    """Replies, and ends, at once."""

    pause_s = 0.0


class Wide:
    """Has so many branches that do the same; each lets the next one end, where nobody else does."""

    id = AgentId("wide", "one")

    def __init__(self, work: Work, count: int, runtime: Runtime) -> None:
        self._work, self._count, self._runtime = work, count, runtime

    async def run(self, ctx: RunContext, inbox: object) -> list[Any]:
        """See the class."""
        del inbox
        return await ctx.gather(*(self._work(self, ctx, n) for n in range(self._count)))

    async def signal(self, run_id: RunId, name: str, n: int) -> None:
        """Send one signal."""
        await self._runtime.signal(run_id, name, n)

    async def send(self, n: int) -> None:
        """Send one message to the agent."""
        await self._runtime.send(self.id, n)


async def _ask(wide: Wide, ctx: RunContext, n: int) -> Any:
    del wide
    return (await ctx.ask(AgentId("replier", str(n)), n, timeout=1000)).result


async def _join(wide: Wide, ctx: RunContext, n: int) -> Any:
    del wide
    return (await ctx.join(await ctx.spawn("replier", boot=n))).output


async def _signal(wide: Wide, ctx: RunContext, n: int) -> Any:
    if n == 0:
        await ctx.step("first", wide.signal, ctx.run_id, "go 0", 0)
    payload = await ctx.sleep_until_signal(f"go {n}")
    await ctx.step("next", wide.signal, ctx.run_id, f"go {n + 1}", n + 1)
    return payload


async def _same_signal(wide: Wide, ctx: RunContext, n: int) -> Any:
    if n == 0:
        await ctx.step("first", wide.signal, ctx.run_id, "go", 0)
    payload: Any = await ctx.sleep_until_signal("go")
    await ctx.step("next", wide.signal, ctx.run_id, "go", payload + 1)
    return payload


async def _receive(wide: Wide, ctx: RunContext, n: int) -> Any:
    if n == 0:
        await ctx.step("first", wide.send, 0)
    message = await ctx.receive()
    assert message is not None
    payload: Any = message.payload
    await ctx.step("next", wide.send, payload + 1)
    return payload


Work: TypeAlias = "Callable[[Wide, RunContext, int], Coroutine[Any, Any, Any]]"


async def _play(work: Work, count: int, replier: type[Slow], **more: Any) -> list[Any]:
    """Return what the branches returned."""
    async with Runtime(**more) as runtime:
        wide = Wide(work, count, runtime)
        await runtime.register(wide)
        await runtime.register_type("replier", replier)
        run = await runtime.submit(wide.id, None, spawn_budget=SpawnBudget(max_runs=count))
        outputs = await runtime.result(run)
        assert isinstance(outputs, list)
        return outputs


def _pauses(work: Work, count: int) -> int:
    """Return how many steps the branches of such a run make into and out of a pause, all together."""
    pauses = 0

    async def main(loop: SimLoop) -> list[Any]:
        clock = SimClock(loop)
        store = MemoryStore(clock=clock)
        return await _play(work, count, Slow, store=store, clock=clock, entropy=SimEntropy(0))

    def count_call(frame: Any, event: str, _arg: object) -> None:
        nonlocal pauses
        pauses += event == "call" and frame.f_code is BranchScheduler.wake.__code__

    sys.setprofile(count_call)
    try:
        outputs = simulate(main, seed=0)[0]
    finally:
        sys.setprofile(None)
    assert sorted(outputs) == list(range(count))
    return pauses


@pytest.mark.parametrize("work", [_ask, _join, _signal, _same_signal, _receive])
def test_what_comes_wakes_who_waits_for_it(work: Work) -> None:
    """What ends one wait makes one branch look, besides the one that it is for: not all that wait."""
    assert 0 < _pauses(work, MANY) <= STEPS * MANY


@pytest.mark.parametrize("count", [60, 300])
@pytest.mark.parametrize("work", [_ask, _join])
async def test_many_answers_at_once_end_all_waits(work: Work, count: int) -> None:
    """What a branch recorded may be durable before it had its turn of the event loop."""
    assert await _play(work, count, Fast) == list(range(count))


def _waits(*positions: str) -> tuple[OpenWaits, list[PendingWait]]:
    waits, pending_waits = OpenWaits(), list[PendingWait]()
    for position in positions:
        wait = PendingWait(Branch(f"{position}."), "join")
        waits.open(wait)
        waits.show(wait, Wait(position, "join", f"key {position}"))
        waits.paused.add(wait)
        pending_waits.append(wait)
    return waits, pending_waits


def test_rows_stand_by_position_and_stay_until_something_changes() -> None:
    """What others see of a run's waits is not made anew for each flush."""
    waits, (tenth, second, other) = _waits("0.10.0", "0.2.0", "1:0.0.0")
    rows, must = waits.rows(must=False), waits.rows(must=True)
    unchanged = waits.rows(must=False) is rows and waits.rows(must=True) is must
    waits.paused.remove(second)
    waits.close(second)

    assert unchanged
    assert [row.position for row in rows] == ["0.2.0", "0.10.0", "1:0.0.0"]
    assert [row.must for row in must] == [True, False, False], "the first says it for all"
    assert tenth.row is not None
    assert waits.rows(must=True) == (replace(tenth.row, must=True), other.row)
    assert waits.rows(must=False) == (tenth.row, other.row)


def test_no_row_is_a_must_while_a_branch_polls() -> None:
    """A run closes a cycle only if nothing else can go on in it."""
    waits, (first, _) = _waits("0.0.0", "0.1.0")
    waits.paused.remove(first)

    assert [row.must for row in waits.rows(must=True)] == [False] * 2


def test_of_one_name_so_many_go_on_as_signals_are_there() -> None:
    """Whoever paused first has the first, also when it looked again since."""
    waits = OpenWaits()
    first, second, third = (PendingWait(Branch(f"0.{n}."), "signal", signal="go") for n in range(3))
    for wait in (first, second, third):
        waits.open(wait)
        waits.paused.add(wait)
    waits.paused.remove(first)
    waits.paused.add(first)

    assert waits.paused.for_signals([("go", 2), ("stop", 1)]) == [first, second]
    assert waits.paused.wake_set().signals == ("go",)
