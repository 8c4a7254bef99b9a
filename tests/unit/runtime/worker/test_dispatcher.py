"""Who starts when."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.ids import AgentId, ShardId
from actors._runtime.loop.clock import SystemClock
from actors._runtime.loop.tasks import TaskScope
from actors._runtime.loop.timers import IdleRuns
from actors._runtime.worker.dispatcher import STARTS, Dispatcher
from actors._runtime.worker.mailbox import Mailbox

if TYPE_CHECKING:
    from actors._runtime.worker.admission import Permit


@pytest.mark.parametrize("turns", [1, 4])
async def test_of_a_burst_few_start_between_two_passes_of_the_loop(turns: int) -> None:
    """Those that are over after as many leave room in memory to the next; nobody is forgotten."""
    total, start_count, most = 10 * STARTS, 0, 0
    over = asyncio.Event()

    async def drive(permit: Permit[Mailbox]) -> None:
        nonlocal start_count, most
        start_count += 1
        most = max(most, dispatcher.load)
        for _ in range(turns):
            await asyncio.sleep(0)
        dispatcher.leave(permit)
        if start_count == total and not dispatcher.load:
            over.set()

    async with TaskScope() as tasks:
        dispatcher = _dispatcher(tasks, total, drive)
        _offer(dispatcher, total)
        assert dispatcher.load == STARTS
        await over.wait()

    assert most <= (turns + 2) * STARTS


async def test_a_wave_starts_whole_after_starts_in_earlier_turns_of_the_loop() -> None:
    """Agents that go in step stay so, and their commits in one group: the limit counts one turn of the loop."""
    wave = STARTS * 3 // 4

    async def drive(permit: Permit[Mailbox]) -> None:
        dispatcher.leave(permit)

    async with TaskScope() as tasks:
        dispatcher = _dispatcher(tasks, 10 * STARTS, drive)
        started = []
        for _ in range(5):
            _offer(dispatcher, wave)
            started.append(dispatcher.load)
            while dispatcher.load:  # noqa: ASYNC110 - no event says "all"
                await asyncio.sleep(0)

    assert started == [wave] * 5


def _dispatcher(tasks: TaskScope, capacity: int, drive: Any) -> Dispatcher:
    env: Any = SimpleNamespace(store=None, clock=SystemClock(), idle=IdleRuns())
    mailboxes: Any = SimpleNamespace(may_start=lambda _: True)
    return Dispatcher(env, mailboxes, tasks, capacity=capacity, drive=drive)


def _offer(dispatcher: Dispatcher, count: int) -> None:
    for n in range(count):
        agent = AgentId("worker", str(n))
        dispatcher.consider(Mailbox(agent, ShardId("p:worker:0"), spilled=True))
