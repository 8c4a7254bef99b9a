"""Sessions that retention reads: idle sessions, sessions of a project, and logs of their tasks."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

import pytest

from actors._kernel.agent.agent import NewSession, SessionChange
from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.stores.errors import SessionActiveError
from tests.conformance.bed import Turns, child_spawned, result, started
from tests.conformance.clock import ManualClock
from tests.conformance.talk import terms

if TYPE_CHECKING:
    from tests.conformance.bed import Bed

ENDED: Final = SessionChange(("ended",))
STARTED: Final = SessionChange(("started",))
SOON: Final = timedelta(hours=1)


def chat(key: str, tenant: str = "default") -> AgentId:
    """The agent of a session."""
    return AgentId("desk", key, tenant)


async def begin(bed: Bed, agent: AgentId, project: str = "whales") -> Turns:
    """A run of a session that has started."""
    submitted = await bed.submit(agent=agent, session=NewSession(project))
    run = Turns(bed, submitted.run_id, agent)
    await run.commit(run.turn(started(agent), session=STARTED))
    return run


async def ended(bed: Bed, agent: AgentId, project: str = "whales") -> Turns:
    """A run of a session that has ended."""
    run = await begin(bed, agent, project)
    await run.complete(session=ENDED)
    return run


async def pass_time(bed: Bed) -> None:
    """Let time pass, so that a later fact has a later time."""
    if isinstance(bed.clock, ManualClock):
        bed.clock.advance(1)


async def test_sessions_are_paged_by_their_ids(bed: Bed) -> None:
    """Sessions of a tenant and an app, of all projects or of one, without sessions that are being deleted."""
    store = bed.store.data.sessions
    for key, project in (("b", "whales"), ("a/1", "whales"), ("ä", "ships"), ("c", "whales")):
        await ended(bed, chat(key), project)
    await ended(bed, AgentId("clerk", "x"))
    await ended(bed, chat("b", "acme"))
    await store.begin_delete(chat("c"))

    whole = await store.page("default", "desk")
    assert [row.key for row in whole] == ["a/1", "b", "ä"]
    assert [row.key for row in await store.page("default", "desk", limit=1)] == ["a/1"]
    behind = await store.page("default", "desk", after=whole[0], limit=1)
    assert [row.key for row in behind] == ["b"]
    assert await store.page("default", "desk", after=whole[-1]) == []
    assert [row.key for row in await store.page("default", "desk", project="ships")] == ["ä"]
    assert await store.page("acme", "desk") == [chat("b", "acme")]


async def test_idle_sessions_are_those_without_open_runs_whose_last_fact_is_older(bed: Bed) -> None:
    """Oldest first, together with sessions whose deletion has started."""
    store = bed.store.data.sessions
    for key in ("first", "second", "begun"):
        await ended(bed, chat(key))
        await pass_time(bed)
    opened = await begin(bed, chat("open"))
    await ended(bed, chat("first", "acme"))
    await store.begin_delete(chat("begun"))
    later = bed.clock.now() + SOON

    idle = await store.idle("default", "desk", before=later)
    assert [row.key for row in idle] == ["first", "second", "begun"]
    assert [row.key for row in await store.idle("default", "desk", before=later, limit=1)] == [
        "first"
    ]
    second = await store.get(chat("second"))
    assert second is not None
    assert await store.idle("default", "desk", before=second.last_at) == [chat("first")]
    await opened.complete(session=ENDED)
    assert chat("open") in await store.idle("default", "desk", before=later)


async def test_a_session_that_was_used_since_is_not_deleted(bed: Bed) -> None:
    """The last fact is compared under the lock. A session whose deletion has started is deleted at any age."""
    store = bed.store.data.sessions
    await ended(bed, chat("s"))
    row = await store.get(chat("s"))
    assert row is not None
    assert not await store.begin_delete(chat("s"), unless_since=row.last_at)
    assert await store.get(chat("s")) == row
    run = await begin(bed, chat("s"))
    with pytest.raises(SessionActiveError):
        await store.begin_delete(chat("s"), unless_since=bed.clock.now() + SOON)
    await run.complete(session=ENDED)
    assert await store.begin_delete(chat("s"), unless_since=bed.clock.now() + SOON)
    assert await store.begin_delete(chat("s"), unless_since=row.last_at)


async def test_ended_runs_of_tasks_are_found_below_an_agents(bed: Bed) -> None:
    """At any depth, by outcome, with the size of their logs. A swept run is not found again."""
    boss, other = await begin(bed, chat("s")), await begin(bed, chat("t"))
    task = terms().model_copy(update={"task": "card 1"})
    spawned = [
        boss.child("0", AgentId("clerk", "1"), supervision=task),
        boss.child("1", AgentId("clerk", "2"), supervision=task),
        boss.child("2", AgentId("clerk", "3"), supervision=terms()),
        boss.child("3", AgentId("clerk", "4"), supervision=task),
    ]
    await boss.commit(boss.turn(*map(child_spawned, spawned), spawned=tuple(spawned)))
    done, failed, plain, opened = [await boss.of_child(child).start() for child in spawned]
    below = done.child("0", AgentId("clerk", "5"), supervision=task, depth=2)
    await done.commit(done.turn(child_spawned(below), spawned=(below,)))
    deep = await done.of_child(below).start()
    await deep.cancel("enough")
    await done.commit(done.turn(result("9")))
    await done.complete("yes")
    await failed.fail("no")
    await plain.complete()

    lists = bed.store.lists
    every = [RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED]
    by_id = {task.run_id: task for task in await lists.tasks(chat("s"), status=every)}
    assert by_id.keys() == {done.run_id, failed.run_id, deep.run_id}
    assert [task.run_id for task in await lists.tasks(chat("s"), status=every)] == sorted(by_id)
    ended_row = by_id[done.run_id]
    assert (ended_row.agent_id, ended_row.task, ended_row.status) == (
        AgentId("clerk", "1"),
        "card 1",
        RunStatus.COMPLETED,
    )
    assert ended_row.entries == done.seq + 1
    assert ended_row.size_bytes > by_id[deep.run_id].size_bytes > 0
    tasks = {
        task.run_id: task.task for task in await lists.tasks(chat("s"), status=every, every=True)
    }
    assert tasks == {run_id: task.task for run_id, task in by_id.items()} | {plain.run_id: ""}
    [only] = await lists.tasks(chat("s"), status=[RunStatus.FAILED])
    assert only.run_id == failed.run_id
    assert await lists.tasks(chat("t"), status=every) == []

    ids = [done.run_id, failed.run_id, opened.run_id, other.run_id]
    assert await bed.store.retention.sweep_these(ids) == 2
    assert await bed.store.retention.sweep_these(ids) == 0
    assert [task.run_id for task in await lists.tasks(chat("s"), status=every)] == [deep.run_id]
    cleared_tasks = {
        task.run_id: task for task in await lists.tasks(chat("s"), status=every, every=True)
    }
    assert (set(cleared_tasks), cleared_tasks[done.run_id].entries) == (set(tasks), 0)
    row = await bed.store.reads.run(done.run_id)
    assert row is not None
    assert (row.status, row.swept, row.result) == (RunStatus.COMPLETED, True, None)
    still = await bed.store.reads.run(opened.run_id)
    assert still is not None
    assert not still.swept
