"""Suspended runs: the rates at which they suspend and are woken, and the memory of each."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from actors._kernel.agent.message import Message
from actors._kernel.runtime.commit import Commit, Finish, SignalKey, Suspend
from actors._kernel.runtime.ids import run_id_of_submit
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.log_entry import NewEntry
from actors._kernel.runtime.rows import NewRun
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.runtime.waits import WakeSet
from tests.benchmarks import mock
from tests.benchmarks.bench import (
    TYPE,
    Floor,
    agent_id,
    beside,
    many,
    open_runtime,
    open_store,
    report,
    resident_bytes,
)

if TYPE_CHECKING:
    from actors._kernel.runtime.ids import AgentId, RunId

AT_ONCE = 500


class Waiting:
    """An agent that waits for one signal."""

    def __init__(self, id: AgentId) -> None:  # noqa: A002
        self.id = id

    async def run(self, ctx: Any, inbox: list[Message]) -> Any:
        """Wait for it."""
        return await ctx.sleep_until_signal("go")


async def floor(url: str, total: int) -> tuple[float, float]:
    """Return runs made and wakes per second of the statements alone.

    A wake is signal, load, signals, and the commits with the end.
    """
    async with open_store(url) as store:
        hand = await Floor.over(store)
        runs: list[tuple[RunId, AgentId]] = []

        async def suspend(index: int) -> None:
            agent = agent_id(index)
            message = Message.of(agent, None).sent_by("submit:local")
            run = NewRun(run_id_of_submit(agent, "submit:local", message.id), agent)
            await store.arrivals.submit(run, message)
            wake = WakeSet(signals=("go",))
            entries = (
                NewEntry(K.RUN_STARTED, "", {"agent": str(agent)}),
                NewEntry(K.MSG_RECEIVED, "in.0", {"message": message.to_json(), "arrival": 0}),
                NewEntry(K.RUN_SUSPENDED, "", {"wake": wake.to_json()}),
            )
            await store.commits.commit(
                Commit(hand.lease(agent, run.run_id), -1, entries, Suspend(wake))
            )
            runs.append((run.run_id, agent))

        suspend_s = await many(suspend, total=total, at_once=AT_ONCE, warm_up=False)

        async def wake(index: int) -> None:
            run_id, agent = runs[index]
            await store.arrivals.signal(run_id, "go", 1, message_id=f"m{index}", sender="client:b")
            loaded = (await store.reads.load([run_id]))[0]
            signal = (await store.reads.signals(run_id))[0]
            received = {"name": "go", "payload": signal.payload, "n": signal.n}
            entries = (
                NewEntry(K.RUN_RESUMED, "", {"reason": "woken"}),
                NewEntry(K.SIGNAL_RECEIVED, "0", received),
            )
            signal_keys = (SignalKey("go", signal.n),)
            lease, seq = hand.lease(agent, run_id), loaded.row.last_seq
            await store.commits.commit(Commit(lease, seq, entries, take_signals=signal_keys))
            end = NewEntry(K.RUN_COMPLETED, "", {"output": 1})
            await store.commits.commit(
                Commit(lease, seq + 2, (end,), then=Finish(RunStatus.COMPLETED, result=1))
            )

        return total / suspend_s, total / await many(
            wake, total=total, at_once=AT_ONCE, warm_up=False
        )


async def plain(url: str, total: int) -> tuple[float, float]:
    """Return runs made and wakes per second of a plain program."""
    async with mock.opened(url) as database:
        runs: list[mock.Run] = []

        async def suspend(index: int) -> None:
            runs.append(await mock.suspend(database, index))

        suspend_s = await many(suspend, total=total, at_once=AT_ONCE, warm_up=False)
        wake_s = await many(
            lambda i: mock.wake(runs[i]), total=total, at_once=AT_ONCE, warm_up=False
        )
        return total / suspend_s, total / wake_s


async def runtime(url: str, total: int) -> tuple[float, float, float]:
    """Return runs made per second, bytes of host memory of each, and wakes per second until their ends."""
    async with open_runtime(url, suspend_after=0.0) as rt:
        await rt.register_type(TYPE, Waiting)
        await _suspend(rt, [agent_id(f"warm{i}") for i in range(AT_ONCE)])
        before = resident_bytes()
        began = time.perf_counter()
        runs = await _suspend(rt, [agent_id(i) for i in range(total)])
        suspend_s = time.perf_counter() - began
        each = (resident_bytes() - before) / total

        async def wake(index: int) -> None:
            ended = rt._host.worker.completions.future_of(runs[index])
            await rt.signal(runs[index], "go", 1)
            await ended

        wake_s = await many(wake, total=total, at_once=AT_ONCE, warm_up=False)
        return total / suspend_s, each, total / wake_s


async def _suspend(rt: Any, agents: list[AgentId]) -> list[RunId]:
    runs: list[RunId] = []

    async def submit(index: int) -> None:
        runs.append(await rt.submit(agents[index], None))

    await many(submit, total=len(agents), at_once=AT_ONCE, warm_up=False)
    limit = time.monotonic() + 120
    while rt._host.worker.dispatcher.load and time.monotonic() < limit:  # noqa: ASYNC110 - no event says "all"
        await asyncio.sleep(0.02)
    return runs


async def run(url: str, *, scale: float = 1.0) -> None:
    """Print a line for 10,000 runs that come to wait, and one for their waking."""
    total = max(200, int(10_000 * scale))
    # In this order: memory kept by the floors would hide that of ours.
    created_per_s, each, wakes_per_s = await runtime(url, total)
    least_made, least_woken = await plain(url, total)
    base_made, base_woken = await floor(url, total)
    report(
        benchmark="suspended",
        runs=total,
        created_per_s=round(created_per_s),
        **beside(created_per_s, mock=least_made, floor=base_made),
        goal_per_s=3000,
        bytes_each=round(each),
        limit_bytes=5120,
    )
    report(
        benchmark="woken",
        runs=total,
        wakes_per_s=round(wakes_per_s),
        **beside(wakes_per_s, mock=least_woken, floor=base_woken),
        goal_per_s=4000,
    )
