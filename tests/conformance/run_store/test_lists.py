"""The contract of every `RunStore`: lists of runs and dead letters for operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors._kernel.runtime.commit import Finish
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.log_entry import EntryKind, NewEntry
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.stores.runs import RunFilter
from tests.conformance.bed import DESK

if TYPE_CHECKING:
    from actors._kernel.json import JsonValue
    from tests.conformance.bed import Bed

CLERK = AgentId("clerk", "1")
ACME = AgentId("desk", "1", "acme")
ERROR: dict[str, JsonValue] = {"type": "builtins:ValueError", "message": "boom"}


async def list_runs(bed: Bed, *, limit: int = 100, **conditions: object) -> list[RunId]:
    """Return the runs that match a filter."""
    among = RunFilter(**conditions)  # type: ignore[arg-type]
    return [row.run_id for row in await bed.store.lists.runs(among=among, limit=limit)]


async def test_runs_are_chosen_by_type_tenant_parent_and_time(bed: Bed) -> None:
    """Newest first; a run has to match all conditions."""
    before = bed.in_s(-60)
    run = await bed.begin()
    child = await run.spawn("1", CLERK)
    foreign = (await bed.submit(agent=ACME)).run_id
    after = bed.in_s(60)

    assert await list_runs(bed) == [foreign, child.run_id, run.run_id]
    assert await list_runs(bed, type="desk") == [foreign, run.run_id]
    assert await list_runs(bed, tenant="acme") == [foreign]
    assert await list_runs(bed, tenant="default", type="desk") == [run.run_id]
    assert await list_runs(bed, parent=run.run_id) == [child.run_id]
    assert len(await list_runs(bed, since=before, until=after)) == 3
    assert await list_runs(bed, since=after) == await list_runs(bed, until=before) == []
    open_runs = await bed.store.lists.runs(
        status=[RunStatus.RUNNING], agent=DESK, among=RunFilter(type="desk")
    )
    assert [row.run_id for row in open_runs] == [run.run_id]


async def test_runs_are_listed_in_pages(bed: Bed) -> None:
    """A page starts after the last run of the page before. An unknown run gives an empty page."""
    ids = [(await bed.submit()).run_id for _ in range(5)]
    first = await list_runs(bed, limit=2)
    second = await list_runs(bed, limit=2, after=first[-1])
    third = await list_runs(bed, limit=2, after=second[-1])

    assert [*first, *second, *third] == ids[::-1]
    assert await list_runs(bed, after=ids[0]) == []
    assert await list_runs(bed, after=RunId("0" * 32)) == []


async def test_dead_letters_are_chosen_and_forgotten_by_number(bed: Bed) -> None:
    """Each is deleted once. Redriven dead letters stay, and unknown numbers change nothing."""
    for key in "abc":
        run = await bed.begin(agent=AgentId("desk", key))
        entry = NewEntry(EntryKind.RUN_FAILED, "", {"status": "error", "error": ERROR})
        finish = Finish(RunStatus.FAILED, error=ERROR, dead_letter="max_retries")
        await run.commit(run.turn(entry, then=finish))
    three = [letter.id for letter in await bed.store.lists.dead_letters()]
    await bed.store.operators.redrive(three[:1])

    letters = await bed.store.lists.dead_letters(ids=three[:2])
    discarded_count = await bed.store.operators.discard([*three[:2], 999_999])

    assert [letter.id for letter in letters] == [three[1]]
    assert discarded_count == 1
    assert [letter.id for letter in await bed.store.lists.dead_letters()] == three[2:]
    assert await bed.store.operators.redrive([three[1]]) == []
