"""What a store said of whose turn it is may be out of date when it comes: nobody is stuck for that."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from actors.kernel.runtime.hints import Nudge
from actors.kernel.runtime.log_entry import EntryKind as K
from actors.kernel.runtime.scheduler import RetryPolicy
from tests.harness.faulty_store import Faults, Manner

if TYPE_CHECKING:
    from actors.kernel.agent.message import Message
    from actors.kernel.runtime.ids import AgentId, RunId
    from actors.runtime import RunContext
    from tests.behaviour.bed import Bed


async def sleeper(bed: Bed) -> AgentId:
    """Serve an agent whose runs wait for a signal, but for those that are given something else."""

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        if inbox[0].payload == "note":
            return await ctx.step("note", bed.world.do, "note")
        if inbox[0].payload == "park":
            await bed.world.do("park")
            raise ValueError("park")
        return await ctx.sleep_until_signal("go")

    return await bed.serve(act, retry=RetryPolicy(max_retries=0, on_exhausted="pause"))


async def asleep(bed: Bed, run_id: RunId) -> None:
    """Return when the run is rows only."""
    await bed.seen(run_id, K.RUN_SUSPENDED)
    await bed.until(lambda: not bed.runtime._host.worker.dispatcher.load)


async def parked_while_read(bed: Bed, *, doubted: bool = True) -> tuple[Faults, AgentId, RunId]:
    """A parked run of an agent whose shard is read again; what was read comes once it is released.

    Not `doubted` it is read as behind a life that came while shards were read: all is declared anew.
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
    bed.runtime._host.notifications.publish(Nudge("life" if doubted else "shards"))
    await faults.held.wait()
    return faults, agent, parked


async def test_who_held_an_agent_before_a_cancel_does_not_hold_it_behind(bed: Bed) -> None:
    """The store was asked before the sleeping run was told to stop, and answers when it has ended."""
    faults = Faults(nth=0, method="find_run_for_agent", manner=Manner.LATE_ANSWER)
    bed.go_wrong(faults)
    await bed.restart()
    agent = await sleeper(bed)
    sleeps = await bed.submit(agent, "signal")
    await asleep(bed, sleeps)

    await bed.runtime.send(agent, "note")
    await faults.held.wait()
    await bed.runtime.cancel(sleeps)
    await bed.ended(sleeps)
    faults.release.set()

    await bed.until(lambda: bed.world.count["note"] == 1)


async def test_a_signal_that_comes_while_a_shard_is_read_starts_no_parked_run(bed: Bed) -> None:
    """It is no decision: what mail has named is known to be parked only when it was read."""
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
async def test_a_run_that_ends_while_its_shard_is_read_holds_nobody_behind(
    bed: Bed, *, doubted: bool
) -> None:
    """Nothing would wake it: it was parked, says the row that was read before it was cancelled."""
    faults, agent, parked = await parked_while_read(bed, doubted=doubted)
    await bed.runtime.cancel(parked)
    await bed.ended(parked)
    faults.release.set()

    await bed.runtime.send(agent, "note")
    await bed.until(lambda: bed.world.count["note"] == 1)


async def test_a_signal_that_comes_while_a_shard_is_read_wakes_a_run_that_a_message_named(
    bed: Bed,
) -> None:
    """Not only the next scan does: the mailbox is there before it is known whose run it is about."""
    faults = Faults(nth=0, method="due", manner=Manner.LATE_ANSWER)
    agent = await sleeper(bed)
    sleeps = await bed.submit(agent, "signal")
    await asleep(bed, sleeps)
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


async def test_a_signal_between_two_messages_is_not_lost_while_it_is_asked_who_holds(
    bed: Bed,
) -> None:
    """The second message finds an agent that may not start, and takes nothing back."""
    faults = Faults(nth=0, method="find_run_for_agent", manner=Manner.LATE_ANSWER)
    bed.go_wrong(faults)
    await bed.restart()
    agent = await sleeper(bed)
    sleeps = await bed.submit(agent, "signal")
    await asleep(bed, sleeps)

    await bed.runtime.send(agent, "note")
    await faults.held.wait()
    await bed.runtime.signal(sleeps, "go", "went")
    await bed.runtime.send(agent, "note")
    faults.release.set()

    assert await bed.result(sleeps) == "went"


async def test_a_signal_of_who_sleeps_is_not_lost_behind_one_of_who_has_ended(bed: Bed) -> None:
    """The late one makes the host believe that the ended run holds the agent, until it has looked."""
    faults = Faults(method="load", manner=Manner.LATE_ANSWER)
    bed.go_wrong(faults)
    await bed.restart()
    agent = await sleeper(bed)
    ended, sleeps = [await bed.submit(agent, "signal") for _ in range(2)]
    await bed.runtime.signal(ended, "go", 1)
    await bed.result(ended)
    await asleep(bed, sleeps)

    faults.nth = len(faults.calls)
    bed.runtime._host.worker.intake.signalled(ended, agent)
    await faults.held.wait()
    await bed.runtime.signal(sleeps, "go", 2)
    faults.release.set()

    assert await bed.result(sleeps) == 2


async def test_a_run_that_goes_to_sleep_while_its_shard_is_read_again_is_not_forgotten(
    bed: Bed,
) -> None:
    """Its first commit was under way when the store was doubted: it holds its agent, and is woken."""
    commits = Faults(nth=0, method="commit", manner=Manner.HOLD)
    reads = Faults(nth=1, method="sleepers", manner=Manner.LATE_ANSWER)
    bed.go_wrong(commits)
    bed.go_wrong(reads)
    await bed.restart(suspend_after=0.0)
    agent = await sleeper(bed)
    reads.nth = len(reads.calls)
    sleeps = await bed.submit(agent, "signal")
    await commits.held.wait()
    bed.runtime._host.notifications.publish(Nudge("life"))
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


async def test_nothing_is_kept_of_a_shard_that_was_given_up_while_it_was_read(bed: Bed) -> None:
    """Of a big one that is a name for each run that sleeps."""
    faults = Faults(method="sleepers", manner=Manner.LATE_ANSWER)
    bed.go_wrong(faults)
    await bed.restart()
    await asleep(bed, await bed.submit(await sleeper(bed), "signal"))

    faults.nth = len(faults.calls)
    bed.runtime._host.notifications.publish(Nudge("life"))
    await faults.held.wait()
    bed.runtime._host.worker.adoption.give_up(bed.runtime._host.worker.held.leases)
    faults.release.set()
    await bed.until(lambda: not bed.runtime._host.ownership._claiming.locked())

    held = {lease.shard for lease in bed.runtime._host.worker.held.leases}
    assert held.issuperset(bed.runtime._host.worker._mailboxes._asleep)


async def busy(bed: Bed) -> AgentId:
    """Serve an agent whose runs pay, which takes until the gate opens; some wait for something before.

    Those that are given a note do that alone.
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


async def test_rows_read_before_another_incarnation_break_nothing_off(bed: Bed) -> None:
    """They say less than is known of the run, and not because the store has forgotten it."""
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
    await early.held.wait()  # what was read: it has not begun
    commits.release.set()
    await bed.until(lambda: bed.world.count["pay"])
    later.nth = len(later.calls)
    bed.runtime._host.notifications.publish(Nudge("life"))
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
    """A run that waited for a signal or time, and goes on: not so its row when its shard is read again.

    What was read comes once it is released.
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
    bed.runtime._host.notifications.publish(Nudge("life"))
    await reads.held.wait()
    return reads, agent, run_id


async def test_a_run_that_executes_and_ends_while_its_shard_is_read_holds_nobody_behind(
    bed: Bed,
) -> None:
    """Nothing would wake it: it sleeps, says the row that was read before it went on."""
    commits = Faults(method="commit", manner=Manner.HOLD)
    reads, agent, run_id = await woken_while_read(bed, "signal", commits)
    bed.world.gates["gate"].set()
    commits.release.set()
    await bed.ended(run_id)
    reads.release.set()

    await bed.runtime.send(agent, "note")
    await bed.until(lambda: bed.world.count["note"] == 1)


async def test_a_run_that_is_broken_off_while_its_shard_is_read_goes_on(bed: Bed) -> None:
    """Nothing would wake it: it sleeps, said its row before it was written that its time has come."""
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


async def test_who_waits_behind_a_run_that_is_broken_off_while_its_shard_is_read_has_its_turn(
    bed: Bed,
) -> None:
    """Its row was told before, and is not read again."""
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
