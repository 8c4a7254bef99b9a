"""The contract of every `RunStore`: a sweep deletes data of ended runs and keeps their rows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.agent import HistoryRetention
from actors._kernel.runtime.scheduler import RunStatus
from actors.errors import UnknownRunError
from tests.conformance.bed import result
from tests.conformance.clock import ManualClock
from tests.conformance.talk import CLERK, answers, join_wait, rest, row, terms

if TYPE_CHECKING:
    from tests.conformance.bed import Bed


async def grow_old(bed: Bed) -> None:
    """Wait until ended runs are older than 0 s."""
    if isinstance(bed.clock, ManualClock):
        bed.clock.advance(1)


async def test_a_swept_run_is_a_tombstone(bed: Bed) -> None:
    """Log and result are deleted. Its id and its message's id still return the run, with its status."""
    run = await bed.begin(id="m")
    await run.commit(run.turn(result("0")))
    await run.complete({"big": "value"})
    await grow_old(bed)

    swept = await bed.store.retention.sweep(older_than_s=0)

    tombstone = await row(bed, run)
    assert swept == 1
    assert (tombstone.swept, tombstone.status) == (True, RunStatus.COMPLETED)
    assert (tombstone.result, tombstone.supervision) == (None, None)
    again = await bed.submit(id="m")
    assert (again.run_id, again.arrived) == (run.run_id, None)
    assert await bed.store.retention.sweep(older_than_s=0) == 0


async def test_open_and_young_runs_are_not_swept(bed: Bed) -> None:
    """Open runs of any age stay, and ended runs until they are old enough."""
    opened, ended = await bed.begin(), await bed.begin(agent=CLERK)
    await ended.complete("done")
    await grow_old(bed)

    young = await bed.store.retention.sweep(older_than_s=3600)
    old = await bed.store.retention.sweep(older_than_s=0)

    assert (young, old) == (0, 1)
    assert (await row(bed, opened)).swept is False
    assert opened.seq == (await row(bed, opened)).last_seq


async def test_a_run_with_retention_none_is_deleted_at_once(bed: Bed) -> None:
    """A run with retention NONE is swept at any age."""
    none = terms().model_copy(update={"retention": HistoryRetention.NONE})
    traceless, ordinary_run = await bed.begin(supervision=none), await bed.begin(agent=CLERK)
    await traceless.complete()
    await ordinary_run.complete()

    swept = await bed.store.retention.sweep(older_than_s=3600)

    assert swept == 1
    assert (await row(bed, traceless)).swept
    assert not (await row(bed, ordinary_run)).swept


async def test_who_joined_a_swept_run_has_its_answer(bed: Bed) -> None:
    """Answers belong to the waiting run. A swept run has no answers and gets none."""
    target, joiner = await bed.begin(agent=CLERK), await bed.begin()
    await rest(joiner, join_wait(target))
    await target.complete("done")
    await grow_old(bed)
    await bed.store.retention.sweep(older_than_s=0)

    assert [a.result for a in await answers(bed, joiner)] == ["done"]
    assert (await row(bed, target)).swept


async def test_at_most_so_many_runs_are_swept(bed: Bed) -> None:
    """At most `most` in one call; later calls sweep the others."""
    for _ in range(5):
        await (await bed.begin()).complete()
    await grow_old(bed)

    counts = [await bed.store.retention.sweep(older_than_s=0, limit=2) for _ in range(4)]

    assert counts == [2, 2, 1, 0]


async def test_a_swept_run_cannot_be_redriven(bed: Bed) -> None:
    """Its messages are deleted."""
    run = await bed.begin()
    await run.fail("boom")
    await grow_old(bed)
    await bed.store.retention.sweep(older_than_s=0)

    with pytest.raises(UnknownRunError):
        await bed.store.operators.redrive_run(run.run_id)


async def test_the_log_of_a_swept_run_has_an_end(bed: Bed) -> None:
    """A reader of the remaining log does not wait for more. Only a log outside of the store is kept."""
    run = await bed.begin()
    await run.complete("done")
    await grow_old(bed)
    await bed.store.retention.sweep(older_than_s=0)

    async with asyncio.timeout(20):
        tailed = [entry async for entry in bed.store.reads.tail(run.run_id)]
    read = [entry async for entry in bed.store.reads.entries(run.run_id)]

    assert tailed == read
    assert len(read) == (2 if bed.backend == "composed" else 0)
