"""A suspended run is rows only: its host keeps no object for it, and a take-over does not read it."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.commit import Suspend
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._runtime.execution.ending import Ending
from actors._runtime.execution.execution import Execution
from actors._runtime.execution.start import queue_item_of
from actors._runtime.journal.run_log import RunLog
from actors._runtime.replay.branch_scheduler import BranchScheduler
from actors._runtime.sharding import ownership
from actors._runtime.verbs.call import RunState
from actors._runtime.verbs.waits import Waits
from actors._runtime.worker.mailbox import Mailbox
from tests.behaviour.agents import Acting
from tests.harness.faulty_store import Faults

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import RunId, ShardId
    from actors._runtime import RunContext
    from actors._runtime.replay.verdict import Verdict
    from actors._runtime.verbs.host_services import ExecutionResult
    from tests.behaviour.bed import Bed

SLEEPERS = 40


async def suspend_runs(bed: Bed) -> tuple[str, list[RunId]]:
    """Serve a type with many suspended runs, which wait for signals, hours, messages."""
    type_ = bed.name().type
    await serve(bed, type_)
    kinds = ("signal", "hours", "mail", "signal")
    runs = [await bed.submit(AgentId(type_, str(n)), kinds[n % 4]) for n in range(SLEEPERS)]
    for run_id in runs:
        await bed.seen(run_id, K.RUN_SUSPENDED)
    await bed.until(lambda: not bed.runtime._host.worker.dispatcher.load)
    return type_, runs


async def serve(bed: Bed, type_: str) -> None:
    """Serve agents that wait as their message requests, and return the result of the wait."""

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        match inbox[0].payload:
            case "note":
                return await ctx.step("note", bed.world.do, "note")
            case "mail":
                message = await ctx.receive()
                return None if message is None else message.payload
            case "hours":
                return await ctx.sleep(7200.0)
            case "soon":
                return await ctx.sleep(bed.suspend_after + 2.0)
        return await ctx.sleep_until_signal("go")

    await bed.runtime.register_type(type_, lambda agent_id: Acting(agent_id, act))


@pytest.fixture(autouse=True)
def _new_objects_only() -> Iterator[None]:
    """Keep what other tests left out of the collections, which would stop the event loop for seconds."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def mailboxes(type_: str) -> int:
    """Return how many mailboxes of its agents are in memory."""
    gc.collect()
    return sum(type(o) is Mailbox and o.agent_id.type == type_ for o in gc.get_objects())


@pytest.mark.item(107)
async def test_a_suspended_run_has_no_object_in_its_host(bed: Bed) -> None:
    """Forty runs are rows only. Each is woken by its event, and loaded only then."""
    type_, runs = await suspend_runs(bed)

    await bed.until(lambda: not mailboxes(type_))  # a late hint makes one for a moment
    await bed.runtime.signal(runs[0], "go", "went")
    await bed.runtime.send(AgentId(type_, "2"), "hello")
    await bed.runtime.send(AgentId(type_, "1"), "note")
    assert await bed.result(runs[0]) == "went"
    assert await bed.result(runs[2]) == "hello"
    assert not bed.world.count["note"], "mail waits for the agent to be free"
    await bed.runtime.cancel(runs[1])
    await bed.until(lambda: bed.world.count["note"] == 1)
    await bed.until(lambda: not bed.runtime._host.worker.dispatcher.load)
    await bed.until(lambda: not mailboxes(type_))


@pytest.mark.item(107)
async def test_an_evicted_run_is_freed_without_the_collector(bed: Bed) -> None:
    """The next collection may be late, and memory of a burst is not returned to the system afterwards."""
    gc.collect()
    gc.disable()
    try:
        type_, _ = await suspend_runs(bed)
        await bed.until(lambda: not executions(type_))
    finally:
        gc.enable()


@pytest.mark.item(107)
async def test_frames_of_an_evicted_run_are_freed_before_its_commit(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a burst many commits are queued: the frames of the code are as large as the rest of the run."""
    references: list[weakref.ref[Any]] = []
    live_objects: list[Any] = []
    write = Ending.write

    async def watched(self: Ending, verdict: Verdict, **how: Any) -> ExecutionResult:
        if isinstance(verdict.then, Suspend):
            live_objects.extend(ref() for ref in references)
        return await write(self, verdict, **how)

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        mine = Waits.__new__(Waits)
        references.append(weakref.ref(mine))
        await ctx.sleep_until_signal("go")

    monkeypatch.setattr(Ending, "write", watched)
    run_id = await bed.submit(await bed.serve(act))
    await bed.seen(run_id, K.RUN_SUSPENDED)
    assert live_objects
    assert not any(live_objects)


@pytest.mark.item(107)
async def test_an_ended_run_is_freed_without_the_collector(bed: Bed) -> None:
    """All of its objects: with many short runs the collector takes half of the time."""
    agents = [await bed.serve(_wait_and_end) for _ in range(20)]
    await bed.result(await bed.submit(agents[0], "first"))
    gc.collect()
    gc.disable()
    try:
        before = parts()
        runs = [await bed.submit(agent, "go") for agent in agents]
        for run_id in runs:
            await bed.result(run_id)
        await bed.until(lambda: parts() <= before)
    finally:
        gc.enable()


async def _wait_and_end(ctx: RunContext, inbox: list[Message]) -> Any:
    await ctx.step("one", _nothing)
    await ctx.gather(ctx.step("two", _nothing), ctx.sleep(0.0))
    return inbox[0].payload


async def _nothing() -> None:
    """Do nothing."""


def parts() -> int:
    """Return how many parts of executions are in memory."""
    kinds = {Execution, RunState, RunLog, BranchScheduler, Waits}
    return sum(type(o) in kinds for o in gc.get_objects())


def executions(type_: str) -> int:
    """Return how many executions of its agents are in memory."""
    return sum(type(o) is Execution and o.lease.agent_id.type == type_ for o in gc.get_objects())


@pytest.mark.item(107)
async def test_a_take_over_reads_no_suspended_run(bed: Bed) -> None:
    """Of forty it reads the three with an event while no host was alive, and these continue."""
    type_, runs = await suspend_runs(bed)
    soon = await bed.submit(AgentId(type_, "soon"), "soon")
    await bed.seen(soon, K.RUN_SUSPENDED)
    await bed.crash()
    async with bed.client() as client:
        await client.signal(runs[0], "go", "went")
        await client.send(AgentId(type_, "2"), "hello")
    faults = Faults()
    bed.go_wrong(faults)
    await bed.start()
    await serve(bed, type_)

    assert await bed.result(runs[0]) == "went"
    assert await bed.result(runs[2]) == "hello"
    await bed.result(soon)
    await bed.until(lambda: not mailboxes(type_))  # each polls once more for messages of its agent
    for method in ("load", "signals", "find_run_for_agent"):
        assert faults.calls.count(method) <= 12, method


@pytest.mark.item(107)
async def test_a_late_hint_leaves_no_object(bed: Bed) -> None:
    """It comes while messages of a new shard are read: the agent may have some, and in the end has none."""
    type_, runs = await suspend_runs(bed)
    rows = [await bed.row(run_id) for run_id in runs]
    counts: list[int] = []

    def hints(shards: Sequence[ShardId]) -> bool:
        intake = bed.runtime._host.worker.intake
        if not counts:
            for row in rows[::2]:
                intake.offer(queue_item_of(row))
            for row in rows[1::2]:
                intake.signalled(row.run_id, row.agent_id)
        counts.append(mailboxes(type_))
        return False

    await bed.crash()
    bed.go_wrong(Faults(method="who_has_mail", wanted=hints))
    await bed.start()
    await serve(bed, type_)
    await bed.until(lambda: counts)
    assert counts[0] > 0
    await bed.until(lambda: not bed.runtime._host.worker.dispatcher.load)
    await bed.until(lambda: not mailboxes(type_))


@pytest.mark.item(107)
async def test_a_hint_of_an_ended_run_wakes_no_other_run(bed: Bed) -> None:
    """The hint names an ended run. The suspended one keeps its agent, and messages wait for it."""
    type_ = bed.name().type
    await serve(bed, type_)
    agent = AgentId(type_, "1")
    ended, sleeps = [await bed.submit(agent, "signal") for _ in range(2)]
    await bed.runtime.signal(ended, "go", 1)
    await bed.result(ended)
    await bed.seen(sleeps, K.RUN_SUSPENDED)
    await bed.until(lambda: not bed.runtime._host.worker.dispatcher.load)

    bed.runtime._host.worker.intake.signalled(ended, agent)
    await bed.runtime.send(agent, "note")
    await bed.until(
        lambda: (
            not (
                bed.runtime._host.worker.dispatcher.load
                or bed.runtime._host.worker.dispatcher.backlog
            )
        )
    )

    assert not bed.world.count["note"]
    await bed.runtime.signal(sleeps, "go", 2)
    assert await bed.result(sleeps) == 2
    await bed.until(lambda: bed.world.count["note"] == 1)


@pytest.mark.item(107)
async def test_many_sleepers_are_read_one_shard_at_a_time(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the names of 100,000 are in memory at once. If there are few, the next read is of more shards."""
    reads: list[int] = []

    def read(shards: Sequence[ShardId]) -> bool:
        reads.append(len(shards))
        return False

    bed.go_wrong(Faults(method="sleepers", wanted=read))
    monkeypatch.setattr(ownership, "MANY_SLEEPERS", 0)
    type_, runs = await suspend_runs(bed)
    await bed.crash()
    reads.clear()

    await bed.start()
    await serve(bed, type_)
    await bed.runtime.signal(runs[0], "go", "went")
    assert await bed.result(runs[0]) == "went"
    assert set(reads) == {1}
    monkeypatch.setattr(ownership, "MANY_SLEEPERS", 10**6)
    reads.clear()
    bed.runtime._host.notifications.publish(Nudge("incarnation"))
    await bed.until(lambda: sum(reads) >= len(bed.runtime._host.worker.held.leases))
    assert reads[0] == 1
    assert len(reads) == 1 or max(reads) > 1
