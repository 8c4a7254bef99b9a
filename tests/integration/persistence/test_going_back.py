"""Another life of the database that does not know the last commits, below stores that stay open."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.commit import Committed, Conflict, LeaseLost
from actors._kernel.runtime.ids import AgentId
from actors.errors import LeaseLostError
from tests.conformance.bed import DESK, message, result, started
from tests.harness import servers
from tests.integration.persistence.hosts import host, sql

if TYPE_CHECKING:
    from compose.embedded import PostgresServer
    from tests.harness.servers import OwnPostgres

SCHEMA = "going_back"


@pytest.fixture
def server(own_postgres: OwnPostgres) -> PostgresServer:
    """A durable server of this test's own."""
    return own_postgres(durable=True)


async def test_a_lost_epoch_is_not_assigned_again(server: PostgresServer) -> None:
    """What was done by the right that is forgotten is refused, also when its owner claims again."""
    async with host(server.url, SCHEMA) as bed:
        run = await bed.begin()
        standby = await servers.copy_of(server)
        await bed.store.shards.release(list(bed.leases.values()))
        await bed.claim()
        forgotten_lease = bed.lease_of(DESK)
        old = run.lease
        await asyncio.to_thread(servers.fail_over, server, standby)
        outcome = await bed.store.commits.commit(run.turn(result("1")))
        await sql(server.url, SCHEMA, "update shards set owner = null")
        await bed.store.shards.heartbeat(bed.owner, list(bed.leases.values()))
        await bed.claim()

        assert forgotten_lease is not None
        assert bed.lease_of(DESK) != forgotten_lease
        assert isinstance(outcome, LeaseLost)
        with pytest.raises(LeaseLostError):
            await bed.store.commits.append(old, [result("1")], expected_seq=run.seq)
        assert await run.append(result("1")) == run.seq


@pytest.mark.parametrize("is_behind", [True, False])
async def test_a_commit_that_starts_a_run_is_not_written_to_another_incarnation(
    server: PostgresServer, *, is_behind: bool
) -> None:
    """It was made by what the life before said; one that goes on says where its log ends."""
    async with host(server.url, SCHEMA) as bed:
        going = await bed.begin()
        queued = await bed.submit(agent=AgentId("clerk", "b"))
        standby = await servers.copy_of(server)
        behind = await bed.begin(agent=AgentId("clerk", "c"))
        await asyncio.to_thread(server.kill)
        turns = type(going)(bed, queued.run_id, AgentId("clerk", "b"))
        writing = asyncio.gather(
            turns.send(turns.turn(started(turns.agent))),
            going.send(going.turn(result("1"))),
            behind.send(behind.turn(result("1"))),
        )
        await asyncio.sleep(0)
        if is_behind:
            await asyncio.to_thread(servers.fail_over, server, standby)
        else:
            await asyncio.to_thread(server.start)
        began, went_on, forgotten_outcome = await writing

        assert began == Conflict(-1)
        assert isinstance(went_on, Committed)
        assert isinstance(forgotten_outcome, Committed) is not is_behind
        assert isinstance(await turns.send(turns.turn(started(turns.agent))), Committed)


async def test_lost_numbers_are_not_assigned_again(server: PostgresServer) -> None:
    """Hosts remember places of messages: another one never has the place of one that is forgotten."""
    async with host(server.url, SCHEMA) as bed:
        await bed.store.arrivals.deliver([message(id="a")])
        standby = await servers.copy_of(server)
        last = await bed.store.arrivals.deliver([message(id=f"b{n}") for n in range(100)])
        await asyncio.to_thread(servers.fail_over, server, standby)
        [first] = await bed.store.arrivals.deliver([message(id="c")])

    assert first.arrival > last[-1].arrival


async def test_a_host_is_notified_once_of_another_incarnation_and_before_anything_is_asked_of_it(
    server: PostgresServer,
) -> None:
    """A connection that is made again to the same life tells nothing."""
    async with host(server.url, SCHEMA) as bed:
        nudge_kinds: list[str] = []
        bed.store.set_nudge_hook(lambda nudge: nudge_kinds.append(nudge.kind))
        await bed.store.arrivals.deliver([message(id="a")])
        await sql(
            server.url,
            SCHEMA,
            """select pg_terminate_backend(pid) from pg_stat_activity
            where backend_type = 'client backend' and pid <> pg_backend_pid()""",
        )
        await asyncio.gather(
            bed.store.arrivals.deliver([message(id="b")]), bed.store.backlog.open_runs(bed.shards)
        )
        assert "incarnation" not in nudge_kinds
        for _ in range(2):
            await asyncio.to_thread(server.restart)
            nudge_kinds.clear()
            await asyncio.gather(
                bed.store.arrivals.deliver([message(id="c")]),
                bed.store.backlog.open_runs(bed.shards),
            )
            assert nudge_kinds.count("incarnation") == 1


async def test_incarnations_that_do_not_know_of_each_other_give_no_number_twice(
    server: PostgresServer,
) -> None:
    """Two standbys of one age take over, one after the other: the second knows nothing of the first."""
    async with host(server.url, SCHEMA) as bed:
        standbys = [await servers.copy_of(server) for _ in range(2)]
        places: list[int] = []
        epochs: list[int] = []
        for n, standby in enumerate(standbys):
            await asyncio.to_thread(servers.fail_over, server, standby)
            arrivals = await bed.store.arrivals.deliver([message(id=f"{n}.{m}") for m in range(20)])
            places += [item.arrival for item in arrivals]
            await bed.store.shards.release(list(bed.leases.values()))
            await sql(server.url, SCHEMA, "update shards set owner = null")
            await bed.claim()
            epochs.append(next(iter(bed.leases.values())).epoch)

    assert places == sorted(set(places))
    assert epochs[0] < epochs[1]
