"""A Postgres failover that loses the last commits while hosts stay up."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pytest

from actors._kernel.runtime.ids import AgentId
from actors._runtime.delivery import mail_service as mail
from broker._mail import reader
from compose._assembly.runtime import build_postgres_runtime
from compose._assembly.settings import Settings
from tests.harness import servers
from tests.system.failing_over import CHIEF, HERE, expected, rounds_of
from tests.system.mailing import Load
from tests.system.processes import Hosts
from tests.system.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from actors import Message, RunContext
    from actors._runtime import Runtime
    from compose.embedded import NatsServer, PostgresServer
    from tests.harness.servers import OwnNats

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def nats(own_nats: OwnNats) -> NatsServer:
    """A server of this test's own."""
    return own_nats()


@pytest.fixture
def load(nats: NatsServer, postgres: PostgresServer) -> Load:
    """Nodes on those servers."""
    return Load(nats.url, postgres.url, "failover")


@pytest.fixture
def hosts(nats: NatsServer, postgres: PostgresServer, tmp_path: Path) -> Iterator[Hosts]:
    """Host processes on those servers."""
    fleet = Hosts(postgres.url, "failover", tmp_path, {"nats_url": nats.url})
    yield fleet
    fleet.end()


@pytest.mark.costly
async def test_external_messages_are_handled_after_a_failover(
    load: Load, postgres: PostgresServer
) -> None:
    """Acknowledged messages that were handled by lost commits are read and handled again."""
    async with load.host() as first, load.host() as second:
        await load.until_connected(first, second)
        await load.publish("crm", 2)
        await load.settle(first)
        standby = await servers.copy_of(postgres)
        await load.publish("crm", 10)
        await load.settle(first)
        await asyncio.to_thread(servers.fail_over, postgres, standby)
        await load.settle(first)

    assert await load.problems() == []


@pytest.mark.costly
async def test_messages_between_hosts_arrive_once_and_in_order_after_a_failover(
    load: Load, postgres: PostgresServer
) -> None:
    """Lost senders send again; lost receivers get the messages again."""
    async with load.host() as first, load.host() as second:
        await load.until_connected(first, second)
        await load.pump(first, 5, runs=12, pace_s=0.1)
        await load.until_handled(40)
        standby = await servers.copy_of(postgres)
        handled = await load.handled()
        await load.publish("crm", 3)
        # On a busy machine the agents may have sent everything before the copy was complete.
        goal = min(handled + 60, sum(load.expected.values()))
        await load.until_handled(goal)
        await asyncio.to_thread(servers.fail_over, postgres, standby)
        back_to = await load.handled()
        await load.settle(first)

    assert back_to < goal
    assert await load.problems() == []


@pytest.mark.costly
@pytest.mark.parametrize("suspend_after", [0, 5])
async def test_waits_of_two_hosts_continue_from_the_databases_state(
    hosts: Hosts, postgres: PostgresServer, tmp_path: Path, suspend_after: float
) -> None:
    """Lost asks, answers, children, joins and timers are repeated."""
    ledger, rounds = tmp_path / "ledger", 40
    more = {"suspend_after": suspend_after, "lease_s": 5}
    left = await hosts.serving(f"{HERE}:LEFT", **more)
    right = await hosts.serving(f"{HERE}:RIGHT", **more)
    settings = Settings(postgres_url=postgres.url, db_schema="failover")
    async with build_postgres_runtime(postgres.url, settings=settings, serve=False) as client:
        run_id = await client.submit(CHIEF, {"ledger": str(ledger), "rounds": rounds})
        for lost in (3, 8):
            standby = await servers.copy_of(postgres)
            count_before = len(rounds_of(ledger))
            await until(lambda: len(rounds_of(ledger)) >= count_before + lost, f"{lost} rounds")  # noqa: B023
            await asyncio.to_thread(servers.fail_over, postgres, standby)
        result = await client.result(run_id)

    assert result == expected(rounds)
    assert sorted(set(rounds_of(ledger))) == list(range(rounds))
    assert len(rounds_of(ledger)) > rounds
    assert left.is_alive
    assert right.is_alive


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Purge read messages at once, and poll the stream often."""
    for name, value in (("UPKEEP_S", 0.1), ("GUARD_S", 0.1), ("PURGE_AT_LEAST", 1)):
        monkeypatch.setattr(mail, name, value)
    monkeypatch.setattr(reader, "PROVE_EVERY_S", 0.1)


async def _begins_at(load: Load, sequence: int) -> bool:
    """Return whether the mail stream starts at this sequence, or later."""
    state = (await load.api("STREAM.INFO.MAIL"))["state"]
    return int(state["first_seq"]) >= sequence


@pytest.mark.costly
@pytest.mark.usefixtures("often")
async def test_purged_messages_are_published_again_from_their_source(
    load: Load, postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The new database has not read them, and the stream has deleted them: the stream is created again."""
    async with load.host() as first, load.host() as second:
        await load.until_connected(first, second)
        await load.publish("crm", 2)
        await load.settle(first)
        standby = await servers.copy_of(postgres)
        await load.publish("crm", 10)
        await load.settle(first)
        await until(lambda: _begins_at(load, 50), "mail is purged")
        await asyncio.to_thread(servers.fail_over, postgres, standby)
        await load.settle(first)

    assert await load.problems() == []
    assert any("is made anew" in record.message for record in caplog.records)


@pytest.mark.usefixtures("often")
async def test_a_rollback_of_a_single_shards_cursor_is_detected(load: Load) -> None:
    """One shard has not read the purged messages, while the furthest cursor agrees with the stream."""
    async with load.host() as runtime:
        await load.until_connected(runtime)
        await load.publish("crm", 10)
        await load.settle(runtime)
        await until(lambda: _begins_at(load, 40), "mail is purged")
    node = str(load.nodes[0])
    for statement in (
        "delete from cursors where shard in (select shard from inbox where agent = $1)",
        "delete from event_log where run_id in (select run_id from runs where agent = $1)",
        "delete from runs where agent = $1",
        "delete from inbox where agent = $1",
    ):
        await load.fetch(statement, node)
    await load.fetch("update streams set purged = 1")
    async with load.host() as runtime:
        await load.settle(runtime)

    assert await load.problems() == []


TICKS: Final = """
select e.payload #>> '{message,metadata,scheduled_at}' from event_log e
  where e.kind = 'msg.received' and e.payload #>> '{message,sender}' = 'schedule:tick'
  order by e.ts, e.run_id, e.seq
"""


class Worker:
    """Works for a moment for each message."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> int:
        """Work."""
        await ctx.step("work", asyncio.sleep, 0.05)
        return len(inbox)


@asynccontextmanager
async def host_of_workers(url: str) -> AsyncIterator[Runtime]:
    """A host without a broker."""
    settings = Settings(db_schema="failover", suspend_after=0)
    async with build_postgres_runtime(url, settings=settings) as runtime:
        await runtime.register_type("worker", Worker)
        await runtime.register_type("ticker", Worker)
        yield runtime


@pytest.mark.costly
async def test_lost_slots_and_ticks_are_assigned_again(postgres: PostgresServer) -> None:
    """Each run under a limit completes, each tick of a schedule is one message, in order."""
    ticker = AgentId("ticker", "a")
    rows = Load("", postgres.url, "failover")
    ended = "select count(*) from runs where status = 'COMPLETED' and agent like 'worker/%'"

    async def have_ended(count: int) -> bool:
        return int((await rows.fetch(ended))[0][0]) >= count

    async def ticks() -> list[datetime]:
        return [datetime.fromisoformat(row[0]) for row in await rows.fetch(TICKS)]

    async def has_ticks(count: int) -> bool:
        return len(await ticks()) >= count

    async with host_of_workers(postgres.url) as runtime, host_of_workers(postgres.url):
        await runtime.limits.set("type:worker", max_concurrent=3)
        await runtime.schedules.create("tick", ticker, cron="* * * * * *", catch_up="all")
        runs = [await runtime.submit(AgentId("worker", f"w{n}"), n) for n in range(60)]
        await until(lambda: have_ended(5), "some have ended")
        standby = await servers.copy_of(postgres)
        await until(lambda: have_ended(40), "more have ended")
        await asyncio.to_thread(servers.fail_over, postgres, standby)
        for run_id in runs:
            assert await runtime.result(run_id) == 1
        seen = len(await ticks())
        await until(lambda: has_ticks(seen + 2), "ticks")
        tick_times = await ticks()

    assert len(await rows.fetch("select 1 from runs where status <> 'COMPLETED' and not open")) == 0
    assert [b - a for a, b in pairwise(tick_times)] == [timedelta(seconds=1)] * (
        len(tick_times) - 1
    )
