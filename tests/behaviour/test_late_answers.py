"""Reads of the store that are out of date when they arrive: no run or agent is blocked by them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.scheduler import RetryPolicy
from tests.harness.faulty_store import Faults, Manner

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import AgentId, RunId
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


async def sleeper(bed: Bed) -> AgentId:
    """Serve an agent whose runs wait for a signal unless their message asks for something else."""

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        if inbox[0].payload == "note":
            return await ctx.step("note", bed.world.do, "note")
        if inbox[0].payload == "park":
            await bed.world.do("park")
            raise ValueError("park")
        return await ctx.sleep_until_signal("go")

    return await bed.serve(act, retry=RetryPolicy(max_retries=0, on_exhausted="pause"))


def has_shard_of(bed: Bed, agent: AgentId) -> Callable[..., bool]:
    """Return whether a read is of the shards among which this agent's is."""
    shard = bed.runtime.store.shards.shard_of(agent)
    return lambda shards: shard in shards


async def wait_until_evicted(bed: Bed, run_id: RunId) -> None:
    """Return when the run is evicted."""
    await bed.seen(run_id, K.RUN_SUSPENDED)
    await bed.until(lambda: not bed.runtime._host.worker.dispatcher.load)


async def parked_while_read(bed: Bed, *, doubted: bool = True) -> tuple[Faults, AgentId, RunId]:
    """Yield a parked run of an agent whose shard is read again; the read returns once it is released.

    Without `doubted` the read is as after an incarnation that changed while shards were read: all
    is registered again.
    """
    faults = Faults(method="open_runs", manner=Manner.LATE_ANSWER)
    bed.go_wrong(faults)
    await bed.restart()
    agent = await sleeper(bed)
    parked = await bed.runtime.submit(agent, "park")
    await bed.seen(parked, K.RUN_PARKED)
    await bed.until(lambda: not bed.runtime._host.worker.dispatcher.load)

    faults.nth = len(faults.calls)
    if not doubted:
        bed.runtime._host.ownership._declared = None
    bed.runtime._host.notifications.publish(Nudge("incarnation" if doubted else "shards"))
    await faults.held.wait()
    return faults, agent, parked


async def test_a_run_that_ended_by_a_cancel_does_not_occupy_its_agent(bed: Bed) -> None:
    """The store was asked before the sleeping run was cancelled, and answers after its end."""
    faults = Faults(nth=0, method="find_run_for_agent", manner=Manner.LATE_ANSWER)
    bed.go_wrong(faults)
    await bed.restart()
    agent = await sleeper(bed)
    sleeps = await bed.submit(agent, "signal")
    await wait_until_evicted(bed, sleeps)

    await bed.runtime.send(agent, "note")
    await faults.held.wait()
    await bed.runtime.cancel(sleeps)
    await bed.ended(sleeps)
    faults.release.set()

    await bed.until(lambda: bed.world.count["note"] == 1)


async def test_a_signal_that_comes_while_a_shard_is_read_starts_no_parked_run(bed: Bed) -> None:
    """A signal is no decision: only the read shows that a run named by a message is parked."""
    faults, agent, parked = await parked_while_read(bed)
    await bed.runtime.send(agent, "note")
    await bed.runtime.signal(parked, "go")
    faults.release.set()
    await bed.until(lambda: not bed.runtime._host.ownership._claiming.locked())
    await bed.until(
        lambda: (
            not (
                bed.runtime._host.worker.dispatcher.load
                or bed.runtime._host.worker.dispatcher.backlog
            )
        )
    )

    assert bed.world.count == {"park": 1}


@pytest.mark.parametrize("doubted", [True, False])
async def test_a_run_that_ends_while_its_shard_is_read_does_not_occupy_its_agent(
    bed: Bed, *, doubted: bool
) -> None:
    """The row was read before the cancel, with status parked; no later event would correct it."""
    faults, agent, parked = await parked_while_read(bed, doubted=doubted)
    await bed.runtime.cancel(parked)
    await bed.ended(parked)
    faults.release.set()

    await bed.runtime.send(agent, "note")
    await bed.until(lambda: bed.world.count["note"] == 1)


async def test_a_signal_that_comes_while_a_shard_is_read_wakes_a_run_that_a_message_named(
    bed: Bed,
) -> None:
    """It is woken at once, not by the next scan: the mailbox exists before the run's owner is known."""
    faults = Faults(nth=0, method="due", manner=Manner.LATE_ANSWER)
    agent = await sleeper(bed)
    sleeps = await bed.submit(agent, "signal")
    await wait_until_evicted(bed, sleeps)
    await bed.crash()
    bed.go_wrong(faults)
    starting = asyncio.ensure_future(bed.start())
    await faults.held.wait()
    async with bed.client() as other:
        await other.send(agent, "note")
        await other.signal(sleeps, "go", "went")
    faults.release.set()
    await starting

    assert await bed.result(sleeps) == "went"
    await bed.until(lambda: bed.world.count["note"] == 1)


async def test_a_signal_between_two_messages_is_not_lost_during_the_read(bed: Bed) -> None:
    """The second message finds an agent that may not start, and does not undo the signal."""
    faults = Faults(nth=0, method="find_run_for_agent", manner=Manner.LATE_ANSWER)
    bed.go_wrong(faults)
    await bed.restart()
    agent = await sleeper(bed)
    sleeps = await bed.submit(agent, "signal")
    await wait_until_evicted(bed, sleeps)

    await bed.runtime.send(agent, "note")
    await faults.held.wait()
    await bed.runtime.signal(sleeps, "go", "went")
    await bed.runtime.send(agent, "note")
    faults.release.set()

    assert await bed.result(sleeps) == "went"


async def test_a_signal_of_a_suspended_run_is_not_lost_after_one_of_an_ended_run(bed: Bed) -> None:
    """The late signal makes the host assume that the ended run occupies the agent, until it has polled."""
    faults = Faults(method="load", manner=Manner.LATE_ANSWER)
    bed.go_wrong(faults)
    await bed.restart()
    agent = await sleeper(bed)
    ended, sleeps = [await bed.submit(agent, "signal") for _ in range(2)]
    await bed.runtime.signal(ended, "go", 1)
    await bed.result(ended)
    await wait_until_evicted(bed, sleeps)

    faults.nth = len(faults.calls)
    bed.runtime._host.worker.intake.signalled(ended, agent)
    await faults.held.wait()
    await bed.runtime.signal(sleeps, "go", 2)
    faults.release.set()

    assert await bed.result(sleeps) == 2


async def test_a_run_that_suspends_while_its_shard_is_read_is_not_lost(bed: Bed) -> None:
    """Its first commit executed when the store was read again: the run occupies its agent, and is woken."""
    commits = Faults(nth=0, method="commit", manner=Manner.HOLD)
    reads = Faults(method="sleepers", manner=Manner.LATE_ANSWER)
    bed.go_wrong(commits)
    bed.go_wrong(reads)
    await bed.restart(suspend_after=0.0)
    agent = await sleeper(bed)
    reads.wanted, reads.nth = has_shard_of(bed, agent), len(reads.calls)
    sleeps = await bed.submit(agent, "signal")
    await commits.held.wait()
    bed.runtime._host.notifications.publish(Nudge("incarnation"))
    await reads.held.wait()
    commits.release.set()
    await bed.seen(sleeps, K.RUN_SUSPENDED)
    reads.release.set()
    await bed.until(lambda: not bed.runtime._host.ownership._claiming.locked())

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
    await bed.runtime.signal(sleeps, "go", "went")
    assert await bed.result(sleeps) == "went"
    await bed.until(lambda: bed.world.count["note"] == 1)


async def test_nothing_is_kept_of_a_shard_that_was_released_while_it_was_read(bed: Bed) -> None:
    """A big shard would leave a name for each of its suspended runs."""
    faults = Faults(method="sleepers", manner=Manner.LATE_ANSWER)
    bed.go_wrong(faults)
    await bed.restart()
    agent = await sleeper(bed)
    await wait_until_evicted(bed, await bed.submit(agent, "signal"))

    faults.wanted, faults.nth = has_shard_of(bed, agent), len(faults.calls)
    bed.runtime._host.notifications.publish(Nudge("incarnation"))
    await faults.held.wait()
    bed.runtime._host.worker.adoption.give_up(bed.runtime._host.worker.held.leases)
    faults.release.set()
    await bed.until(lambda: not bed.runtime._host.ownership._claiming.locked())

    held_shards = {lease.shard for lease in bed.runtime._host.worker.held.leases}
    assert held_shards.issuperset(bed.runtime._host.worker._mailboxes._sleepers)


async def busy(bed: Bed) -> AgentId:
    """Serve an agent whose runs pay, which blocks until the gate opens; some wait for something before.

    A run whose message is a note only waits.
    """

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        match inbox[0].payload:
            case "note":
                return await ctx.step("note", bed.world.do, "note")
            case "signal":
                await ctx.sleep_until_signal("go")
            case "sleep":
                await ctx.sleep(0.5)

        async def pay() -> Any:
            await bed.world.do("pay")
            return await bed.world.wait("gate")

        return await ctx.step("pay", pay)

    agent_id = await bed.serve(act)
    await bed.until(lambda: not bed.runtime._host.ownership._claiming.locked())
    return agent_id


async def test_rows_read_before_another_incarnation_abort_no_run(bed: Bed) -> None:
    """They are older than the host's knowledge, and not because the database lost commits."""
    commits = Faults(method="commit", manner=Manner.HOLD)
    early = Faults(method="open_runs", manner=Manner.LATE_ANSWER)
    later = Faults(method="sleepers", manner=Manner.LATE_ANSWER)
    for faults in (commits, early, later):
        bed.go_wrong(faults)
    await bed.restart()
    agent = await busy(bed)
    commits.nth = len(commits.calls)
    run_id = await bed.submit(agent)
    await commits.held.wait()

    early.nth = len(early.calls)
    bed.runtime._host.notifications.publish(Nudge("shards"))
    await early.held.wait()  # the read row: it has not started
    commits.release.set()
    await bed.until(lambda: bed.world.count["pay"])
    later.nth = len(later.calls)
    bed.runtime._host.notifications.publish(Nudge("incarnation"))
    await later.held.wait()
    early.release.set()
    await asyncio.sleep(0.05)
    later.release.set()
    bed.world.gates["gate"].set()

    assert await bed.result(run_id) is True
    assert bed.world.count == {"pay": 1}


async def woken_while_read(
    bed: Bed, what: str, commits: Faults, *, behind: str | None = None
) -> tuple[Faults, AgentId, RunId]:
    """Yield a run that was woken by a signal or a timer; the read of its shard still has the suspended row.

    The read returns once it is released.
    """
    reads = Faults(method="open_runs", manner=Manner.LATE_ANSWER)
    for faults in (commits, reads):
        bed.go_wrong(faults)
    await bed.restart(suspend_after=0.0)
    agent = await busy(bed)
    run_id = await bed.submit(agent, what)
    await bed.seen(run_id, K.RUN_SUSPENDED)
    if behind is not None:
        await bed.submit(agent, behind)
    reads.nth, commits.nth = len(reads.calls), len(commits.calls)
    if what == "signal":
        await bed.runtime.signal(run_id, "go")
    await commits.held.wait()
    bed.runtime._host.notifications.publish(Nudge("incarnation"))
    await reads.held.wait()
    return reads, agent, run_id


async def test_a_run_that_executes_and_ends_during_the_read_does_not_occupy_its_agent(
    bed: Bed,
) -> None:
    """The row was read before the run continued, as suspended; no later event would correct it."""
    commits = Faults(method="commit", manner=Manner.HOLD)
    reads, agent, run_id = await woken_while_read(bed, "signal", commits)
    bed.world.gates["gate"].set()
    commits.release.set()
    await bed.ended(run_id)
    reads.release.set()

    await bed.runtime.send(agent, "note")
    await bed.until(lambda: bed.world.count["note"] == 1)


async def test_a_run_that_is_aborted_while_its_shard_is_read_continues(bed: Bed) -> None:
    """The row was read before its timer was recorded as fired, as suspended; no later event would wake it."""
    commits = Faults(method="commit", manner=Manner.HOLD)
    broken = Faults(method="commit", manner=Manner.ERROR_BEFORE)
    bed.go_wrong(broken)
    reads, _, run_id = await woken_while_read(bed, "sleep", commits)
    broken.nth = len(broken.calls) + 1
    commits.release.set()
    await bed.until(lambda: broken.struck and not bed.runtime._host.worker.dispatcher.load)
    reads.release.set()
    bed.world.gates["gate"].set()

    assert await bed.result(run_id) is True


async def test_a_run_queued_behind_an_aborted_one_starts_after_the_read(bed: Bed) -> None:
    """The row of the queued run was notified before, and is not read again."""
    commits = Faults(method="commit", manner=Manner.HOLD)
    second = Faults(method="commit", manner=Manner.HOLD)
    broken = Faults(method="commit", manner=Manner.ERROR_BEFORE)
    rest = Faults(method="due", manner=Manner.LATE_ANSWER)
    scan = Faults(method="open_runs", manner=Manner.ERROR_BEFORE)
    for faults in (broken, second, rest, scan):
        bed.go_wrong(faults)
    reads, _, run_id = await woken_while_read(bed, "sleep", commits, behind="note")
    broken.nth = second.nth = len(second.calls) + 1
    rest.nth, scan.nth = len(rest.calls), len(scan.calls)
    commits.release.set()
    await second.held.wait()
    reads.release.set()
    await rest.held.wait()
    second.release.set()
    await bed.until(lambda: broken.struck and not bed.runtime._host.worker.dispatcher.load)
    rest.release.set()
    bed.world.gates["gate"].set()

    assert await bed.result(run_id) is True
    async with asyncio.timeout(2):
        await bed.until(lambda: bed.world.count["note"] == 1)
