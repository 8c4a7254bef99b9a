"""Hosts share the shards: who takes what, who gives back, and that it comes to rest."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.ids import (
    PARTITIONS,
    AgentId,
    HostIncarnation,
    ShardId,
    instance_shard,
    scope_of,
    undeclared_shard,
)
from actors._kernel.stores.shards import Serves
from persistence.postgres import StoreSettings, open_store
from tests.harness.slow import BUSY_S
from tests.integration.persistence.fleet import DESKS, Fleet, fleet_on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SOLO = AgentId("solo", "x", "acme")
ALONE = Serves(agents=(SOLO,))


@pytest.fixture
async def fleet(postgres_dsn: str, schema: str) -> AsyncIterator[Fleet]:
    """No host yet."""
    async with fleet_on(postgres_dsn, schema) as fleet:
        yield fleet


async def test_a_second_host_has_half_of_the_shards_one_heartbeat_after_it_came(
    fleet: Fleet,
) -> None:
    """The first one took all of them, is told the surplus, and gives that back."""
    first = await fleet.arrive("h1")
    alone = first.count()
    second = await fleet.arrive("h2")
    report = await first.beat()
    leases = await second.claim()

    assert alone == PARTITIONS
    assert [(len(s.shards), s.count) for s in report.surplus] == [(16, 8)]
    assert (first.count(), second.count()) == (8, 8)
    assert len(leases) == 8
    assert (await first.beat()).surplus == (await second.beat()).surplus == ()


@pytest.mark.parametrize(
    ("capacities", "counts"),
    [
        ((1000, 1000, 1000), [6, 5, 5]),
        ((1, 3), [12, 4]),
        ((1000,) * 5, [4, 3, 3, 3, 3]),
        ((1,) * 20, [1] * 16 + [0] * 4),
        ((1, 1_000_000_000), [16, 0]),
    ],
    ids=str,
)
async def test_shares_follow_capacity_and_converge(
    fleet: Fleet, capacities: tuple[int, ...], counts: list[int]
) -> None:
    """Two rounds after the last arrival every share is exact, and ten rounds later nothing moved."""
    for n, capacity in enumerate(capacities):
        await fleet.arrive(f"h{n}", capacity=capacity, readers=1)
    await fleet.round()
    await fleet.round()
    settled_owners = await fleet.owners()
    settled_counts = fleet.counts()
    for _ in range(10):
        await fleet.round()

    assert settled_counts == counts
    assert await fleet.owners() == settled_owners


async def test_a_host_without_a_setting_has_the_default_capacity(fleet: Fleet) -> None:
    """A host of the release before claims beside one of this release and gets half."""
    first = await fleet.arrive("h1")
    await fleet.sql("select claim_shards('old', interval '9 s', '{desk}', '{}', '{}', 100)")
    await first.beat()
    rows = await fleet.sql(
        "select shard, epoch, expires_at"
        " from claim_shards('old', interval '9 s', '{desk}', '{}', '{}', 100)"
    )

    assert (first.count(), len(rows)) == (8, 8)


async def test_odd_shards_of_many_types_do_not_fall_to_the_same_host(fleet: Fleet) -> None:
    """Each type has 16 shards for three hosts; over 30 types no host has much more than a third."""
    serves = Serves(types=tuple(f"t{n}" for n in range(30)))
    members = [await fleet.arrive(f"h{n}", serves) for n in range(3)]
    await fleet.round()
    await fleet.round()

    assert None not in (await fleet.owners()).values()
    assert all(abs(len(member.leases) - 160) <= 12 for member in members)


async def test_shares_always_add_up(fleet: Fleet) -> None:
    """Whatever the capacities and the sets of types, each served type's shares are its shards."""
    await fleet.arrive("h0", Serves(types=("a", "b", "c")))
    chance = random.Random(7)
    for n in range(60):
        types = chance.sample(["a", "b", "c"], chance.randint(0, 3))
        await fleet.sql(
            "insert into hosts (incarnation, expires_at, types, capacity)"
            " values ($1, clock_timestamp() + interval '1 h', $2, $3)",
            f"x{n}",
            types,
            chance.choice([1, 7, 1000, 2**31 - 1]),
        )
        rows = await fleet.sql(
            "select x.type, sum(x.share)::int as sum, min(x.share) as least from hosts h,"
            " lateral fair_share(h.incarnation, clock_timestamp()) x"
            " group by x.type order by x.type"
        )
        assert [tuple(row)[:2] for row in rows] == [("a", 16), ("b", 16), ("c", 16)]
        assert min(row["least"] for row in rows) >= 0


@pytest.mark.parametrize("has_shards", [True, False], ids=["with shards", "empty-handed"])
async def test_a_host_that_leaves_is_not_counted_any_more(fleet: Fleet, has_shards: bool) -> None:
    """Though its lease lasts on and its heartbeat is heard once more, the others get everything."""
    first, second, third = [await fleet.arrive(f"h{n}") for n in range(3)]
    if has_shards:
        await fleet.round()
        await fleet.round()
        await third.give_up()
    else:
        await third.leave()
    await third.beat()
    del fleet.members["h2"]
    await fleet.round()
    await fleet.round()

    assert (first.count(), second.count()) == (8, 8)


async def test_a_draining_host_hands_over_shards_that_others_serve(fleet: Fleet) -> None:
    """All of it is surplus as soon as it says that it serves nothing; what only it served stays."""
    first = await fleet.arrive("h1", Serves(types=("desk", "own"), agents=(SOLO,)))
    second = await fleet.arrive("h2")
    await fleet.round()
    await first.leave()
    report = await first.beat()
    await second.claim()

    assert [(s.count, {scope_of(shard).type for shard in s.shards}) for s in report.surplus] == [
        (8, {"desk"})
    ]
    assert second.count() == PARTITIONS
    assert (first.count("own"), first.count("solo")) == (16, 1)
    assert await first.claim() == []


async def test_after_a_crash_the_survivors_claim_all_shards(fleet: Fleet) -> None:
    """Each takes its own part: nobody needs a second try."""
    for name in ("h1", "h2", "h3"):
        await fleet.arrive(name)
    await fleet.round()
    await fleet.round()
    dead = await fleet.die("h3")
    async with asyncio.TaskGroup() as tasks:
        for member in fleet.members.values():
            tasks.create_task(member.claim())

    assert dead.count() >= 5
    assert fleet.counts() == [8, 8]
    assert "h3" not in (await fleet.owners()).values()
    assert (
        len((await dead.store.shards.heartbeat(dead.owner, list(dead.leases.values()))).lost) >= 5
    )


@pytest.mark.item(172)
async def test_every_shard_of_a_dead_host_is_taken_within_the_lease_and_two_seconds(
    fleet: Fleet,
) -> None:
    """Of types that others serve, of a type that only it served, and its instances."""
    quick: dict[str, Any] = {"lease_s": 4.0, "heartbeat_s": 0.5}
    both = [await fleet.arrive(name, **quick) for name in ("h1", "h2")]
    third = await fleet.arrive("h3", Serves(types=("desk", "rare"), agents=(SOLO,)), **quick)
    for _ in range(2):
        await fleet.round()
    all_owned = "select count(*) from shards where owner = any('{h1,h2}')"

    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        for member in both:
            await stack.enter_async_context(member.beating())
        died_at = time.monotonic()
        await third.beat()
        watches = [tasks.create_task(member.watch()) for member in both]
        async with asyncio.timeout(20):
            while (await fleet.sql(all_owned))[0][0] < 33:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        took_s = time.monotonic() - died_at
        for watch in watches:
            watch.cancel()

    assert 3.9 < took_s < 4 + 2 + BUSY_S
    assert [member.count() for member in both] == [8, 8]


async def test_hosts_share_only_types_that_both_serve(fleet: Fleet) -> None:
    """A type that one of them serves is its alone."""
    first = await fleet.arrive("h1", Serves(types=("a", "b")))
    second = await fleet.arrive("h2", Serves(types=("b", "c")))
    await fleet.round()

    assert [first.count(t) for t in "abc"] == [16, 8, 0]
    assert [second.count(t) for t in "abc"] == [0, 8, 16]


async def test_an_instance_belongs_to_the_first_host_that_names_it(fleet: Fleet) -> None:
    """A second one that names it too gets it when the first gives it up or dies, and not before."""
    first = await fleet.arrive("h1", ALONE)
    second = await fleet.arrive("h2", ALONE)
    other = await fleet.arrive("h3", Serves(agents=(AgentId("solo", "y"),)))
    for _ in range(3):
        await fleet.round()
    before = (first.count("solo"), second.count("solo"), other.count("solo"))
    await fleet.die("h1")
    await fleet.round()

    assert before == (1, 0, 1)
    assert set(second.leases) == {instance_shard(SOLO)}


async def test_unserved_shards_are_claimed_and_released(fleet: Fleet) -> None:
    """Undeclared mail goes to some host at once; partitions and an instance wait a moment for theirs."""
    member = await fleet.arrive("h1")
    await member.store.shards.declare(Serves(types=("rare",), agents=(SOLO,)))
    unknown = undeclared_shard("nobody")
    await fleet.sql("insert into shards (shard, type) values ($1, 'nobody')", unknown)
    await fleet.stay_a_moment()
    at_once = await member.claim()
    await fleet.years_pass()
    shards = {lease.shard for lease in await member.claim()}
    silent = await member.beat()
    server = await fleet.arrive("h2", Serves(types=("rare",), agents=(SOLO,)))
    report = await member.beat()
    await server.claim()

    assert [lease.shard for lease in at_once] == [unknown]
    assert shards == {instance_shard(SOLO), *(ShardId(f"p:rare:{n}") for n in range(16))}
    assert silent.surplus == ()
    assert sorted(surplus.count for surplus in report.surplus) == [1, 16]
    assert (server.count("rare"), server.count("solo")) == (16, 1)
    assert member.leases.keys() >= {unknown}


async def test_a_host_that_is_just_starting_finds_its_shards_free(fleet: Fleet) -> None:
    """Between declaring and claiming nobody else takes them; nor when it restarts at once."""
    other = await fleet.arrive("h1", Serves(types=("other",)))
    first = await fleet.arrive("h2")
    await first.give_up()
    await fleet.stay_a_moment()
    meanwhile = await other.claim()
    again = await fleet.arrive("h3")

    assert meanwhile == []
    assert again.count() == PARTITIONS


async def test_unclaimed_shards_are_claimed_late_and_kept(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """After 15 s any host takes them above its share, says so, and does not play ball with them."""
    first = await fleet.arrive("h1")
    await fleet.arrive("h2")
    await first.beat()
    early = await first.claim()
    await fleet.years_pass()
    late = await first.claim()
    reports = [await first.beat() for _ in range(2)]
    warnings = [r for r in caplog.records if "above this host's share" in r.message]
    await fleet.years_pass()
    later = await first.beat()
    await fleet.members["h2"].claim()

    assert (len(early), len(late)) == (0, 8)
    assert [report.surplus for report in reports] == [(), ()]
    assert len(warnings) == 1
    assert [surplus.count for surplus in later.surplus] == [8]
    assert fleet.counts() == [8, 8]


async def test_shards_free_for_long_fall_to_hosts_that_just_came_without_a_warning(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """The 15 s begin when somebody serves the type."""
    await (await fleet.arrive("h1")).give_up()
    await fleet.years_pass()
    await fleet.sql("delete from hosts")
    second = await fleet.arrive("h2")
    third = await fleet.arrive("h3")
    await second.give_up()
    await third.claim()

    assert third.count() == PARTITIONS
    assert not [r for r in caplog.records if "above this host's share" in r.message]


async def test_the_limit_takes_what_is_the_hosts_own_first(fleet: Fleet) -> None:
    """What nobody serves comes behind what it serves."""
    await (await fleet.arrive("h1", Serves(types=("a",)))).give_up()
    await fleet.years_pass()
    second = await fleet.arrive("h2", Serves(types=("z",)))
    await second.give_up()
    await fleet.years_pass()
    leases = await second.claim(limit=16)

    assert {scope_of(lease.shard).type for lease in leases} == {"z"}
    assert len(await second.claim()) == 16


async def test_a_store_that_only_asks_is_no_host(fleet: Fleet) -> None:
    """A client is never counted when shards are shared."""
    member = await fleet.arrive("h1")
    settings = StoreSettings(url=fleet.url, schema=fleet.schema, owner=HostIncarnation("client"))
    async with open_store(settings) as client:
        await client.shards.declare(DESKS)
        await client.lists.runs()
    report = await member.beat()

    assert [row[0] for row in await fleet.sql("select incarnation from hosts")] == ["h1"]
    assert report.surplus == ()


@pytest.mark.costly
async def test_three_hosts_competing_a_hundred_times_converge_each_time(fleet: Fleet) -> None:
    """After any shards were given up: one owner per epoch, and within two rounds no gap, all fair."""
    serves = Serves(types=("a", "b"))
    members = [await fleet.arrive(f"h{n}", serves) for n in range(3)]
    deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"
    before = (await fleet.sql(deadlocks))[0][0]
    owners_by_epoch: dict[tuple[ShardId, int], HostIncarnation] = {}
    chance = random.Random(3)
    for _ in range(100):
        async with asyncio.TaskGroup() as tasks:
            for member in members:
                shards = sorted(member.leases)
                some = chance.sample(shards, chance.randint(0, len(shards)))
                if some:
                    tasks.create_task(member.give_up(*some))
                if chance.random() < 0.3:
                    tasks.create_task(member.claim())
        await fleet.round()
        await fleet.round()
        owners = await fleet.owners()
        for lease in itertools.chain.from_iterable(m.leases.values() for m in members):
            assert (
                owners_by_epoch.setdefault((lease.shard, lease.epoch), lease.owner) == lease.owner
            )
        assert len(owners) == 32
        assert None not in owners.values()
        assert fleet.counts("a") == fleet.counts("b") == [6, 5, 5]

    assert (await fleet.sql(deadlocks))[0][0] == before


async def say(fleet: Fleet, name: str, unable: str | None) -> dict[str, int]:
    """A heartbeat in which a host says why it cannot serve; return its surplus by shard."""
    rows = await fleet.sql(
        "select shard, surplus from heartbeat($1, '60 s'::interval, null, $2)", name, unable
    )
    return {row["shard"]: row["surplus"] for row in rows if row["surplus"] is not None}


@pytest.mark.parametrize("why", ["broker", "blocked"])
async def test_a_host_that_cannot_serve_gives_all_to_one_that_can(fleet: Fleet, why: str) -> None:
    """It takes nothing meanwhile, however long shards are free, and gets its share when it can."""
    unserved = Serves(types=("desk", "gone"))
    first = await fleet.arrive("h1", unserved)
    first.serves = DESKS
    await first.claim()
    second = await fleet.arrive("h2")
    surplus = await say(fleet, "h1", why)
    await first.give_up()
    await fleet.years_pass()
    first_leases = await first.claim()
    leases = await second.claim()
    await say(fleet, "h1", None)
    await second.beat()
    back = await first.claim()

    assert set(surplus) == {lease.shard for lease in leases}
    assert len(leases) == 2 * PARTITIONS, "and what nobody serves"
    assert first_leases == []
    assert sum(scope_of(lease.shard).type == "desk" for lease in back) == PARTITIONS // 2


async def test_agents_of_their_own_go_where_they_are_served_too(fleet: Fleet) -> None:
    """An agent that two hosts have registered is with the one that can serve it."""
    first, second = await fleet.arrive("h1", ALONE), await fleet.arrive("h2", ALONE)
    before = await say(fleet, "h1", None)
    surplus = await say(fleet, "h1", "broker")
    await first.give_up(*(ShardId(shard) for shard in surplus))
    first_leases = await first.claim()
    leases = await second.claim()

    assert before == {}
    assert [lease.shard for lease in leases] == [instance_shard(SOLO)]
    assert first_leases == []


@pytest.mark.parametrize("other", ["broker", "unsure", "returning", "blocked"])
async def test_a_host_keeps_its_shards_where_no_other_one_can_serve_them(
    fleet: Fleet, other: str
) -> None:
    """Neither one that cannot, nor one of which that is not sure, nor one of other types."""
    await fleet.arrive("h1")
    second = await fleet.arrive("h2")
    await fleet.arrive("h3", Serves(types=("clerk",)))
    await fleet.round()
    await say(fleet, "h2", other)
    surplus = await say(fleet, "h1", "broker")

    assert {shard for shard in surplus if scope_of(ShardId(shard)).type == "desk"} == set()
    assert second.count() == PARTITIONS // 2


async def test_a_host_whose_broker_is_just_back_neither_gives_nor_takes(fleet: Fleet) -> None:
    """Its share waits for it: what others have is not theirs to keep."""
    first, second = await fleet.arrive("h1"), await fleet.arrive("h2")
    await fleet.round()
    await say(fleet, "h1", "broker")
    await first.give_up(*list(first.leases)[:4])
    surplus = await say(fleet, "h1", "returning")
    first_leases = await first.claim()
    leases = await second.claim()
    await say(fleet, "h1", None)
    await fleet.round()

    assert (surplus, first_leases, len(leases)) == ({}, [], 4)
    assert (first.count(), second.count()) == (8, 8)
