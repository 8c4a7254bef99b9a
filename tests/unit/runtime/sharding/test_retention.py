"""What the in-memory store forgets; `test_sweep` has the same on PostgreSQL."""

from __future__ import annotations

import pytest

from actors._kernel.runtime.commit import Finish
from actors._kernel.runtime.log_entry import EntryKind, NewEntry
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.stores.administration import UsageFilter
from actors._runtime.sharding.retention import forget_agent, sweep_all
from actors.errors import ContractError
from tests.conformance.bed import DESK, answer, message
from tests.conformance.clock import ManualClock
from tests.conformance.conftest import memory_bed
from tests.conformance.talk import CLERK

DAY_S = 86_400.0


async def test_nothing_of_a_run_is_kept_for_ever() -> None:
    """Its tombstone and its letters go 8 days after its end; its id stays known, an open child whole."""
    async with memory_bed() as bed:
        assert isinstance(bed.clock, ManualClock)
        await bed.claim()
        dead = await bed.begin(id="dead")
        child = await dead.spawn("1", CLERK)
        entry = NewEntry(EntryKind.RUN_FAILED, "", {"status": "error", "error": {"message": "x"}})
        finish = Finish(RunStatus.FAILED, error={"message": "x"}, dead_letter="explicit")
        await dead.commit(dead.turn(entry, then=finish))
        bed.clock.advance(7 * DAY_S)
        await sweep_all(bed.store, older_than_s=0)
        young = await bed.store.reads.run(dead.run_id), await bed.store.lists.dead_letters()
        bed.clock.advance(2 * DAY_S)
        await sweep_all(bed.store, older_than_s=None)
        for_ever = await bed.store.reads.run(dead.run_id), await bed.store.lists.dead_letters()
        await sweep_all(bed.store, older_than_s=0)
        again = await bed.submit(id="dead")

        assert young[0] is not None
        assert young[0].swept
        assert len(young[1]) == 1
        assert for_ever == young
        assert await bed.store.reads.run(dead.run_id) is None
        assert await bed.store.lists.dead_letters() == []
        assert (again.run_id, again.arrived) == (dead.run_id, None)
        assert (await child.start()).seq == 0


async def test_totals_of_usage_go_after_four_hundred_days() -> None:
    """Also with a shorter retention; not when all is kept."""
    async with memory_bed() as bed:
        assert isinstance(bed.clock, ManualClock)
        await bed.claim()
        run = await bed.begin()
        await run.append(answer("0", input=1))
        bed.clock.advance(DAY_S)
        await run.append(answer("1", input=2))
        totals = []
        for days, older_than_s in ((399, 0), (1.5, None), (0, 600 * DAY_S), (0, 0)):
            bed.clock.advance(days * DAY_S)
            await sweep_all(bed.store, older_than_s=older_than_s)
            totals.append([t.input for t in await bed.store.data.usage.totals(UsageFilter())])

    assert totals == [[1, 2], [1, 2], [1, 2], [2]]


async def test_an_agent_is_forgotten_but_for_the_ids_of_its_messages() -> None:
    """Not while a run of it is open, and nobody else's."""
    async with memory_bed() as bed:
        await bed.claim()
        run = await bed.begin(id="m")
        await bed.store.arrivals.deliver([message(id="waits"), message(id="other", to=CLERK)])
        with pytest.raises(ContractError, match=f"run {run.run_id} of desk/1 is open"):
            await forget_agent(bed.store, DESK)
        await run.commit(run.turn(state={"a": 1}))
        await run.complete()
        counts = await forget_agent(bed.store, DESK)

        assert (counts.state, counts.messages, counts.runs, counts.more) == (1, 1, 1, False)
        assert await bed.store.reads.run(run.run_id) is None
        assert await bed.store.reads.state(DESK) == {}
        assert await bed.store.arrivals.deliver([message(id="waits")]) == []
        assert [await bed.store.lists.pending_count(agent) for agent in (DESK, CLERK)] == [0, 1]


async def test_runs_of_an_agent_are_told_to_stop_first() -> None:
    """And what is said of one that does not end in time names it."""
    async with memory_bed() as bed:
        await bed.claim()
        run = await bed.begin(id="m")
        with pytest.raises(ContractError, match="does a host serve it"):
            await forget_agent(bed.store, DESK, cancel=True, wait_s=0)
        assert (row := await bed.store.reads.run(run.run_id)) is not None
        assert row.cancel_requested == "its agent is forgotten"
        await run.cancel("its agent is forgotten")

        assert (await forget_agent(bed.store, DESK, cancel=True)).runs == 1
