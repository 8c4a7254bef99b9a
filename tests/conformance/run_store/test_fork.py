"""The contract of every `RunStore`: a run that continues from the log of another run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.agent import ExecutionBudget
from actors._kernel.runtime.ids import RunId
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.rows import ForkPoint
from actors._kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors._runtime.worker.launcher import begin_fork
from actors.errors import ConcurrentAppendError, ContractError, UnknownRunError
from tests.conformance.bed import DESK, result
from tests.conformance.talk import terms

if TYPE_CHECKING:
    from actors._kernel.runtime.rows import RunRow
    from tests.conformance.bed import Bed, Turns


async def row_of(bed: Bed, run_id: RunId) -> RunRow:
    """The run as stored."""
    row = await bed.store.reads.run(run_id)
    assert row is not None
    return row


async def ended(bed: Bed) -> Turns:
    """A run of four entries that has completed."""
    policy = RetryPolicy(max_retries=7)
    mine = terms("old", execution=ExecutionBudget(deadline_s=60))
    run = await bed.begin(policy=policy, priority=2, supervision=mine)
    await run.append(result("1", "one"), result("2", "two"))
    await run.complete("done")
    return run


async def test_a_fork_is_a_queued_run_of_the_same_agent(bed: Bed) -> None:
    """A fork has no parent, its own tree, the source's terms and no entry yet. The source is unchanged."""
    run = await ended(bed)
    before = await row_of(bed, run.run_id)

    forked = await bed.store.operators.fork(run.run_id, at_seq=1)

    row = await row_of(bed, forked.run_id)
    assert (row.status, row.agent_id, row.parent, row.last_seq) == (
        RunStatus.PENDING,
        DESK,
        None,
        -1,
    )
    assert row.fork == ForkPoint(run.run_id, 1)
    assert (row.priority, row.retry_policy, row.root) == (2, RetryPolicy(max_retries=7), row.run_id)
    assert row.deadline_at is not None
    assert row.arrival > before.arrival
    assert await row_of(bed, run.run_id) == before
    assert row.run_id in {
        open_run.run_id for open_run in await bed.store.backlog.open_runs(bed.shards)
    }
    assert await bed.store.operators.refold(row.run_id) == row


async def test_forking_twice_is_once_and_a_copy_is_another(bed: Bed) -> None:
    """Also for concurrent calls. The id is derived from run, seq and copy."""
    run = await ended(bed)

    twice = await asyncio.gather(
        *(bed.store.operators.fork(run.run_id, at_seq=1) for _ in range(3))
    )
    others = [
        await bed.store.operators.fork(run.run_id, at_seq=2),
        await bed.store.operators.fork(run.run_id, at_seq=1, copy=1),
    ]

    assert len({done.run_id for done in twice}) == 1
    assert len({done.run_id for done in (*twice, *others)}) == 3
    assert len(await bed.store.lists.runs(agent=DESK)) == 4


async def test_what_cannot_be_forked_is_refused(bed: Bed) -> None:
    """An unknown run, a seq that does not exist, and a swept run are refused; nothing is written."""
    run = await ended(bed)
    with pytest.raises(UnknownRunError):
        await bed.store.operators.fork(RunId("0" * 32), at_seq=0)
    for seq in (-1, 4):
        with pytest.raises(ContractError, match="0 to 3"):
            await bed.store.operators.fork(run.run_id, at_seq=seq)
    early = await bed.store.operators.fork(run.run_id, at_seq=0)
    await asyncio.sleep(0.002)
    assert await bed.store.retention.sweep(older_than_s=-1) == 1

    with pytest.raises(UnknownRunError):
        await bed.store.operators.fork(run.run_id, at_seq=1)
    assert (await bed.store.operators.fork(run.run_id, at_seq=0)).run_id == early.run_id


async def test_the_owner_gives_a_fork_its_log(bed: Bed) -> None:
    """The log has the source's entries up to the seq and the fork entry.

    Then the run is like an interrupted one.
    """
    run = await ended(bed)
    forked = await bed.store.operators.fork(run.run_id, at_seq=1)
    lease = bed.lease_of(DESK)
    assert lease is not None

    await begin_fork(bed.store, lease, await row_of(bed, forked.run_id))

    (loaded,) = await bed.store.reads.load([forked.run_id])
    assert [(e.kind, e.position) for e in loaded.entries] == [
        (K.RUN_STARTED, ""),
        (K.EFFECT_RESULT, "1"),
        (K.RUN_RESUMED, ""),
    ]
    assert loaded.entries[1].payload["value"] == "one"
    assert (loaded.row.status, loaded.row.attempt) == (RunStatus.RUNNING, 1)
    assert await bed.store.operators.refold(forked.run_id) == loaded.row


async def test_a_fork_gets_its_log_once(bed: Bed) -> None:
    """A repeated start, for example after a lost answer, returns that the fork has its log."""
    run = await ended(bed)
    forked = await bed.store.operators.fork(run.run_id, at_seq=1)
    lease = bed.lease_of(DESK)
    assert lease is not None
    queued = await row_of(bed, forked.run_id)
    await begin_fork(bed.store, lease, queued)
    begun = await row_of(bed, forked.run_id)

    with pytest.raises(ConcurrentAppendError):
        await begin_fork(bed.store, lease, queued)

    assert await row_of(bed, forked.run_id) == begun


async def test_a_fork_whose_source_was_swept_fails(bed: Bed) -> None:
    """The run fails with an error that names the swept source."""
    if bed.backend == "composed":
        pytest.skip("composed lacks sweeping of a log that was given to it")
    run = await ended(bed)
    forked = await bed.store.operators.fork(run.run_id, at_seq=1)
    await asyncio.sleep(0.002)
    await bed.store.retention.sweep(older_than_s=-1)
    lease = bed.lease_of(DESK)
    assert lease is not None

    await begin_fork(bed.store, lease, await row_of(bed, forked.run_id))

    row = await row_of(bed, forked.run_id)
    assert row.status is RunStatus.FAILED
    assert "swept" in str((row.error or {})["message"])
