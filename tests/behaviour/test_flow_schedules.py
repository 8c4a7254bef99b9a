"""Schedules whose target is a flow: each tick starts one run, however often it fires."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.ids import DEFAULT_TENANT, derive_id, run_id_of_mail
from actors._kernel.runtime.scheduler import RunStatus as RowStatus
from actors._workflow.hosted.flow_address import flow_address
from actors.errors import MessageTooLargeError, ScheduleExistsError, UnknownScheduleError
from actors.workflow import EffectType, GraphError, WorkflowSpec, schedule_flow
from tests.behaviour.bed import LIMIT_S
from tests.behaviour.flow_stage import Stage, asking, ending, staged

if TYPE_CHECKING:
    from actors._kernel.runtime.ids import RunId
    from actors._kernel.runtime.rows import RunRow
    from tests.behaviour.bed import Bed

T = EffectType
DAILY = "0 0 * * *"
END = WorkflowSpec("flow", "end", {"end": ending})


def name_of(bed: Bed, name: str = "nightly") -> str:
    """Return a name that no other test has."""
    return f"{bed._prefix}.{name}"


async def runs_of(
    stage: Stage, schedule: str, count: int, last: RunId | None = None
) -> list[RunRow]:
    """Return the runs of a schedule of the flow `flow`, the first one first.

    Wait until this many have ended and `last` is among them.
    """
    agent = flow_address(stage.flows.app, "flow", f"schedule:{schedule}", DEFAULT_TENANT)
    lists = stage.bed.runtime.store.lists
    async with asyncio.timeout(LIMIT_S):
        while True:
            rows = await lists.runs(agent=agent)
            ended = {row.run_id for row in rows if row.status.is_terminal}
            if len(ended) >= count and last in {None, *ended}:
                return rows[::-1]
            await asyncio.sleep(0.01)


async def until_done(bed: Bed, name: str) -> None:
    """Return when a schedule has no tick left."""
    async with asyncio.timeout(LIMIT_S):
        while (await bed.runtime.schedules.get(name)).state != "done":  # noqa: ASYNC110 - rows
            await asyncio.sleep(0.01)


async def test_a_tick_that_fires_twice_starts_one_run(bed: Bed) -> None:
    """Also on the next host. A trigger starts a run of its own."""
    stage, name = await staged(bed, END), name_of(bed)
    inputs: dict[str, Any] = {"vars": {"n": 1}, "session_id": "s1"}
    schedule = await schedule_flow(bed.runtime, stage.flows, name, "flow", **inputs, delay_s=0)
    [first] = await runs_of(stage, name, 1)
    await stage.restart()
    done = await bed.runtime.schedules.get(name)
    again = replace(done, base_at=schedule.base_at, next_at=schedule.next_at)
    assert await bed.runtime.store.schedules.put(again, expected=done.revision)
    await until_done(bed, name)
    assert await bed.runtime.schedules.trigger(name, request_id="r")
    assert not await bed.runtime.schedules.trigger(name, request_id="r")
    triggered = derive_id("trigger", DEFAULT_TENANT, name, "r")
    last = run_id_of_mail(schedule.agent_id, f"schedule:{name}", triggered)
    rows = await runs_of(stage, name, 2, last)

    assert [row.run_id for row in rows] == [first.run_id, last]
    assert [row.status for row in rows] == [RowStatus.COMPLETED] * 2
    ticks = []
    for row in rows:
        state = await stage.ended(row.run_id)
        assert (state.output, state.session_id) == ({"n": 1}, "s1")
        ticks.append(state.vars["_runtime"].get("scheduled_at"))
    assert schedule.next_at is not None
    assert ticks == [schedule.next_at.isoformat(), None]


async def test_missed_ticks_start_runs_one_after_the_other(bed: Bed) -> None:
    """Each starts when the one before has ended, in the order of the ticks."""
    question = asking(T.ASK_USER, {"prompt": "?", "wait_key": "ok"})
    stage = await staged(bed, WorkflowSpec("flow", "ask", {"ask": question, "end": ending}))
    name = name_of(bed)
    schedule = await schedule_flow(
        bed.runtime, stage.flows, name, "flow", cron=DAILY, catch_up="all"
    )
    at = (await bed.runtime.store.schedules.now()).replace(microsecond=0) - timedelta(days=1)
    old = replace(schedule, next_at=at, base_at=at)
    assert await bed.runtime.store.schedules.put(old, expected=schedule.revision)
    for count in (1, 2):
        rows: list[RunRow] = []
        while len(rows) < count:
            await asyncio.sleep(0.01)
            rows = await runs_of(stage, name, 0)
        assert len(rows) == count
        await stage.waits(rows[-1].run_id)
        await stage.runs.resume(rows[-1].run_id, "ok", count)
    rows = await runs_of(stage, name, 2)
    assert [(await stage.ended(row.run_id)).output for row in rows] == [{"out": 1}, {"out": 2}]


async def test_a_sub_graph_survives_the_end_of_the_ticks_run(bed: Bed) -> None:
    """Like the sub-graph of a run that a client started, it is not cancelled."""
    begin = asking(T.START_SUBWORKFLOW, {"workflow_id": "child", "async": True}, key="sub")
    rest = asking(T.ASK_USER, {"prompt": "?", "wait_key": "ok"})
    parent = WorkflowSpec("flow", "begin", {"begin": begin, "end": ending})
    child = WorkflowSpec("child", "rest", {"rest": rest, "end": ending})
    stage, name = await staged(bed, parent, child), name_of(bed)
    await schedule_flow(bed.runtime, stage.flows, name, "flow", delay_s=0)
    [row] = await runs_of(stage, name, 1)
    sub = (await stage.runs.state(row.run_id)).output["sub"]["sub_run_id"]
    await stage.waits(sub)
    await stage.runs.resume(sub, "ok", "late")

    assert (await stage.ended(sub)).output == {"out": "late"}


async def test_an_invalid_schedule_of_a_flow_is_refused_at_the_call(bed: Bed) -> None:
    """Nothing is written. A repeated call changes nothing; another flow is a difference."""
    stage, name = await staged(bed, END, replace(END, workflow_id="other")), name_of(bed)

    async def create(flow: str, **more: Any) -> Any:
        return await schedule_flow(bed.runtime, stage.flows, name, flow, cron=DAILY, **more)

    with pytest.raises(GraphError, match=r"flow 'none': app .* but flow, other"):
        await create("none")
    with pytest.raises(GraphError, match="_runtime"):
        await create("flow", vars={"_runtime": {}})
    with pytest.raises(MessageTooLargeError):
        await create("flow", vars={"n": "x" * 300_000})
    with pytest.raises(UnknownScheduleError):
        await bed.runtime.schedules.get(name)
    schedule = await create("flow", vars={"n": 1})
    assert await create("flow", vars={"n": 1}) == schedule
    with pytest.raises(ScheduleExistsError, match="agent_id"):
        await create("other", vars={"n": 1})
