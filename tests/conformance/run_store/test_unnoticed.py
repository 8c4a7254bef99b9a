"""The contract of every `RunStore`: changes whose notifications were lost are found by a scan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.waits import WakeSet
from tests.conformance.talk import CLERK

if TYPE_CHECKING:
    from tests.conformance.bed import Bed


async def unnoticed(bed: Bed, younger_than_s: float = 60.0) -> list[Nudge]:
    """Return what the scan finds for the bed's host, in the order of kinds."""
    nudges = await bed.store.backlog.unnoticed(list(bed.leases), younger_than_s=younger_than_s)
    return sorted(nudges, key=lambda nudge: nudge.kind)


@pytest.mark.item(229)
async def test_a_child_that_nobody_started_is_found_while_it_is_young(bed: Bed) -> None:
    """A started or old child is not returned."""
    parent = await bed.begin()
    child = await parent.spawn("0", CLERK)

    nudges = await unnoticed(bed)
    assert nudges == [Nudge("run", CLERK, child.run_id)]
    assert await unnoticed(bed, younger_than_s=0.0) == []
    await child.start()
    assert await unnoticed(bed) == []


@pytest.mark.item(232)
async def test_an_answer_for_a_suspended_run_is_found_until_it_is_taken(bed: Bed) -> None:
    """Answers without a wait and answers of executing runs are not returned."""
    parent = await bed.begin()
    child, other = await parent.spawn("0", CLERK), await parent.spawn("1", CLERK)
    for run in (child, other):
        await run.start()
        await run.complete(7)
    assert await unnoticed(bed) == []

    await parent.suspend(WakeSet(runs=(child.run_id,)))

    assert await unnoticed(bed) == [Nudge("signal", parent.agent, parent.run_id)]
    await parent.commit(parent.turn(take_answers=(child.run_id,)))
    await parent.suspend(WakeSet(runs=("another",)))
    assert await unnoticed(bed) == []


@pytest.mark.item(239)
async def test_runs_that_were_asked_to_stop_are_found_until_they_have(bed: Bed) -> None:
    """Parent and child are returned until their owners have written the end."""
    parent = await bed.begin()
    child = await parent.spawn("0", CLERK)
    await child.start()
    await bed.store.arrivals.request_cancel(parent.run_id, reason="enough")

    run_ids = {nudge.run_id for nudge in await unnoticed(bed)}
    assert run_ids == {parent.run_id, child.run_id}
    await child.cancel("enough")
    assert await unnoticed(bed) == [Nudge("cancel", parent.agent, parent.run_id)]


async def test_nothing_of_foreign_shards_is_named(bed: Bed) -> None:
    """Only changes of the host's own agents are returned."""
    parent = await bed.begin()
    await parent.spawn("0", CLERK)

    assert await bed.store.backlog.unnoticed([], younger_than_s=60.0) == []


async def test_an_owner_reads_no_run_that_sleeps(bed: Bed) -> None:
    """Of a sleeping run only agent and priority are read; a run with an event is read whole."""
    runs = {name: await bed.begin(agent=AgentId("desk", name)) for name in "abcde"}
    for name in "abcd":
        await runs[name].suspend(WakeSet(signals=("go",)))
    await bed.store.arrivals.signal(runs["a"].run_id, "go", 1, message_id="m", sender="client:x")
    child = await runs["e"].spawn("0", CLERK)
    await child.start()
    await child.complete(7)
    await runs["e"].suspend(WakeSet(runs=(child.run_id,)))
    await bed.store.arrivals.request_cancel(runs["b"].run_id, reason="enough")

    awake = await bed.store.backlog.open_runs(bed.shards, asleep=False)
    sleepers = await bed.store.backlog.sleepers(bed.shards)

    assert {row.agent_id.key for row in awake} == {"a", "b", "e"}
    assert {name for agents in sleepers.values() for name in agents} >= {"desk/c", "desk/d"}
    assert len(await bed.store.backlog.open_runs(bed.shards)) == 5
