"""Shards change hands, undeclared mail finds its way, and other processes are told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.commit import Committed, LeaseLost
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId, HostIncarnation, ShardId
from actors._kernel.stores.shards import Serves
from actors.errors import RegistrationError
from tests.conformance.bed import Turns, message, outgoing, result, started
from tests.integration.persistence.hosts import connected, host, sql, store_of, waiting_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conformance.bed import Bed

LATE = AgentId("late", "7", "acme")
CLERK = AgentId("clerk", "7")


@pytest.fixture
async def bed(postgres_dsn: str, schema: str) -> AsyncIterator[Bed]:
    """A host that owns every shard."""
    async with host(postgres_dsn, schema) as bed:
        yield bed


@pytest.mark.item(41)
@pytest.mark.parametrize("whole", [True, False])
async def test_what_came_before_a_type_was_declared_moves_to_its_shards(
    bed: Bed, whole: bool
) -> None:
    """Runs and mail of an unknown agent wait, and can be executed once somebody registers it."""
    submission = await bed.submit(agent=LATE)
    await bed.store.arrivals.deliver([message(id="1", to=LATE), message(id="2", to=LATE)])
    serves = Serves(types=("late",)) if whole else Serves(agents=(LATE,))

    await bed.claim(serves)

    shard = bed.store.shards.shard_of(LATE)
    assert shard in bed.leases
    assert [row.run_id for row in await bed.store.backlog.open_runs([shard])] == [submission.run_id]
    assert len(await bed.store.backlog.who_has_mail([shard])) == 2
    assert (await bed.store.reads.load([submission.run_id]))[0].messages
    run = await Turns(bed, submission.run_id, LATE).start()
    assert isinstance(await run.send(run.turn(result("0"))), Committed)


async def test_messages_and_declaration_at_once_lose_nothing(
    bed: Bed, postgres_dsn: str, schema: str
) -> None:
    """Whatever the order in which they meet, every message ends in a shard that can be claimed."""
    agents = [AgentId("race", str(n)) for n in range(40)]

    async def send() -> None:
        for n, agent in enumerate(agents):
            await bed.store.arrivals.deliver([message(id=str(n), to=agent)])

    async def declare() -> None:
        await asyncio.sleep(0.01)
        await bed.store.shards.declare(Serves(types=("race",)), partitions=4)

    await asyncio.gather(send(), declare(), send())

    rows = await sql(postgres_dsn, schema, "select shard from inbox where agent like 'race/%'")
    assert len(rows) == len(agents)
    assert {row["shard"] for row in rows} <= {f"p:race:{n}" for n in range(4)}


async def test_messages_for_an_agent_of_an_instance_type_wait_for_it(bed: Bed) -> None:
    """The other agents of its type do not take it."""
    first, second = AgentId("solo", "a"), AgentId("solo", "b")
    await bed.claim(Serves(agents=(first,)))
    await bed.store.arrivals.deliver([message(id="1", to=second)])

    assert await bed.store.backlog.who_has_mail(bed.shards) == []
    await bed.claim(Serves(agents=(second,)))
    assert len(await bed.store.backlog.who_has_mail([ShardId("i:default:solo/b")])) == 1


async def test_a_type_in_use_is_not_registered_the_other_way_by_another_process(
    bed: Bed, postgres_dsn: str, schema: str
) -> None:
    """The error says which way it is in use."""
    async with host(postgres_dsn, schema, "h2") as other:
        await bed.claim(Serves(types=("late",)))

        with pytest.raises(RegistrationError, match=r"'late'.*a whole type.*single agents"):
            await other.store.shards.declare(Serves(agents=(LATE,)))


async def test_a_type_keeps_its_partitions(bed: Bed, postgres_dsn: str, schema: str) -> None:
    """The number is fixed by the first declaration; every store computes shards with it."""
    async with host(postgres_dsn, schema, "h2") as other:
        await other.store.shards.declare(Serves(types=("desk",)), partitions=64)

        agents = [AgentId("desk", str(n)) for n in range(50)]
        assert [other.store.shards.shard_of(a) for a in agents] == [
            bed.store.shards.shard_of(a) for a in agents
        ]


@pytest.mark.item(214, 484)
async def test_a_host_that_stops_beating_is_replaced_by_the_databases_clock(
    postgres_dsn: str, schema: str
) -> None:
    """Before the lease time is over nothing is given; then the epoch grows and the old one is out."""
    async with (
        host(postgres_dsn, schema, "h1", lease_s=3) as old,
        host(postgres_dsn, schema, "h2") as new,
    ):
        run = await old.begin()
        early = await new.claim()
        await old.store.shards.heartbeat(old.owner, list(old.leases.values()))
        async with asyncio.timeout(20):
            while not await new.claim():  # noqa: ASYNC110
                await asyncio.sleep(0.05)

        assert early == []
        assert await run.send(run.turn(result("0"))) == LeaseLost()
        assert new.leases[run.lease.shard].epoch == run.lease.epoch + 1


@pytest.mark.item(143)
async def test_eight_hosts_never_hold_one_shard_at_once(postgres_dsn: str, schema: str) -> None:
    """Claiming and giving up as fast as they can, each epoch of each shard has one owner."""
    owners: dict[tuple[ShardId, int], HostIncarnation] = {}

    async def compete(bed: Bed) -> None:
        for _ in range(10):
            leases = await bed.claim()
            for lease in leases:
                assert owners.setdefault((lease.shard, lease.epoch), bed.owner) == bed.owner
            await bed.store.shards.release(leases)

    async with host(postgres_dsn, schema) as first:
        await first.store.shards.release(list(first.leases.values()))

        async def run_host(n: int) -> None:
            async with host(postgres_dsn, schema, f"h{n}") as bed:
                await bed.store.shards.release(list(bed.leases.values()))
                await compete(bed)

        await asyncio.gather(*(run_host(n) for n in range(4)))

    assert len(owners) > 8


async def test_what_is_being_given_up_is_not_claimed_again_as_a_lost_answer(
    bed: Bed, postgres_dsn: str, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A claim that overtakes a release leaves the shard to it, and does not wait for it."""
    own_lease = bed.leases[ShardId("p:desk:0")]
    async with (
        connected(postgres_dsn, schema) as connection,
        host(postgres_dsn, schema, "h2") as other,
        asyncio.TaskGroup() as tasks,
    ):
        async with connection.transaction():
            await connection.execute("select 1 from shards for share")
            releasing = tasks.create_task(bed.store.shards.release([own_lease]))
            await waiting_for(connection)
            overtaking = await bed.claim()
        await releasing
        leases = await other.claim()

    assert overtaking == []
    assert not [r for r in caplog.records if "shards are busy" in r.message]
    assert [lease.shard for lease in leases] == [own_lease.shard]


async def test_the_owner_is_notified_of_changes_by_others(
    bed: Bed, postgres_dsn: str, schema: str
) -> None:
    """Submit, mail, mail by a turn, signal and cancel of another process call the hook, with keys."""
    nudge_queue: asyncio.Queue[Nudge] = asyncio.Queue()
    run, odd = await bed.begin(), 'it\'s "\u00e9\\" {1}'
    await store_of(bed).listening()
    bed.store.set_nudge_hook(nudge_queue.put_nowait)
    async with host(postgres_dsn, schema, "h2") as other:
        submission = await other.submit(agent=AgentId("desk", odd))
        await other.store.arrivals.deliver([message(id="1", to=CLERK)])
        await other.store.arrivals.signal(run.run_id, "go", 1, message_id="1", sender="client:x")
        await other.store.arrivals.request_cancel(run.run_id, reason="enough")
        solo = AgentId("solo", "x")
        await other.claim(Serves(agents=(solo,)))
        sender = await other.begin(agent=solo)
        await sender.commit(sender.turn(started(), outgoing=(outgoing(to=CLERK, id="2"),)))
        async with asyncio.timeout(20):
            nudges = [await nudge_queue.get() for _ in range(6)]

    assert Nudge("run", AgentId("desk", odd), submission.run_id) in nudges
    assert Nudge("signal", run.agent, run.run_id) in nudges
    assert Nudge("cancel", run.agent, run.run_id) in nudges
    assert nudges.count(Nudge("mail", CLERK)) == 2
    assert Nudge("shards") in nudges


async def test_a_host_is_not_notified_of_its_own_changes(bed: Bed) -> None:
    """Its own calls return what they did."""
    nudges: list[Nudge] = []
    await store_of(bed).listening()
    bed.store.set_nudge_hook(nudges.append)
    submission = await bed.submit()
    await bed.store.arrivals.deliver([message(id="1", to=CLERK)])
    await bed.store.arrivals.request_cancel(submission.run_id, reason="x")
    await bed.store.shards.release([])
    await asyncio.sleep(0.1)

    assert submission.local
    assert nudges == []


async def test_hints_that_do_not_fit_one_notification_arrive_all(
    bed: Bed, postgres_dsn: str, schema: str
) -> None:
    """A payload holds 8000 bytes: long keys in one call are told in several."""
    agents = [AgentId("desk", f"{n:04}" + "\U0001f600" * 250) for n in range(60)]
    nudged_agents: set[AgentId | None] = set()
    has_all = asyncio.Event()

    def hook(nudge: Nudge) -> None:
        nudged_agents.add(nudge.agent_id)
        if nudged_agents >= set(agents):
            has_all.set()

    await store_of(bed).listening()
    bed.store.set_nudge_hook(hook)
    async with host(postgres_dsn, schema, "h2") as other:
        await other.store.arrivals.deliver([message(id="1", to=agent) for agent in agents])
        async with asyncio.timeout(20):
            await has_all.wait()
