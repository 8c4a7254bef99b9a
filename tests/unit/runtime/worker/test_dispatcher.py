"""Who starts when."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from actors.kernel.runtime.ids import AgentId, ShardId
from actors.runtime.loop.clock import SystemClock
from actors.runtime.loop.idle_runs import IdleRuns
from actors.runtime.loop.tasks import TaskScope
from actors.runtime.worker.dispatcher import STARTS, Dispatcher
from actors.runtime.worker.mailbox import Mailbox

if TYPE_CHECKING:
    from actors.runtime.worker.admission import Permit


@pytest.mark.parametrize("turns", [1, 4])
async def test_of_a_burst_few_start_between_two_looks_of_the_loop(turns: int) -> None:
    """Those that are over after as many leave room in memory to the next; nobody is forgotten."""
    total, begun, most = 10 * STARTS, 0, 0
    over = asyncio.Event()

    async def drive(permit: Permit[Mailbox]) -> None:
        nonlocal begun, most
        begun += 1
        most = max(most, dispatcher.load)
        for _ in range(turns):
            await asyncio.sleep(0)
        dispatcher.leave(permit)
        if begun == total and not dispatcher.load:
            over.set()

    env: Any = SimpleNamespace(store=None, clock=SystemClock(), idle=IdleRuns())
    mailboxes: Any = SimpleNamespace(may_start=lambda _: True)
    async with TaskScope() as tasks:
        dispatcher = Dispatcher(env, mailboxes, tasks, capacity=total, drive=drive)
        for n in range(total):
            agent = AgentId("worker", str(n))
            dispatcher.consider(Mailbox(agent, ShardId("p:worker:0"), spilled=True))
        assert dispatcher.load == STARTS
        await over.wait()

    assert most <= (turns + 2) * STARTS
