"""Two and three host processes on one broker and one database: ownership of shards, and delivery."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING, Final

import pytest

from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.log_entry import EntryKind
from tests.harness.proxy import FaultProxy
from tests.harness.slow import BUSY_S
from tests.system.fleet import HERE, LEFT, RIGHT, numbers_of, publish, volley
from tests.system.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from actors._runtime import Runtime
    from tests.harness.rawnats import RawNats
    from tests.harness.servers import OwnNats
    from tests.integration.compose.commandline import Cli
    from tests.system.fleet import Rows
    from tests.system.processes import Hosts

NODES, MORE, MIXED = f"{HERE}:NODES", f"{HERE}:MORE", f"{HERE}:MIXED"
PARTITIONS: Final = 16
MOVED_S: Final = 5.0
"""Seconds after which idle shards have moved to a new host."""


def nodes(count: int) -> list[AgentId]:
    """Return agents of one type, in several partitions."""
    return [AgentId("node", f"n{i}") for i in range(count)]


def one_after_the_other(seen: list[tuple[str, int]]) -> bool:
    """Return whether each sender's numbers are 0, 1, 2, …: none lost, doubled or overtaken."""
    return all(sent == list(range(len(sent))) for sent in numbers_of(seen).values())


@pytest.mark.item(250)
async def test_idle_shards_are_shared_by_capacity_soon_after_a_host_comes(
    fleet: Hosts, rows: Rows
) -> None:
    """One host has all.

    Beside one of twice its capacity it keeps a third; a third host gets its share, too.
    """
    hosts = [await fleet.serving(NODES, capacity=100)]
    await rows.until_owned("p:node:", {hosts[0].name: PARTITIONS})
    shares = []
    for capacity in (200, 100):
        hosts.append(await fleet.serving(NODES, capacity=capacity))
        begun = time.monotonic()
        names = [host.name for host in hosts]

        async def is_fair(names: list[str] = names) -> bool:
            owned = await rows.owned("p:node:")
            widths = [1, 2, 1][: len(names)]
            exact = [PARTITIONS * width / sum(widths) for width in widths]
            return all(abs(owned[n] - e) < 1 for n, e in zip(names, exact, strict=True))

        await until(is_fair, "fair shares")
        shares.append(time.monotonic() - begun)
    owned = await rows.owned("p:node:")

    assert max(shares) < MOVED_S + BUSY_S
    assert sum(owned.values()) == PARTITIONS
    assert [owned[host.name] for host in hosts] == [4, 8, 4]


@pytest.mark.item(142)
async def test_a_host_gets_the_types_and_the_agents_that_it_serves_and_no_others(
    fleet: Hosts, client: Runtime, rows: Rows
) -> None:
    """Two types and two single agents over two hosts, and messages from each to each."""
    lasting = {"lease_s": 10, "heartbeat_s": 0.25}
    first = await fleet.serving(NODES, f"{HERE}:LEFT_NODE", **lasting)
    second = await fleet.serving(MORE, f"{HERE}:RIGHT_NODE", **lasting)
    node, more = AgentId("node", "x"), AgentId("more", "x")
    await client.send(LEFT, {"n": 0, "then": volley(more, node, RIGHT, LEFT)})
    seen = [await rows.until_seen(agent, 2) for agent in (more, node, RIGHT)]
    seen.append(await rows.until_seen(LEFT, 3))

    assert await rows.owned("p:node:") == {first.name: PARTITIONS}
    assert await rows.owned("p:more:") == {second.name: PARTITIONS}
    assert await rows.owner("i:default:left/a") == first.name
    assert await rows.owner("i:default:right/a") == second.name
    assert all(one_after_the_other(messages) for messages in seen)


@pytest.mark.costly
@pytest.mark.item(142, 481)
async def test_messages_for_an_unserved_type_wait_as_rows_until_a_host_serves_it(  # noqa: PLR0917 - fixtures
    fleet: Hosts, client: Runtime, rows: Rows, cli: Cli, outsider: RawNats
) -> None:
    """An agent and an external client send to it. `doctor` names the type; its first host handles all."""
    await fleet.serving(NODES)
    ghost, writer = AgentId("more", "k"), AgentId("node", "w")
    await client.send(writer, {"n": 0, "then": volley(ghost)})
    for n in range(2):
        await publish(outsider, str(fleet.more["namespace"]), ghost, {"n": n})

    async def unserved() -> dict[str, int]:
        checks = (await cli.call("doctor", "--json")).data["checks"]
        counts: dict[str, int] = next(check["unserved"] for check in checks if "unserved" in check)
        return counts

    async def are_rows() -> bool:
        return await unserved() == {"more": 4}

    await until(are_rows, "four messages that wait for type `more`")
    await fleet.serving(MORE)
    seen = await rows.until_seen(ghost, 4)

    assert numbers_of(seen) == {"agent:node/w": [0, 1], "ext:crm": [0, 1]}
    assert await unserved() == {}


async def test_rows_of_an_unserved_type_are_read_when_the_host_registers_it(
    fleet: Hosts, client: Runtime, rows: Rows
) -> None:
    """A host that registers late is the first to claim shards that no other host serves."""
    first = await fleet.serving(f"{HERE}:RIGHT_NODE")
    first.send(signal.SIGTERM)
    await first.exit_code()
    await client.send(RIGHT, {"n": 0})
    second = await fleet.serving(f"{HERE}:late")

    assert await rows.until_seen(RIGHT, 1) == [("client:local", 0)]
    assert await rows.owner("i:default:right/a") == second.name


@pytest.mark.costly
@pytest.mark.item(172, 250, 481, 486)
async def test_a_killed_hosts_messages_are_handled_by_others_within_its_lease_and_two_seconds(
    fleet: Hosts, client: Runtime, rows: Rows, outsider: RawNats
) -> None:
    """Agents on both hosts and an external client send without pause: nothing lost, doubled, overtaken."""
    lease_s, agents, rounds = 1.5, nodes(8), 0
    doomed = await fleet.serving(NODES, lease_s=lease_s)
    other = await fleet.serving(NODES, lease_s=lease_s)
    half = {doomed.name: PARTITIONS // 2, other.name: PARTITIONS // 2}
    await rows.until_owned("p:node:", half)

    async def write_until(over: asyncio.Event) -> None:
        nonlocal rounds
        while not over.is_set():
            for i, agent in enumerate(agents):
                then = volley(agents[i - 1], agents[i - 3])
                order = {"n": rounds, "then": then}
                await publish(outsider, str(fleet.more["namespace"]), agent, order)
            rounds += 1
            await asyncio.sleep(0.1)  # only the pace

    over = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(write_until(over))
        await rows.until_seen(agents[0], 5)
        doomed.send(signal.SIGKILL)
        killed_at = time.monotonic()
        await rows.until_owned("p:node:", {other.name: PARTITIONS})
        after_s = time.monotonic() - killed_at
        over.set()
    each = rounds * (1 + 2 + 2)
    seen = {agent: await rows.until_seen(agent, each) for agent in agents}

    assert after_s < lease_s + 2 + BUSY_S
    assert {len(messages) for messages in seen.values()} == {each}
    assert all(one_after_the_other(messages) for messages in seen.values())
    assert await rows.count("outbox") == 0


@pytest.mark.item(195, 172)
async def test_a_stopping_host_releases_idle_shards_at_once_and_busy_ones_after_the_drain(
    fleet: Hosts, client: Runtime, rows: Rows, tmp_path: Path
) -> None:
    """A step longer than the drain is executed again on another host; no attempt is counted."""
    ledger = tmp_path / "ledger"
    first = await fleet.serving(MIXED, lease_s=30, drain_s=4)
    run_id = await client.submit(AgentId("stuck", "a"), str(ledger))
    await until(ledger.exists, "the step")
    second = await fleet.serving(MIXED, lease_s=30)
    told_at = time.monotonic()
    first.send(signal.SIGTERM)
    await rows.until_owned("p:node:", {second.name: PARTITIONS})
    is_draining = first.is_alive
    code = await first.exit_code()
    stopped_s = time.monotonic() - told_at
    result = await client.result(run_id)
    row = await client.store.reads.run(run_id)
    [resumed] = [e async for e in client.entries(run_id) if e.kind == EntryKind.RUN_RESUMED]

    assert is_draining, "idle shards go before the drain is over"
    assert code == 0
    assert 4 <= stopped_s < 4 + 2 + BUSY_S
    assert result == "done"
    assert [int(pid) for pid in ledger.read_text().split()] == [first.pid, second.pid]
    assert row is not None
    assert row.attempt == 1
    assert resumed.payload == {"reason": "woken"}


async def test_a_second_signal_ends_a_host_at_once(
    fleet: Hosts, client: Runtime, tmp_path: Path
) -> None:
    """It does not wait for executing runs; the exit code is that of a kill."""
    ledger = tmp_path / "ledger"
    host = await fleet.serving(MIXED)
    await client.submit(AgentId("stuck", "a"), str(ledger))
    await until(ledger.exists, "the step")
    host.send(signal.SIGTERM)
    await host.until("host.draining")
    host.send(signal.SIGTERM)

    assert await host.exit_code() == 130
    assert host.events()[-1]["event"] == "host.killed"


@pytest.mark.item(484)
async def test_a_host_frozen_past_its_lease_has_lost_its_shards(
    fleet: Hosts, client: Runtime, rows: Rows
) -> None:
    """Messages of that time were handled by the other host.

    It logs the loss, and claims its share again.
    """
    agents = nodes(4)
    frozen = await fleet.serving(NODES)
    for agent in agents:
        await client.send(agent, {"n": 0, "then": volley(LEFT)})
        await rows.until_seen(agent, 1)
    frozen.send(signal.SIGSTOP)
    other = await fleet.serving(NODES)
    for n in (1, 2):
        for i, agent in enumerate(agents):
            await client.send(agent, {"n": n, "then": volley(agents[i - 1])})
    await rows.until_owned("p:node:", {other.name: PARTITIONS})
    seen = [await rows.until_seen(agent, 7) for agent in agents]
    frozen.thaw()
    await frozen.until_lost()
    half = {frozen.name: PARTITIONS // 2, other.name: PARTITIONS // 2}
    await rows.until_owned("p:node:", half)

    assert [await rows.seen(agent) for agent in agents] == seen
    assert all(one_after_the_other(messages) for messages in seen)


async def test_a_busy_host_keeps_its_shards(fleet: Hosts, client: Runtime, rows: Rows) -> None:
    """A step that blocks the event loop for longer than the lease costs only its own time."""
    busy = await fleet.serving(MIXED, lease_s=2, heartbeat_s=0.25)
    other = await fleet.serving(MORE)
    run_id = await client.submit(AgentId("blocking", "a"), 2.5)
    warning = await busy.until("the event loop is blocked")
    result = await client.result(run_id)

    assert "time.sleep(pause_s)" in warning["event"]
    assert result == busy.pid
    assert await rows.owned("p:node:") == {busy.name: PARTITIONS}
    lost = [e["shards"] for e in busy.events() if "lost" in e["event"]]
    # On a busy machine the step may last for 3 s: then the other host gets what it can serve.
    assert [shard for shards in lost for shard in shards if shard.startswith("p:node:")] == []
    assert other.is_alive


@pytest.mark.item(481)
async def test_a_host_waits_for_an_absent_broker_and_logs_it(
    fleet: Hosts, client: Runtime, rows: Rows, own_nats: OwnNats
) -> None:
    """It serves as soon as the broker is up, and exits with 0 if it is stopped before."""
    server = own_nats()
    await asyncio.to_thread(server.stop)
    host = fleet.start(NODES, nats_url=server.url)
    impatient = fleet.start(NODES, nats_url=server.url)
    for waiting in (host, impatient):
        await waiting.until("no broker: messages wait for it")
    impatient.send(signal.SIGTERM)
    code = await impatient.exit_code()
    await asyncio.to_thread(server.start)
    await host.until("host.serving")
    a, b = nodes(2)
    await client.send(a, {"n": 0, "then": volley(b)})
    seen = await rows.until_seen(b, 2)
    fleet.end()

    assert code == 0
    assert seen == [("agent:node/n0", 0), ("agent:node/n0", 1)]


@pytest.mark.costly
async def test_a_host_that_alone_lost_the_broker_releases_its_agents(  # noqa: PLR0917
    fleet: Hosts, client: Runtime, rows: Rows, outsider: RawNats, namespace: str
) -> None:
    """In order, without a counted attempt, until its connection has been back for a lease."""
    agents = nodes(32)
    async with FaultProxy.to(str(fleet.more["nats_url"])) as proxy:
        cut_off = await fleet.serving(NODES, nats_url=proxy.through(str(fleet.more["nats_url"])))
        other = await fleet.serving(NODES)
        half = {cut_off.name: PARTITIONS // 2, other.name: PARTITIONS // 2}
        await rows.until_owned("p:node:", half)
        proxy.cut()
        proxy.reset()
        for agent in agents:
            await publish(outsider, namespace, agent, {"n": 0})
        seen = [await rows.until_seen(agent, 1) for agent in agents]
        owned = await rows.owned()
        proxy.heal()
        await rows.until_owned("p:node:", half)
        for agent in agents:
            await publish(outsider, namespace, agent, {"n": 1})
        again = [await rows.until_seen(agent, 2) for agent in agents]
    runs = [row for agent in agents for row in await client.store.lists.runs(agent=agent)]

    assert seen == [[("ext:crm", 0)]] * 32
    assert again == [[("ext:crm", 0), ("ext:crm", 1)]] * 32
    assert owned[cut_off.name] == 0
    assert [row.attempt for row in runs] == [1] * 64
    assert not [e for e in cut_off.events() if "lost to" in e["event"]], "it gave them up itself"


@pytest.mark.costly
async def test_hosts_that_all_lost_the_broker_keep_their_shards(
    fleet: Hosts, rows: Rows, client: Runtime
) -> None:
    """No shard moves, neither during the outage nor after it.

    On a busy machine one host may notice it seconds before the other, which then takes its shards:
    that is correct, and the test is repeated.
    """
    sql = "select shard, epoch from shards order by 1"
    async with FaultProxy.to(str(fleet.more["nats_url"])) as proxy:
        url = proxy.through(str(fleet.more["nats_url"]))
        both = [await fleet.serving(NODES, nats_url=url, lease_s=6) for _ in range(2)]

        async def lose() -> tuple[object, object]:
            await rows.until_owned("p:", {host.name: PARTITIONS for host in both})
            had = await rows.connection.fetch(sql)
            proxy.cut()
            proxy.reset()
            await rows.until_unable(2, "broker")
            away = await rows.connection.fetch(sql)
            proxy.heal()
            await rows.until_unable(0)
            return had, away

        before, while_away = await lose()
        for _ in range(4):
            if while_away != before:
                before, while_away = await lose()
        a, b = nodes(2)
        await client.send(a, {"n": 0, "then": volley(b)})
        await rows.until_seen(b, 2)
        after = await rows.connection.fetch(sql)

    assert after == while_away == before


@pytest.mark.costly
@pytest.mark.slow
@pytest.mark.item(481, 486)
async def test_messages_between_hosts_survive_a_broker_outage_of_ten_seconds(
    fleet: Hosts, client: Runtime, rows: Rows, own_nats: OwnNats
) -> None:
    """No host ends or loses its shards; messages sent meanwhile are handled meanwhile, in order."""
    server = own_nats(durable=True)
    fleet.more["nats_url"] = server.url
    hosts = [await fleet.serving(f"{HERE}:{name}") for name in ("LEFT_NODE", "RIGHT_NODE")]
    await client.send(LEFT, {"n": 0, "then": volley(RIGHT)})
    await rows.until_seen(RIGHT, 2)
    await asyncio.to_thread(server.kill)
    away_since = time.monotonic()
    for n in range(1, 6):
        await client.send(LEFT, {"n": n, "then": volley(RIGHT, LEFT)})
        await client.send(RIGHT, {"n": n - 1, "then": volley(LEFT)})
    await rows.until_seen(LEFT, 6)
    await asyncio.sleep(10 - (time.monotonic() - away_since))
    during = await rows.seen(RIGHT)
    await asyncio.to_thread(server.start)
    at_left, at_right = await rows.until_seen(LEFT, 26), await rows.until_seen(RIGHT, 17)
    owners = [await rows.owner(f"i:default:{name}/a") for name in ("left", "right")]
    names = [host.name for host in hosts]
    fleet.end()

    assert len(during) == 17
    assert one_after_the_other(at_left)
    assert one_after_the_other(at_right)
    assert owners == names


async def test_a_host_without_a_broker_is_refused_where_messages_travel_by_one(
    fleet: Hosts,
) -> None:
    """It would own agents and not read their messages; it ends with one sentence that names the remedy."""
    await fleet.serving(NODES)
    del fleet.more["nats_url"]
    wrong = fleet.start(MORE)

    assert await wrong.exit_code() == 2
    assert "Set CALLBOARD_NATS_URL as its other hosts have it" in wrong.log.read_text()


async def test_a_broker_can_be_added_once_hosts_without_one_have_stopped(
    fleet: Hosts, client: Runtime, rows: Rows
) -> None:
    """Beside them a host with a broker is refused; afterwards it handles their messages."""
    nats_url = fleet.more.pop("nats_url")
    first = await fleet.serving(NODES, lease_s=10)
    early = fleet.start(MORE, nats_url=nats_url)
    code = await early.exit_code()
    first.send(signal.SIGTERM)
    await first.exit_code()
    [agent] = nodes(1)
    await client.send(agent, {"n": 0})
    await fleet.serving(NODES, nats_url=nats_url)

    assert code == 2
    assert "Stop them first, then start all with CALLBOARD_NATS_URL" in early.log.read_text()
    assert await rows.until_seen(agent, 1) == [("client:local", 0)]
