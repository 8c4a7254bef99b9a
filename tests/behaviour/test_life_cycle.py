"""The life cycle of a run: its status changes only along the diagram, whatever calls are made."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import TYPE_CHECKING, Any, Final

import pytest

from actors._kernel.runtime.log_entry import TERMINAL_KINDS
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.scheduler import TRANSITIONS, RetryPolicy, RunStatus
from actors._kernel.runtime.sources import ends_execution, fold
from actors.errors import ActorsError, IllegalTransitionError, RunConflictError, TerminalError
from tests.behaviour.agents import Acting

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import AgentId, RunId
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

ENDED: Final = {RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED}


async def ways(bed: Bed, run_id: RunId) -> list[RunStatus]:
    """Return the statuses that a run has had, by its log; the row agrees with the last one."""
    row, log = await bed.row(run_id), await bed.log(run_id)
    statuses = [RunStatus.PENDING]
    for length in range(1, len(log) + 1):
        entry, status = log[length - 1], fold(row, log[:length]).status
        is_end = entry.kind == K.RUN_ATTEMPT_FAILED or ends_execution(entry)
        if is_end and statuses[-1] is RunStatus.PENDING:
            statuses.append(RunStatus.RUNNING)  # an attempt may leave only its end entry
        parks = length < len(log) and log[length].kind == K.RUN_PARKED
        if parks and entry.kind == K.RUN_ATTEMPT_FAILED:
            continue  # one commit, in which the policy's `pause` stands for the next attempt
        if status is not statuses[-1]:
            statuses.append(status)
    if len(log) == row.last_seq + 1:
        assert row.status is statuses[-1]
    return statuses


def is_legal(statuses: list[RunStatus]) -> bool:
    """Return whether each step is in the life cycle."""
    return all(after in TRANSITIONS[before] for before, after in itertools.pairwise(statuses))


async def play(bed: Bed, agent: AgentId, runs: list[RunId], chance: random.Random) -> None:
    """Make a call of the runtime for one of the runs so far, and ignore errors of invalid calls."""
    runtime, run_id = bed.runtime, chance.choice(runs)
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: runtime.cancel(run_id, reason="so"),
        lambda: runtime.signal(run_id, "go", chance.random()),
        lambda: runtime.signal(run_id, "other"),
        lambda: runtime.resolve(run_id),
        lambda: runtime.resolve(run_id, "0", action="fail"),
        lambda: runtime.redrive_run(run_id),
        lambda: runtime.send(agent, "mail"),
        lambda: runtime.status(run_id),
        lambda: asyncio.sleep(chance.choice([0.0, 0.01, 0.05])),
        bed.restart,
    ]
    weights = [2, 6, 2, 3, 1, 2, 2, 1, 6, 1]
    try:
        outcome = await chance.choices(calls, weights)[0]()
    except ActorsError:
        return
    if isinstance(outcome, str):
        runs.append(outcome)  # type: ignore[arg-type]


async def everything(ctx: RunContext, inbox: list[Message]) -> Any:
    """Spawn, wait and fail at times, by the payload's seed."""
    chance = random.Random(f"{inbox[0].payload} {ctx.meta.attempt} {ctx.meta.supervision.depth}")
    for n in range(3):
        what = chance.random()
        if what < 0.25:
            await ctx.sleep_until_signal("go")
        elif what < 0.4:
            await ctx.sleep(0.02)
        elif what < 0.55 and ctx.meta.supervision.depth < 2:
            handle = await ctx.spawn(ctx.agent_id.type, f"{inbox[0].payload} {n}")
            if chance.random() < 0.5:
                await ctx.cancel(handle, reason="not needed")
            await ctx.join(handle)
        elif what < 0.7:
            raise ValueError("again")
        elif what < 0.75:
            raise TerminalError("never")
        else:
            await ctx.receive(timeout=0.02)
    return "done"


@pytest.mark.item(160, 161, 162, 163, 165)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.timeout(120)
async def test_random_calls_keep_a_run_in_its_life_cycle(bed: Bed, seed: int) -> None:
    """Random calls, with crashes: each step is in the diagram, each run has at most one end."""
    chance = random.Random(f"{bed.backend} {bed.drops} {seed}")
    agent = bed.name()
    await bed.runtime.register_type(agent.type, lambda agent_id: Acting(agent_id, everything))
    start = bed.start

    async def start_again(**settings: Any) -> Any:
        runtime = await start(**settings)
        await runtime.register_type(agent.type, lambda agent_id: Acting(agent_id, everything))
        return runtime

    bed.start = start_again  # type: ignore[method-assign]
    runs: list[RunId] = []
    for n in range(8):
        policy = RetryPolicy(
            max_retries=1, backoff_s=0.01, on_exhausted=chance.choice(["fail", "pause"])
        )
        runs.append(await bed.submit(agent, f"{seed} {n}", retry_policy=policy))
        for _ in range(6):
            await play(bed, agent, runs, chance)
    for run_id in list(runs):
        await bed.runtime.cancel(run_id, reason="over")
        await bed.ended(run_id)
        runs += [handle.run_id for handle in await bed.runtime.children(run_id)]
    for run_id in runs:
        await bed.ended(run_id)
        statuses, log = await ways(bed, run_id), await bed.log(run_id)
        assert is_legal(statuses), [(entry.kind, entry.payload.get("reason")) for entry in log]
        assert sum(status in ENDED for status in statuses) == 1
        assert [entry.kind in TERMINAL_KINDS for entry in log].index(True) == len(log) - 1


@pytest.mark.item(161, 164, 165)
async def test_only_a_redrive_continues_a_failed_run(bed: Bed) -> None:
    """Once, as a new run. A failed run accepts no other call, nor does a completed or a cancelled one."""
    fails = True

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        del ctx
        if fails and inbox[0].payload == "fail":
            raise TerminalError("broken")
        return inbox[0].payload

    agent = await bed.serve(act)
    dead, done = await bed.submit(agent, "fail"), await bed.submit(agent, "fine")
    assert [(await bed.ended(run_id)).status for run_id in (dead, done)] == [
        RunStatus.FAILED,
        RunStatus.COMPLETED,
    ]
    logs = [await bed.log(run_id) for run_id in (dead, done)]
    for run_id in (dead, done):
        assert await bed.runtime.signal(run_id, "go") is False
        assert await bed.runtime.resolve(run_id) is False
        assert (await bed.runtime.cancel(run_id)).runs == ()
    with pytest.raises(IllegalTransitionError):
        await bed.runtime.redrive_run(done)
    fails = False
    again = await bed.runtime.redrive_run(dead)
    assert await bed.result(again) == "fail"
    assert await bed.runtime.redrive_run(dead) == again
    assert again != dead
    assert [await bed.log(run_id) for run_id in (dead, done)] == logs


@pytest.mark.item(165)
async def test_a_conflict_changes_no_run(bed: Bed) -> None:
    """A submit that is rejected leaves the open run as it is, and creates none."""

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        del inbox
        return await ctx.sleep_until_signal("go")

    agent = await bed.serve(act)
    run_id = await bed.submit(agent)
    await bed.seen(run_id, K.RUN_STARTED)
    with pytest.raises(RunConflictError):
        await bed.submit(agent, on_conflict="reject")
    assert len(await bed.runtime.store.lists.runs(agent=agent)) == 1
    await bed.runtime.signal(run_id, "go", 1)
    assert await bed.result(run_id) == 1
