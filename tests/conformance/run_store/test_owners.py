"""The contract of every `RunStore`: owners of shards, and refused writes of former owners."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.commit import Committed, LeaseLost
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.stores.shards import Serves
from actors.errors import LeaseLostError, RegistrationError
from tests.conformance.bed import DESK, SERVES, Turns, result

if TYPE_CHECKING:
    from actors._kernel.runtime.log_entry import RunLogEntry
    from tests.conformance.bed import Bed

CLERK = AgentId("clerk", "7")


async def log_of(bed: Bed, run_id: RunId) -> list[RunLogEntry]:
    """The run's whole log."""
    return [entry async for entry in bed.store.reads.entries(run_id)]


async def test_every_agent_of_a_declared_type_has_a_shard_that_can_be_claimed(
    fresh_bed: Bed,
) -> None:
    """The claim returns leases of this owner, epoch 1, not yet expired, for every agent's shard."""
    leases = await fresh_bed.claim()

    shards = {lease.shard for lease in leases}
    assert {fresh_bed.store.shards.shard_of(AgentId("desk", str(n))) for n in range(50)} <= shards
    assert {(lease.owner, lease.epoch) for lease in leases} == {(fresh_bed.owner, 1)}
    assert all(lease.expires_at > fresh_bed.clock.now() for lease in leases)


async def test_a_shard_has_one_owner(bed: Bed) -> None:
    """A second claim returns nothing, for the owner and for another host."""
    async with bed.rival() as rival:
        assert await bed.claim() == []
        assert await rival.claim() == []


async def test_hosts_that_claim_at_once_share_the_shards_without_overlap(fresh_bed: Bed) -> None:
    """Each shard is claimed by exactly one of three hosts."""
    async with fresh_bed.rival("b") as second, fresh_bed.rival("c") as third:
        claims = await asyncio.gather(fresh_bed.claim(), second.claim(), third.claim())

    shards = [lease.shard for claim in claims for lease in claim]
    assert len(shards) == len(set(shards))
    assert fresh_bed.store.shards.shard_of(DESK) in shards


async def test_nothing_is_claimed_by_a_host_that_serves_nothing(fresh_bed: Bed) -> None:
    """Shards go to hosts that can execute their agents."""
    await fresh_bed.store.shards.declare(SERVES)

    assert (
        await fresh_bed.store.shards.claim(owner=fresh_bed.owner, serves=Serves(), limit=10) == []
    )


@pytest.mark.item(484)
async def test_a_host_whose_shard_was_taken_over_can_write_nothing(bed: Bed) -> None:
    """An append raises and a commit is refused. The new owner continues after the log's last entry."""
    run = await bed.begin()
    async with bed.rival() as rival:
        await bed.lose_to(rival)

        with pytest.raises(LeaseLostError):
            await run.append(result("0"))
        assert await run.send(run.turn(result("0"))) == LeaseLost()
        rival_run = Turns(rival, run.run_id, seq=0)
        await rival_run.commit(rival_run.turn(result("0", "rival")))

    entries = await log_of(bed, run.run_id)
    assert [e.payload.get("value") for e in entries[1:]] == ["rival"]


@pytest.mark.item(484)
async def test_a_take_over_while_commits_are_in_flight_lets_each_run_have_one_writer(
    bed: Bed,
) -> None:
    """Commits sent while the shard moves are written or refused whole.

    None is written after one of the new owner.
    """
    runs = [await bed.begin(agent=AgentId("desk", str(n))) for n in range(20)]
    async with bed.rival() as rival:
        flying = [asyncio.create_task(run.send(run.turn(result("0", "old")))) for run in runs]
        await bed.lose_to(rival)
        ends = [await log_of(rival, run.run_id) for run in runs]
        rival_runs = [
            Turns(rival, run.run_id, run.agent, seq=end[-1].seq)
            for run, end in zip(runs, ends, strict=True)
        ]
        for turns in rival_runs:
            await turns.commit(turns.turn(result("1", "new")))
        outcomes = await asyncio.gather(*flying)

    for run, end, outcome in zip(runs, ends, outcomes, strict=True):
        old = [e for e in await log_of(bed, run.run_id) if e.payload.get("value") == "old"]
        assert isinstance(outcome, Committed | LeaseLost)
        assert len(old) == isinstance(outcome, Committed) == len(end) - 1


async def test_every_change_of_owner_grows_the_epoch(bed: Bed) -> None:
    """Releasing a shard and claiming it again starts a new epoch. Commits of the first epoch are refused."""
    run = await bed.begin()
    old = run.turn(result("0"))
    await bed.store.shards.release(list(bed.leases.values()))

    (lease,) = (x for x in await bed.claim() if x.shard == old.lease.shard)

    assert lease.epoch == old.lease.epoch + 1
    assert await bed.store.commits.commit(old) == LeaseLost()
    assert isinstance(await run.send(run.turn(result("0"))), Committed)


async def test_releasing_what_one_does_not_hold_changes_nothing(bed: Bed) -> None:
    """A release with a lease of an older epoch is ignored."""
    run = await bed.begin()
    old = [replace(lease, epoch=0) for lease in bed.leases.values()]

    await bed.store.shards.release(old)

    assert isinstance(await run.send(run.turn(result("0"))), Committed)


async def test_a_silent_host_loses_its_shards(bed: Bed) -> None:
    """After the lease time without a heartbeat other hosts claim the shards, and the report says so."""
    bed.needs("expiry")
    leases = list(bed.leases.values())
    async with bed.rival() as rival:
        await bed.lapse()
        new_leases = await rival.claim()
        report = await bed.store.shards.heartbeat(bed.owner, leases)

    assert {lease.shard for lease in new_leases} == {lease.shard for lease in leases}
    assert set(report.lost) == set(leases)


async def test_a_lease_says_that_the_owner_before_died(bed: Bed) -> None:
    """Its lease ran out. What arrives from then on has a greater number; a shutdown leaves no such mark."""
    bed.needs("expiry")
    run = await bed.begin()
    async with bed.rival() as rival, bed.rival("third") as third:
        await bed.lapse()
        new_leases = await rival.claim()
        again = await rival.submit(agent=AgentId("desk", "after"))
        await rival.store.shards.release(new_leases)
        in_order = await third.claim()
        [row, later] = [
            await third.store.reads.run(run_id) for run_id in (run.run_id, again.run_id)
        ]

    assert row is not None
    assert later is not None
    assert all(lease.broken_at is None for lease in [*bed.leases.values(), *in_order])
    assert all(row.arrival < (lease.broken_at or 0) for lease in new_leases)
    assert all(later.arrival > (lease.broken_at or later.arrival) for lease in new_leases)


async def test_shards_that_another_host_gives_up_were_a_dead_hosts(bed: Bed) -> None:
    """Whoever gives up shards of another owner says that this owner is dead."""
    async with bed.rival() as rival:
        await rival.store.shards.release(list(bed.leases.values()))
        new_leases = await rival.claim()

    assert new_leases
    assert all(lease.broken_at is not None for lease in new_leases)


async def test_a_heartbeat_tells_shards_the_host_does_not_know_of(bed: Bed) -> None:
    """The heartbeat returns a claim whose answer was lost. Known shards are not returned."""
    leases = list(bed.leases.values())

    forgotten = await bed.store.shards.heartbeat(bed.owner, [])
    answer = await bed.store.shards.heartbeat(bed.owner, leases)

    assert set(forgotten.unknown) == {lease.shard for lease in leases}
    assert (answer.unknown, answer.lost) == ((), ())


async def test_a_type_is_a_whole_or_single_agents(fresh_bed: Bed) -> None:
    """Declaring a type in the other mode is refused. Declaring it again in the same mode is not."""
    await fresh_bed.store.shards.declare(SERVES)
    await fresh_bed.store.shards.declare(SERVES)

    with pytest.raises(RegistrationError):
        await fresh_bed.store.shards.declare(Serves(agents=(DESK,)))


async def test_a_single_agent_is_a_shard_that_can_be_claimed(fresh_bed: Bed) -> None:
    """An agent registered as instance runs like those of a whole type."""
    solo = AgentId("solo", "x")
    await fresh_bed.claim(Serves(agents=(solo,)))

    run = await fresh_bed.begin(agent=solo)

    assert isinstance(await run.send(run.turn(result("0"))), Committed)
