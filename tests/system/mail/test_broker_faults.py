"""NATS crashes, freezes, disconnects and loses its consumers under load, and no message is lost.

None is doubled and none comes out of order, either.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis

from actors._kernel.runtime.ids import AgentId
from broker._mail import pulls
from broker._mail.reader import MAX_ASK, MAX_BATCH
from compose import Settings
from compose._assembly.runtime import build_runtime
from tests.behaviour.agents import greeter
from tests.harness import servers
from tests.harness.proxy import FaultProxy
from tests.harness.slow import IS_SLOW
from tests.system.mailing import Load, publish_all, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from actors._runtime.verbs.effects import EffectWord
    from compose.embedded import NatsServer, ValkeyServer
    from tests.harness.servers import OwnNats, OwnPostgres, OwnRedis

SLOW = pytest.mark.skipif(not IS_SLOW, reason="takes minutes; CALLBOARD_TEST_SLOW=1 runs it")
WAITING = int(os.environ.get("CALLBOARD_TEST_WAITING", "20000"))
"""Number of messages that wait for a host; 1000000 takes ten minutes."""


@pytest.fixture
def load(nats: NatsServer, postgres_dsn: str, schema: str) -> Load:
    """Nodes on that server."""
    return Load(nats.url, postgres_dsn, schema)


@pytest.mark.costly
@pytest.mark.item(482)
@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_three_server_restarts_under_load_lose_no_message(
    load: Load, nats: NatsServer, how: str
) -> None:
    """Killed or stopped, then started on its disk; with two hosts all messages travel through it."""
    end: Callable[[], None] = nats.kill if how == "kill" else nats.stop
    async with load.host() as first, load.host() as other:
        async with load.outsiders(3, 40):
            await load.pump(first, 5, runs=8, pace_s=0.02)
            for handled in (100, 300, 600):
                await load.until_handled(handled)
                await asyncio.to_thread(end)
                await asyncio.to_thread(nats.start)
                await load.until_connected(first, other)
        await load.settle(first)

    assert await load.problems() == []


@pytest.mark.parametrize(
    "frozen_s", [4, pytest.param(30, marks=[SLOW, pytest.mark.slow, pytest.mark.timeout(120)])]
)
async def test_a_frozen_server_loses_no_message(
    load: Load, nats: NatsServer, frozen_s: float
) -> None:
    """Messages published during the freeze are published again, in order; 30 s exceed the pings' limit."""
    async with load.host() as runtime:
        async with load.outsiders(2, 30):
            await load.pump(runtime, 5, runs=6, pace_s=0.02)
            await load.until_handled(100)
            servers.freeze(nats)
            await asyncio.sleep(frozen_s)  # the length of the freeze is tested
            servers.thaw(nats)
        await load.settle(runtime)

    assert await load.problems() == []


@pytest.mark.costly
@pytest.mark.parametrize("which", ["one", "all"])
async def test_deleted_consumers_are_created_again(load: Load, which: str) -> None:
    """As if an operator had deleted too many consumers."""
    async with load.host() as runtime:
        async with load.outsiders(2, 30):
            await load.pump(runtime, 5, runs=6, pace_s=0.02)
            for handled in (50, 150, 300):
                await load.until_handled(handled)
                names = [consumer["name"] for consumer in await load.consumers()]
                for name in names[:1] if which == "one" else names:
                    await load.api(f"CONSUMER.DELETE.MAIL.{name}")
        await load.settle(runtime)
        await until(load.has_consumers, "each shard has a consumer")

    assert await load.problems() == []


@pytest.mark.costly
async def test_a_host_too_slow_for_the_server_reconnects(
    own_nats: OwnNats, postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads more slowly than it requested, until the server's limit for a client is reached."""
    nats = own_nats(durable=False, settings={"max_pending": 4 << 20, "write_deadline": "100ms"})
    load = Load(nats.url, postgres_dsn, schema)
    async with load.host():
        pass  # the streams exist
    await load.publish("crm", 200, padding=32_000)
    arrived = pulls.Pulls._on_message

    def arrives_slowly(self: pulls.Pulls, *of_message: Any) -> None:
        if is_cut_off():
            # The next connection requests less, in proportion to the server's limit.
            monkeypatch.setattr(pulls, "CATCHING_UP", 1)
        else:
            time.sleep(0.2)
        arrived(self, *of_message)

    def is_cut_off() -> bool:
        return "Slow Consumer" in nats.log.read_text()

    monkeypatch.setattr(pulls.Pulls, "_on_message", arrives_slowly)
    async with load.host() as runtime:
        await load.settle(runtime)

    assert is_cut_off()
    assert await load.problems() == []


@pytest.mark.costly
async def test_a_frozen_owner_with_messages_in_flight_changes_nothing(
    load: Load, nats: NatsServer, postgres_dsn: str
) -> None:
    """Its pulls and its ingest resume after its shards have moved to another host."""
    async with (
        FaultProxy.to(nats.url) as mail,
        FaultProxy.to(postgres_dsn) as rows,
        load.host(lease_s=1.5) as runtime,
        load.host(
            nats_url=mail.through(nats.url), postgres_url=rows.through(postgres_dsn), lease_s=1.5
        ) as frozen,
    ):
        await until(lambda: _owns(frozen._host.worker.held.leases), "the shards are shared out")
        async with load.outsiders(2, 40):
            await load.pump(runtime, 5, runs=8, pace_s=0.02)
            await load.until_handled(100)
            mail.cut()
            rows.cut()
            await until(
                lambda: _owns(runtime._host.worker.held.leases, 16), "the other host took over"
            )
            await load.until_handled(300)
            mail.heal()
            rows.heal()
        await load.settle(runtime)

    assert await load.problems() == []


async def _owns(shards: tuple[object, ...], count: int = 1) -> bool:
    return len(shards) >= count


@pytest.mark.costly
async def test_nothing_is_acknowledged_while_postgres_is_out_of_reach(
    load: Load, postgres_dsn: str
) -> None:
    """Deliveries of NATS meanwhile are bounded and unacknowledged; afterwards all are handled."""
    async with FaultProxy.to(postgres_dsn) as rows:
        through = rows.through(postgres_dsn)
        async with load.host(postgres_url=through, lease_s=30) as runtime:
            await load.publish("early", 5)
            await load.settle(runtime)
            rows.cut()
            before = {c["name"]: c["ack_floor"] for c in await load.consumers()}
            await load.publish("late", 300)
            await until(lambda: _has_delivered(load, 5 * MAX_BATCH), "NATS has delivered")
            await asyncio.sleep(1)  # for acknowledgements that must not come
            consumers = await load.consumers()
            rows.heal()
            await load.settle(runtime)

    on_their_way = [
        c["delivered"]["consumer_seq"] - c["ack_floor"]["consumer_seq"] for c in consumers
    ]
    assert {c["name"]: c["ack_floor"] for c in consumers} == before
    assert max(on_their_way) <= 2 * MAX_ASK
    assert await load.problems() == []


async def _has_delivered(load: Load, count: int) -> bool:
    return sum(int(c["delivered"]["consumer_seq"]) for c in await load.consumers()) >= count


@pytest.mark.costly
async def test_postgres_killed_under_load_loses_no_message(
    own_postgres: OwnPostgres, nats: NatsServer
) -> None:
    """Each of its processes, twice, with messages in flight in both directions."""
    postgres = own_postgres(durable=True)
    load = Load(nats.url, postgres.url, "callboard")
    async with load.host(lease_s=30) as runtime:
        async with load.outsiders(2, 30):
            await load.pump(runtime, 5, runs=6, pace_s=0.02)
            for handled in (100, 300):
                await load.until_handled(handled)
                await asyncio.to_thread(postgres.kill)
                await asyncio.to_thread(postgres.start)
        await load.settle(runtime)

    assert await load.problems() == []


@pytest.mark.costly
@pytest.mark.timeout(180 if WAITING <= 50_000 else 3600)
async def test_a_host_that_finds_many_messages_takes_few_into_memory(
    own_nats: OwnNats, postgres_dsn: str, schema: str
) -> None:
    """Three fifths wait for one agent, the rest for thousands; each is handled once, in order."""
    load = Load(own_nats(durable=False).url, postgres_dsn, schema)
    many = max(WAITING // 50, 1)
    heap = load.nodes[0]
    async with load.host():
        pass  # the streams exist
    crowd = [AgentId("node", f"c{i}") for i in range(many)]
    count = await publish_all(
        load, [heap] * (WAITING * 3 // 5) + crowd * (WAITING * 2 // 5 // many)
    )
    load.gate.clear()
    before = resident_mib()
    async with load.host() as runtime:
        await until(lambda: load.is_read(count), "all is in rows", patience_s=WAITING / 500)
        in_memory = runtime._host.worker.mail_capacity.used
        rss = resident_mib()
        load.gate.set()
        await load.settle(runtime, patience_s=max(60, WAITING / 250))

    sys.stdout.write(f"{count} waited: {in_memory} in memory, {before} then {rss} MiB resident\n")
    assert in_memory <= 50_000
    assert in_memory <= 200 + count * 2 // 5
    assert await load.problems() == []


def resident_mib() -> int:
    """Return this process's resident memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20


class Stepper:
    """Executes ten steps: plain ones, at-most-once ones and model calls; before each, a fault happens."""

    def __init__(self, agent_id: AgentId, happen: Callable[[int], None]) -> None:
        self.id, self._happen = agent_id, happen
        self.model = greeter()
        self.executed: list[int] = []

    async def run(self, ctx: RunContext, inbox: list[Message]) -> list[object]:
        """Return the ten values."""
        assert inbox
        values: list[object] = []
        for n in range(10):
            if n % 3 == 2:
                values.append((await ctx.llm(f"say {n}")).text)
            else:
                mode: EffectWord = "at_most_once" if n % 3 == 1 else "idempotent"
                values.append(await ctx.step(f"step-{n}", self._step, n, effect=mode))
            await ctx.sleep(0.01)
        return values

    async def _step(self, n: int) -> int:
        self._happen(n)
        self.executed.append(n)
        await asyncio.sleep(0)
        self._happen(n)
        return n


@pytest.mark.item(141)
@pytest.mark.parametrize("what", ["flush", "kill"])
async def test_redis_that_loses_everything_changes_no_result(
    own_redis: OwnRedis, load: Load, what: str
) -> None:
    """Flushed before and after every effect, or killed for good in the middle of the run."""
    redis: ValkeyServer = own_redis()
    client = Redis.from_url(redis.url)

    def happen(n: int) -> None:
        if what == "flush":
            client.flushall()
        elif n == 4:
            redis.kill()

    agents = [Stepper(AgentId("stepper", f"s{i}"), happen) for i in range(3)]
    settings = Settings(db_schema=load.schema, suspend_after=0)
    urls = (load.nats_url, load.postgres_url, redis.url)
    async with build_runtime(*urls, settings=settings) as runtime:
        for agent in agents:
            await runtime.register(agent)
        runs = [await runtime.submit(agent.id, {}) for agent in agents]
        results = [await runtime.result(run_id) for run_id in runs]
    client.close()

    assert results == [[n if n % 3 != 2 else "Hello there" for n in range(10)]] * 3
    assert [agent.executed for agent in agents] == [[0, 1, 3, 4, 6, 7, 9]] * 3
    assert [agent.model.calls for agent in agents] == [3] * 3
