"""Runs of graphs that wait, and long ones: how fast they park and go on, what they cost, and how they load.

The floor writes the entries of one real run by the store alone: submit and one commit until it waits, then
`answer` and one commit until its end. One event is measured beside one post to as many followers.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING, Any, Final

from actors._kernel.agent.message import Message
from actors._kernel.runtime.commit import Commit, Finish, Suspend
from actors._kernel.runtime.ids import RunId, run_id_of_submit
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.log_entry import NewEntry
from actors._kernel.runtime.rows import NewRun
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.runtime.waits import Answer, Wait, WakeSet
from actors.workflow import FlowRuns
from tests.benchmarks import posts
from tests.benchmarks.bench import (
    TYPE,
    Floor,
    agent_id,
    many,
    open_runtime,
    open_store,
    report,
    resident_bytes,
    rests,
)
from tests.benchmarks.flows import flows

if TYPE_CHECKING:
    from actors._runtime import Runtime

AT_ONCE: Final = 500
SHORT: Final = 200
LONG: Final = 100_000
LOADS: Final = 5
WARM: Final = 2_000
LIMIT_S: Final = 600


async def rested(runtime: Runtime, flow: str, total: int, *, prefix: str = "") -> list[RunId]:
    """Start so many runs; return their ids when all of them wait, and none is in memory."""
    runs = FlowRuns(runtime, TYPE)
    ids = [RunId("")] * total

    async def start_run(index: int) -> None:
        ids[index] = await runs.start(flow, vars={"n": 0}, id=f"{prefix}{index}")

    await many(start_run, total=total, at_once=AT_ONCE, warm_up=False)
    async with asyncio.timeout(LIMIT_S):
        while runtime._host.worker.dispatcher.load:  # noqa: ASYNC110 - no event says "all"
            await asyncio.sleep(0.02)
    return ids


async def _parts(url: str) -> tuple[list[NewEntry], list[NewEntry], str]:
    """Return the entries of a real run until it waits, those until its end, and the key of its answer."""
    async with open_runtime(url, suspend_after=0.0) as runtime:
        await flows().register(runtime)
        [run_id] = await rested(runtime, "ask", 1)
        await FlowRuns(runtime, TYPE).resume(run_id, "ok", {"response": "yes"})
        await runtime.result(run_id)
        log_entries = [entry async for entry in runtime.entries(run_id)]
    entries = [NewEntry(K(entry.kind), entry.position, entry.payload) for entry in log_entries]
    question = next(entry for entry in log_entries if entry.kind == K.ASK_SENT)
    parked = next(n for n, entry in enumerate(log_entries, 1) if entry.kind == K.RUN_SUSPENDED)
    return entries[:parked], entries[parked:], str(question.payload["message_id"])


async def floor(url: str, total: int) -> tuple[float, float]:
    """Return runs made and runs answered per second of the store alone."""
    before, after, key = await _parts(url)
    position = next(entry.position for entry in before if entry.kind == K.ASK_SENT)
    async with open_store(url) as store:
        hand = await Floor.over(store)
        waiting_runs: list[tuple[Any, RunId]] = []

        async def park(index: int) -> None:
            agent = agent_id(index)
            message = Message.of(agent, None).sent_by("submit:flows")
            run = NewRun(run_id_of_submit(agent, "submit:flows", message.id), agent)
            await store.arrivals.submit(run, message)
            lease, waits = hand.lease(agent, run.run_id), (Wait(position, "user", key, request={}),)
            then = Suspend(WakeSet(runs=(key,)))
            await store.commits.commit(Commit(lease, -1, tuple(before), then, waits=waits))
            waiting_runs.append((lease, run.run_id))

        parked_s = await many(park, total=total, at_once=AT_ONCE, warm_up=False)

        async def answer(index: int) -> None:
            lease, run_id = waiting_runs[index]
            await store.arrivals.answer(Answer(run_id, key, "resumed", result={"response": "yes"}))
            then = Finish(RunStatus.COMPLETED)
            seq = len(before) - 1
            await store.commits.commit(
                Commit(lease, seq, tuple(after), then, take_answers=(key,), waits=())
            )

        answered_s = await many(answer, total=total, at_once=AT_ONCE, warm_up=False)
    return total / parked_s, total / answered_s


async def run(url: str, *, scale: float = 1.0) -> None:
    """Print a line for waits, one for an event, one for what 100,000 waiting runs cost, one for long runs."""
    total = max(5, int(10_000 * scale))
    # In this order: memory kept by the others would hide that of the waiting runs.
    await _memory(url, max(20, int(100_000 * scale)))
    await _waits(url, total)
    await _event(url, total)
    await _long(url, int(LONG * scale))


async def _memory(url: str, total: int) -> None:
    """Report what waiting runs keep of a host's memory, beside a host that has had a few and is idle."""
    async with open_runtime(url, suspend_after=0.0) as runtime:
        await flows().register(runtime)
        before = await _bytes_with_waiting(runtime, min(total, WARM), prefix="warm")
        tasks = len(asyncio.all_tasks())
        after = await _bytes_with_waiting(runtime, total)
        report(
            benchmark="flow_waits",
            what="memory",
            runs=total,
            mib=round((after - before) / 2**20, 2),
            limit_mib=5.0,
            tasks=len(asyncio.all_tasks()) - tasks,
        )


async def _bytes_with_waiting(runtime: Runtime, total: int, *, prefix: str = "") -> int:
    """Return the memory of this process when so many more runs wait.

    They begin in groups, since all at once would be tasks of this benchmark, and the garbage of each group is
    collected, since a host collects rarely.
    """
    size_bytes = resident_bytes()
    for begin in range(0, total, AT_ONCE):
        await rested(runtime, "ask", min(AT_ONCE, total - begin), prefix=f"{prefix}{begin}.")
        size_bytes = resident_bytes()
    return size_bytes


async def _waits(url: str, total: int) -> None:
    """Report how fast runs come to wait, and are answered and end."""
    async with open_runtime(url, suspend_after=0.0) as runtime:
        await flows().register(runtime)
        runs = FlowRuns(runtime, TYPE)
        began = time.perf_counter()
        ids = await rested(runtime, "ask", total)
        made_per_s = total / (time.perf_counter() - began)

        async def answer(index: int) -> None:
            ended = runtime._host.worker.completions.future_of(ids[index])
            await runs.resume(ids[index], "ok", {"response": "yes"})
            await ended

        resumed_per_s = total / await many(answer, total=total, at_once=AT_ONCE, warm_up=False)
    made_least, woken_least = await floor(url, total)
    both, both_least = (
        1 / (1 / made_per_s + 1 / resumed_per_s),
        1 / (1 / made_least + 1 / woken_least),
    )
    report(
        benchmark="flow_waits",
        what="waits",
        runs=total,
        made_per_s=round(made_per_s),
        made_ratio=round(made_per_s / made_least, 3),
        resumed_per_s=round(resumed_per_s),
        resumed_ratio=round(resumed_per_s / woken_least, 3),
        both_per_s=round(both),
        floor_per_s=round(both_least),
        ratio=round(both / both_least, 3),
        goal=0.4,
    )


async def _event(url: str, total: int) -> None:
    """Report one event to all runs that wait for it, until the last has ended, beside one post."""
    async with open_runtime(url, suspend_after=0.0) as runtime:
        await flows().register(runtime)
        ids = await rested(runtime, "hear", total)
        ends = [runtime._host.worker.completions.future_of(run_id) for run_id in ids]
        began = time.perf_counter()
        await FlowRuns(runtime, TYPE).emit("go")
        await asyncio.gather(*ends)
        resumed = total / (time.perf_counter() - began)
    posted = (await posts.ours(url, total)).handled_per_s
    report(
        benchmark="flow_waits",
        what="one event",
        runs=total,
        resumed_per_s=round(resumed),
        post_per_s=round(posted),
        ratio=round(resumed / posted, 3),
        goal=0.5,
    )


async def _long(url: str, steps: int) -> None:
    """Report the load of a run of so many steps that waits, and its end, beside a run of 200 steps."""
    async with open_runtime(url, suspend_after=0.0) as runtime:
        await flows().register(runtime)
        short, few = await _loaded(runtime, SHORT)
        long, entries = await _loaded(runtime, max(steps, SHORT))
    report(
        benchmark="flow_waits",
        what="long runs",
        steps=[SHORT, max(steps, SHORT)],
        entries_loaded=[few, entries],
        ms=[round(short * 1000, 2), round(long * 1000, 2)],
        ratio=round(long / short, 2),
        limit_ratio=1.5,
    )


async def _loaded(runtime: Runtime, steps: int) -> tuple[float, int]:
    """Return the median time from the answer of a waiting run to its end, and the entries that are loaded."""
    runs, times, entries = FlowRuns(runtime, TYPE), [], 0
    for n in range(LOADS):
        run_id = await runs.start("long", vars={"n": 0, "steps": steps}, id=f"{steps}.{n}")
        await rests(runtime, run_id)
        [loaded] = await runtime.store.reads.load([run_id])
        entries = len(loaded.entries)
        began = time.perf_counter()
        await runs.resume(run_id, "ok", {"response": "yes"})
        await runtime.result(run_id)
        times.append(time.perf_counter() - began)
    return statistics.median(times), entries
