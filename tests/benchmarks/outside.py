"""Messages of external clients: to many agents at once, and one to an idle agent.

The mock is the broker alone: the same publishes into one stream that syncs each. The floor
publishes, sources, pulls and ingests the same messages by the same code, without agents.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
import uuid
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import asyncpg
import nats
from nats.aio.client import Client

from actors._kernel.agent.message import Message
from actors._kernel.runtime.commit import Commit
from actors._kernel.runtime.ids import HostIncarnation, run_id_of_mail, run_id_of_submit
from actors._kernel.runtime.log_entry import EntryKind, NewEntry
from actors._kernel.runtime.rows import NewRun
from actors._kernel.stores.shards import Serves
from actors._kernel.stores.transport import Ingested
from actors._runtime import Runtime
from actors._runtime.delivery.mail_service import Broker
from broker import JetStreamTransport, Subjects
from persistence.postgres import StoreSettings, open_store
from tests.benchmarks import mock
from tests.benchmarks.bench import PAYLOAD, TYPE, Floor, agent_id, beside, report

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from actors._kernel.agent.message import Message as Mail
    from actors._kernel.runtime.ids import AgentId
    from actors._kernel.runtime.scheduler import ShardLease
    from actors._kernel.stores.transport import StreamRecord
    from persistence.postgres import PostgresStore

BODY = json.dumps(PAYLOAD).encode()
WINDOW = 256
"""Publishes under way at once."""
PUBLISHER = "bench"
RESTATE_PER_S = 1339
"""The best durable peer."""


@dataclass(frozen=True)
class Servers:
    """Where the servers are."""

    postgres_url: str
    nats_url: str


class Namespace:
    """Names of one measurement, separate from those of others."""

    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self.name = uuid.uuid4().hex[:12]
        self.subjects = Subjects(self.name)

    @property
    def owner(self) -> HostIncarnation:
        """This host."""
        return HostIncarnation(self.name)

    @property
    def schema(self) -> str:
        """Where the tables are."""
        return f"bench_{self.name}"

    def transport(self) -> JetStreamTransport:
        """The way to the broker."""
        return JetStreamTransport(self.servers.nats_url, namespace=self.name, owner=self.owner)

    @asynccontextmanager
    async def store(self) -> AsyncIterator[PostgresStore]:
        """The rows."""
        settings = StoreSettings(
            url=self.servers.postgres_url, owner=self.owner, schema=self.schema, brokered=True
        )
        async with open_store(settings) as store:
            yield store

    async def publish(self, client: Client, total: int, agents: int, first: int = 0) -> None:
        """Publish as an outsider who waits for every acknowledgement, so many at once."""
        numbers = range(first, first + total)
        subjects = (self.subjects.external(agent_id(n % agents), PUBLISHER) for n in numbers)
        await publish_all(client, subjects, first)


async def publish_all(client: Client, subjects: Iterable[str], first: int = 0) -> None:
    """Publish a message to each subject, a window of them at once, and wait for every acknowledgement."""
    window = asyncio.Semaphore(WINDOW)

    async def send(index: int, subject: str) -> None:
        async with window:
            await client.request(subject, BODY, timeout=30, headers={"Nats-Msg-Id": str(index)})

    await asyncio.gather(*(send(index, subject) for index, subject in enumerate(subjects, first)))


async def raw(servers: Servers, *, total: int) -> float:
    """Return publishes per second into one stream without consumers."""
    name = f"raw-{uuid.uuid4().hex[:12]}"
    client = await nats.connect(servers.nats_url, connect_timeout=20)
    stream = client.jetstream()
    await stream.add_stream(name=name, subjects=[f"{name}.*"])
    began = time.perf_counter()
    await publish_all(client, (f"{name}.{n % 100}" for n in range(total)))
    took = time.perf_counter() - began
    await stream.delete_stream(name)
    await client.close()
    return total / took


async def floor(servers: Servers, *, total: int, agents: int) -> float:
    """Return messages per second into rows."""
    namespace = Namespace(servers)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(namespace.store())
        deployment = await store.mail.deployment()
        connecting = namespace.transport().connect(deployment=deployment, on_nudge=lambda _: None)
        connection = await stack.enter_async_context(connecting)
        stream = await store.mail.stream(await connection.stream_state())
        serves = Serves((TYPE,))
        await store.shards.declare(serves)
        leases = await store.shards.claim(owner=namespace.owner, serves=serves, limit=1000)
        remaining, done = total, asyncio.Event()

        async def read(lease: ShardLease, stream: StreamRecord) -> None:
            nonlocal remaining
            [cursor] = await store.mail.cursors([lease], stream)
            async for batch in connection.read(lease, cursor):
                outcome = await store.mail.ingest(batch)
                assert isinstance(outcome, Ingested)
                connection.ack(batch)
                remaining -= len(outcome.arrived)
                if not remaining:
                    done.set()

        readers = [asyncio.ensure_future(read(lease, stream)) for lease in leases]
        client = await nats.connect(servers.nats_url, connect_timeout=20)
        began = time.perf_counter()
        await namespace.publish(client, total, agents)
        await done.wait()
        took = time.perf_counter() - began
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        await client.close()
    return total / took


class Counter:
    """An agent that only counts its messages."""

    def __init__(self, id: AgentId) -> None:  # noqa: A002
        self.id = id

    async def run(self, ctx: Any, inbox: list[Mail]) -> int:
        """Count."""
        return len(inbox)


@asynccontextmanager
async def host(
    namespace: Namespace, agent: Callable[[AgentId], Any], **settings: Any
) -> AsyncIterator[Runtime]:
    """A runtime that serves the benchmark's type."""
    async with namespace.store() as store:
        broker = Broker(namespace.transport(), store.mail, store.outbox)
        async with Runtime(
            store=store, owner=namespace.owner, broker=broker, **settings
        ) as runtime:
            assert runtime._host.mail is not None
            await runtime._host.mail.ready()
            await runtime.register_type(TYPE, agent)
            yield runtime


async def ours(servers: Servers, *, total: int, agents: int) -> tuple[float, int]:
    """Return messages per second until every one is in a run that has ended, and how many runs."""
    namespace = Namespace(servers)
    async with host(namespace, Counter):
        client = await nats.connect(servers.nats_url, connect_timeout=20)
        watcher = await asyncpg.connect(servers.postgres_url)
        began = time.perf_counter()
        await namespace.publish(client, total, agents)
        query = f"select count(*) from {namespace.schema}.inbox where state = 'd'"
        while await watcher.fetchval(query) < total:  # noqa: ASYNC110 - rows tell nobody
            await asyncio.sleep(0.05)
        took = time.perf_counter() - began
        runs = await watcher.fetchval(f"select count(*) from {namespace.schema}.runs")
        await watcher.close()
        await client.close()
    return total / took, runs


async def throughput(servers: Servers, *, scale: float) -> None:
    """Print a line for 100 and 10,000 agents."""
    total = max(200, int(10_000 * scale))
    for agents, goal in ((100, 0.9), (10_000, 0.6)):
        least = await raw(servers, total=total)
        base = await floor(servers, total=total, agents=agents)
        rate, runs = await ours(servers, total=total, agents=agents)
        report(
            benchmark="outside",
            agents=agents,
            messages=total,
            messages_per_s=round(rate),
            **beside(rate, mock=least, floor=base),
            goal_of_mock=goal,
            runs=runs,
            times_restate=round(rate / RESTATE_PER_S, 1),
        )


async def latency(servers: Servers, *, scale: float) -> None:
    """Print how long one message to an idle agent takes until its run's end is durable."""
    namespace, times = Namespace(servers), max(50, int(300 * scale))
    async with host(namespace, Counter) as runtime:
        client = await nats.connect(servers.nats_url, connect_timeout=20)
        took = []
        for index in range(-10, times):
            agent, id_ = agent_id(f"idle{index}"), f"m{index}"
            ended = runtime._host.worker.completions.future_of(
                run_id_of_mail(agent, f"ext:{PUBLISHER}", id_)
            )
            subject = namespace.subjects.external(agent, PUBLISHER)
            began = time.perf_counter()
            await client.request(subject, BODY, timeout=30, headers={"Nats-Msg-Id": id_})
            await ended
            if index >= 0:
                took.append(time.perf_counter() - began)
        publishes = []
        for _ in range(times):
            began = time.perf_counter()
            subject = namespace.subjects.external(agent_id("elsewhere"), PUBLISHER)
            await client.request(subject, BODY, timeout=30)
            publishes.append(time.perf_counter() - began)
        await client.close()
    commits = await _commits(servers, times)
    publish_ms, commit_ms = _ms(publishes), _ms(commits)
    mock_ms = _ms(await _mock_commits(servers, times))
    ours_ms = _ms(took)
    report(
        benchmark="outside_idle",
        messages=times,
        p50_ms=ours_ms,
        publish_p50_ms=publish_ms,
        mock_commit_p50_ms=mock_ms,
        limit_ms=round(publish_ms + 2 * mock_ms, 3),
        commit_p50_ms=commit_ms,
        ratio=round(ours_ms / (publish_ms + 3 * commit_ms), 2),
    )


async def _mock_commits(servers: Servers, times: int) -> list[float]:
    """Return how long a plain program's write of a whole run takes."""
    took = []
    async with mock.opened(servers.postgres_url) as database:
        for index in range(times):
            body = mock.message(f"bench/{index}", PAYLOAD, sender=f"ext:{PUBLISHER}")
            began = time.perf_counter()
            await mock.take(database, f"bench/{index}", f"ext:{PUBLISHER}", body)
            took.append(time.perf_counter() - began)
    return took


async def _commits(servers: Servers, times: int) -> list[float]:
    namespace, took = Namespace(servers), []
    async with namespace.store() as store:
        hand = await Floor.over(store)
        for index in range(times):
            agent = agent_id(index)
            message = Message.of(agent, PAYLOAD).sent_by("submit:bench")
            run_id = run_id_of_submit(agent, "submit:bench", message.id)
            await store.arrivals.submit(NewRun(run_id, agent), message)
            entry = NewEntry(EntryKind.RUN_STARTED, "", {"agent": str(agent)})
            began = time.perf_counter()
            await store.commits.commit(Commit(hand.lease(agent, run_id), -1, (entry,)))
            took.append(time.perf_counter() - began)
    return took


def _ms(seconds: list[float]) -> float:
    return round(statistics.median(seconds) * 1000, 3)


async def run(servers: Servers, *, scale: float = 1.0) -> None:
    """Print both."""
    await throughput(servers, scale=scale)
    await latency(servers, scale=scale)
