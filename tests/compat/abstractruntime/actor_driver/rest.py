"""The rest of a run: it has ended, is paused, or waits for what no host can bring."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from actors._kernel.runtime.ids import RunId
from actors._kernel.runtime.scheduler import RunStatus as RowStatus
from actors._runtime import Runtime
from actors._workflow.machine.records import is_paused
from actors.workflow import FlowRuns, WaitReason, WaitState, open_waits

LIMIT_S: Final = 60.0
_PAUSES_S: Final = (0.001, 0.005, 0.02, 0.1)


class UnrestingError(AssertionError):
    """A run neither ends nor waits."""


async def until_rest(runtime: Runtime, runs: FlowRuns, run_id: str) -> None:
    """Return when a run rests.

    Raises:
        UnrestingError: It is parked, or still goes on.
    """
    began = runtime.clock.monotonic()
    pauses = [*_PAUSES_S]
    while not await _rests(runtime, runs, RunId(run_id)):
        if runtime.clock.monotonic() - began > LIMIT_S:
            raise UnrestingError(f"run {run_id} does not rest: {await runs.state(RunId(run_id))}")
        await asyncio.sleep(pauses.pop(0) if len(pauses) > 1 else pauses[0])


async def _rests(runtime: Runtime, runs: FlowRuns, run_id: RunId) -> bool:
    row = await runtime.store.reads.run(run_id)
    assert row is not None
    if row.parked:
        raise UnrestingError(f"run {run_id} is parked: {row.parked}")
    if row.status is not RowStatus.SUSPENDED:
        return row.status.is_terminal
    if row.cancel_requested is not None:
        return False
    state = await runs.state(run_id)
    waits = open_waits(state)
    if not waits or is_paused(state):
        return is_paused(state)
    return await _all_last(runtime, runs, run_id, waits)


async def _all_last(
    runtime: Runtime, runs: FlowRuns, run_id: RunId, waits: Sequence[WaitState]
) -> bool:
    keys = {w.wait_key for w in await runs.waits(run_id)}
    now = runtime.clock.now().isoformat()
    for wait in waits:
        if wait.until is not None and wait.until <= now:
            return False
        if wait.reason is WaitReason.SUBWORKFLOW:
            child = RunId(str((wait.details or {})["sub_run_id"]))
            row = await runtime.store.reads.run(child)
            if row is None or row.status.is_terminal or not await _rests(runtime, runs, child):
                return False
        elif wait.reason is not WaitReason.UNTIL and wait.wait_key not in keys:
            return False
    return True
