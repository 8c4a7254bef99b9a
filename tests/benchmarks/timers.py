"""Timers of runs: how late they fire, beside timers of the event loop with one commit each."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from actors._kernel.agent.message import Message
from actors._kernel.runtime.commit import Commit, Finish, Suspend
from actors._kernel.runtime.ids import run_id_of_submit
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.log_entry import NewEntry
from actors._kernel.runtime.rows import NewRun
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.runtime.waits import WakeSet
from actors._runtime.loop.clock import SystemClock
from actors._runtime.loop.tasks import TaskScope
from tests.benchmarks.bench import TYPE, Floor, agent_id, many, open_runtime, open_store, report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors._kernel.runtime.ids import AgentId, RunId

WITHIN_S = 5.0
AT_ONCE = 250
_clock = SystemClock()


class Sleeper:
    """An agent that sleeps until the instant of its message."""

    def __init__(self, id: AgentId) -> None:  # noqa: A002
        self.id = id

    async def run(self, ctx: Any, inbox: list[Message]) -> float:
        """Return how many seconds late it continues."""
        at = datetime.fromisoformat(str(inbox[0].payload))
        await ctx.sleep_until(at)
        return late_s(at)


def late_s(at: datetime) -> float:
    """Return the seconds since an instant."""
    return (_clock.now() - at).total_seconds()


def instants(total: int, setting_up_s: float) -> list[datetime]:
    """When they are due: evenly within five seconds, or less if few, once all of them are set."""
    first = _clock.now() + timedelta(seconds=setting_up_s)
    return [first + timedelta(seconds=within_s(total) * index / total) for index in range(total)]


def within_s(total: int) -> float:
    """Return within how many seconds so many are due."""
    return min(WITHIN_S, total / 50)


async def floor(url: str, total: int, setting_up_s: float) -> list[float]:
    """Return how late the end of each run is durable, of timers and commits alone."""
    late: list[float] = []
    async with open_store(url) as store, TaskScope() as tasks:
        hand = await Floor.over(store)
        due = instants(total, setting_up_s)
        runs: list[tuple[datetime, RunId, AgentId]] = []

        async def suspend(index: int) -> None:
            agent = agent_id(index)
            message = Message.of(agent, due[index].isoformat()).sent_by("submit:local")
            run = NewRun(run_id_of_submit(agent, "submit:local", message.id), agent)
            await store.arrivals.submit(run, message)
            wake = WakeSet(at=due[index])
            entries = (
                NewEntry(K.RUN_STARTED, "", {"agent": str(agent)}),
                NewEntry(K.MSG_RECEIVED, "in.0", {"message": message.to_json(), "arrival": 0}),
                NewEntry(K.RUN_SUSPENDED, "", {"wake": wake.to_json()}),
            )
            lease = hand.lease(agent, run.run_id)
            await store.commits.commit(Commit(lease, -1, entries, Suspend(wake)))
            runs.append((due[index], run.run_id, agent))

        async def end(at: datetime, run_id: RunId, agent: AgentId) -> None:
            entry = NewEntry(K.RUN_COMPLETED, "", {"output": 1})
            then = Finish(RunStatus.COMPLETED, result=1)
            await store.commits.commit(Commit(hand.lease(agent, run_id), 2, (entry,), then))
            late.append(late_s(at))

        def ring(at: datetime, run_id: RunId, agent: AgentId) -> None:
            tasks.start(end(at, run_id, agent), name="end")

        await many(suspend, total=total, at_once=AT_ONCE, warm_up=False)
        loop = asyncio.get_running_loop()
        for run in runs:
            loop.call_later(-late_s(run[0]), partial(ring, *run))
        await asyncio.sleep(max(-late_s(due[-1]), 0) + 0.1)  # all of them have fired
        await tasks.settle(limit_s=60)
    assert len(late) == total
    return late


async def runtime(
    url: str, total: int, setting_up_s: float, suspend_after: float
) -> tuple[list[float], list[float]]:
    """Return how late each run continues, and how late its end is durable."""
    async with open_runtime(url, suspend_after=suspend_after, capacity=total) as rt:
        await rt.register_type(TYPE, Sleeper)
        due = instants(total, setting_up_s)
        durable: list[float] = []
        woken: list[float] = []

        async def run_sleeper(index: int) -> None:
            run_id = await rt.submit(agent_id(index), due[index].isoformat())
            await rt._host.worker.completions.future_of(run_id)
            durable.append(late_s(due[index]))
            woken.append(float(str(await rt.result(run_id))))

        await many(run_sleeper, total=total, at_once=total, warm_up=False)
    return woken, durable


def share(late: Sequence[float], part: float) -> float:
    """Return the lateness that this part of them does not exceed, in milliseconds."""
    return round(sorted(late)[min(int(len(late) * part), len(late) - 1)] * 1000, 2)


async def run(url: str, *, scale: float = 1.0) -> None:
    """Print a line for runs that stay in memory while they sleep, and one for runs that leave it."""
    total = max(50, int(1000 * scale))
    setting_up_s = max(1.0, total / 125)
    base = await floor(url, total, setting_up_s)
    for name, suspend_after in (("hot", 60.0), ("drops", 0.0)):
        woken, durable = await runtime(url, total, setting_up_s, suspend_after)
        report(
            benchmark="timers",
            mode=name,
            timers=total,
            within_s=within_s(total),
            early=sum(late < 0 for late in woken),
            floor_p50_ms=share(base, 0.5),
            floor_p99_ms=share(base, 0.99),
            woken_p50_ms=share(woken, 0.5),
            woken_p99_ms=share(woken, 0.99),
            durable_p50_ms=share(durable, 0.5),
            durable_p99_ms=share(durable, 0.99),
            woken_multiple=round(share(woken, 0.99) / share(base, 0.99), 2),
            durable_multiple=round(share(durable, 0.99) / share(base, 0.99), 2),
            limit_multiple=2.0,
        )
