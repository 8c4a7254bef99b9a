"""Races of flows on agents: two answers at once, events for many runs, sub-runs that are swept."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.workflow.errors import NoSuchRunError, StaleResumeError
from actors.workflow import EffectType, FlowRuns, StepPlan, WorkflowSpec
from tests.behaviour.flow_stage import asking, ending, single, staged
from tests.behaviour.test_retention import sweep
from tests.harness.slow import IS_SLOW

if TYPE_CHECKING:
    from actors._kernel.runtime.ids import RunId
    from actors.workflow import RunState
    from tests.behaviour.bed import Bed

T = EffectType
WAITS, RUNS = 20, 10
LISTENERS = 10_000 if IS_SLOW else 300


@pytest.mark.item(414)
async def test_one_of_two_answers_to_a_wait_succeeds(bed: Bed) -> None:
    """200 times, from two processes. The other answer is refused as too late, and is stored nowhere."""
    if bed.backend == "memory":
        pytest.skip("who is first is decided by rows")
    names = [str(n) for n in range(WAITS)]
    nodes = {
        name: asking(T.ASK_USER, {"prompt": "?", "wait_key": name}, key=f"in.{name}")
        for name in names
    }

    def fork(_run: RunState, _ctx: Any) -> StepPlan:
        return StepPlan("fork", parallel={name: name for name in names}, next_node="end")

    stage = await staged(bed, WorkflowSpec("flow", "fork", nodes | {"fork": fork, "end": ending}))

    async def answered(runs: FlowRuns, run_id: RunId, key: str, name: str) -> str | None:
        try:
            await runs.resume(run_id, key, name)
        except StaleResumeError:
            return None
        return name

    async with bed.client("a") as first, bed.client("b") as second:
        both = [FlowRuns(client, stage.flows.app) for client in (first, second)]
        for _ in range(RUNS):
            run_id = await stage.runs.start("flow")
            await stage.waits(run_id, WAITS)
            tries = [
                answered(runs, run_id, key, f"{n} {key}")
                for key in names
                for n, runs in enumerate(both)
            ]
            outcomes = await asyncio.gather(*tries)
            won = [name for name in outcomes if name is not None]

            assert [name.partition(" ")[2] for name in won] == names
            output = (await stage.ended(run_id)).output
            assert [output["in"][key] for key in names] == won


@pytest.mark.item(420, 458)
@pytest.mark.timeout(600)
async def test_one_event_wakes_many_flows(bed: Bed) -> None:
    """Each flow once. A flow that suspends while the event is emitted gets it or the next one."""
    if bed.backend == "memory":
        pytest.skip("it is about rows of a server")
    stage = await staged(bed, single(T.WAIT_EVENT, {"name": "go", "scope": "global"}))
    run_ids: list[RunId] = []
    while len(run_ids) < LISTENERS:
        run_ids += await asyncio.gather(*(stage.runs.start("flow") for _ in range(100)))
    early = set(run_ids[: LISTENERS - 20])
    for run_id in early:
        await stage.waits(run_id)

    begin = time.perf_counter()
    delivery = await stage.runs.emit("go", 1, event_id="one")
    emitted_s = time.perf_counter() - begin
    await asyncio.gather(*(bed.runtime.wait(run_id) for run_id in early))
    resumed_s = time.perf_counter() - begin
    print(f"{len(early)} listeners: emitted in {emitted_s:.2f} s, all ended in {resumed_s:.2f} s")  # noqa: T201

    assert delivery["delivered"] >= len(early)
    late = [run_id for run_id in run_ids if not (await bed.row(run_id)).status.is_terminal]
    for run_id in late:
        await stage.waits(run_id)
    await stage.runs.emit("go", 2, event_id="two")
    for run_id in run_ids:
        event = (await bed.result(run_id))["out"]["event_id"]
        assert event == ("one" if run_id in early else event)
        assert len(await bed.log(run_id, K.ASK_REPLIED)) == 1


@pytest.mark.item(421, 480)
async def test_a_child_that_was_swept_is_joined_all_the_same(bed: Bed) -> None:
    """Its parent was paused meanwhile. The child's end is kept until its parent has ended."""
    child = single(T.ASK_USER, {"prompt": "?", "wait_key": "k"}, name="child")
    stage = await staged(bed, child, single(T.START_SUBWORKFLOW, {"workflow_id": "child"}))
    run_id = await stage.runs.start("flow")
    await bed.seen(run_id, K.CHILD_SPAWNED)
    [handle] = await bed.runtime.children(run_id)
    await stage.waits(handle.run_id)
    await stage.runs.pause_run(run_id)
    await stage.runs.resume(handle.run_id, "k", "yes")
    await stage.ended(handle.run_id)
    await sweep(bed)
    await stage.restart()
    await stage.runs.resume_run(run_id)

    assert (await stage.ended(run_id)).output["out"]["output"] == {"out": "yes"}
    await sweep(bed)
    for swept_id in (run_id, handle.run_id):
        for read in (stage.runs.state, stage.runs.ledger):
            with pytest.raises(NoSuchRunError):
                await read(swept_id)
