"""The life cycle of runs: each sequence of calls changes statuses along its edges only."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.scheduler import TRANSITIONS, RetryPolicy, RunStatus
from actors._runtime.loop.clock import SystemClock, SystemEntropy
from actors._runtime.parts import InMemoryScheduler
from actors.errors import ActorsError

if TYPE_CHECKING:
    from actors._kernel.runtime.scheduler import Lease

RUNS = [RunId("r1"), RunId("r2")]
CALLS = st.lists(
    st.tuples(
        st.sampled_from(["enqueue", "lease", "release", "wake", "wake_agent", "heartbeat"]),
        st.sampled_from(RUNS),
        st.sampled_from(list(RunStatus)),
    ),
    max_size=25,
)


@pytest.mark.item(161, 165)
@settings(max_examples=300, deadline=None, derandomize=True)
@given(CALLS)
def test_no_sequence_of_calls_leaves_the_life_cycle(
    calls: list[tuple[str, RunId, RunStatus]],
) -> None:
    """Every visible change of status is an edge of the diagram; ended runs stay ended."""
    asyncio.run(_play(calls))


async def _play(calls: list[tuple[str, RunId, RunStatus]]) -> None:
    scheduler = InMemoryScheduler(clock=SystemClock(), entropy=SystemEntropy())
    leases: dict[RunId, Lease] = {}
    for run_id in RUNS:
        scheduler.register_run(run_id, AgentId("desk", run_id))
    before = {run_id: await scheduler.get_status(run_id) for run_id in RUNS}
    for call, run_id, status in calls:
        with contextlib.suppress(ActorsError):  # refused or executed: the status below decides
            await _call(scheduler, leases, (call, run_id, status))
        for run in RUNS:
            now = await scheduler.get_status(run)
            was = before[run]
            if was is not None and now is not None and now is not was:
                assert now in TRANSITIONS[was], (call, run, was, now)
            before[run] = now


async def _call(
    scheduler: InMemoryScheduler,
    held_leases: dict[RunId, Lease],
    what: tuple[str, RunId, RunStatus],
) -> None:
    call, run_id, status = what
    match call:
        case "enqueue":
            policy = RetryPolicy(max_retries=1, backoff_s=0)
            await scheduler.enqueue(run_id, retry_policy=policy)
        case "lease":
            leases = await scheduler.lease(worker_id="w", capacity=2)
            held_leases.update({lease.run_id: lease for lease in leases})
        case "release" if run_id in held_leases:
            await scheduler.release(held_leases[run_id], status=status)
        case "heartbeat" if run_id in held_leases:
            await scheduler.heartbeat(held_leases[run_id])
        case "wake":
            await scheduler.wake_suspended(run_id)
        case "wake_agent":
            await scheduler.wake_agent(AgentId("desk", run_id))
        case _:
            return
