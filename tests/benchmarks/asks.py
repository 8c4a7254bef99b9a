"""Asks between agents: of one host, and of two with the broker between them.

Beside a plain program on one host, and a floor that writes the same commits by hand: the question,
the target's whole run with its reply, and the commit that takes the answer. Between two hosts the
question is published, pulled and ingested as well.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from actors._kernel.agent.message import Message
from actors._kernel.runtime.ids import AgentId, HostIncarnation
from actors._kernel.stores.shards import Serves
from actors._kernel.stores.transport import Ingested
from actors._runtime import Runtime
from actors._runtime.delivery.mail_service import Broker
from broker import JetStreamTransport
from persistence.postgres import StoreSettings, open_store
from tests.benchmarks import mock
from tests.benchmarks.bench import PAYLOAD, TYPE, Floor, agent_id, beside, many, report
from tests.benchmarks.byhand import Asking, handle
from tests.benchmarks.outside import Namespace, Servers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors._kernel.runtime.rows import Arrived
    from actors._kernel.runtime.scheduler import ShardLease
    from actors._kernel.stores.transport import MailConnection, StreamRecord
    from persistence.postgres import PostgresStore

EACH = 20
"""Questions of one run, one after the other."""
ASKER = "asker"
CROWD = 2_000
"""Runs that ask at once, twice as many as a host's capacity."""
PEERS = {1: 187, 64: 555}
"""Restate, the best durable peer, on one host: asks per second, measured on a machine like this."""
GOALS = {1: 370, 64: 2200}


class Asker:
    """Asks one agent as often as it is told."""

    def __init__(self, id: AgentId) -> None:  # noqa: A002
        self.id = id

    async def run(self, ctx: Any, inbox: list[Message]) -> None:
        """Ask, one after the other."""
        for _ in range(EACH):
            outcome = await ctx.ask(agent_id(self.id.key), PAYLOAD, timeout=30)
            assert outcome.kind == "replied", outcome


class Answerer:
    """Replies at once."""

    def __init__(self, id: AgentId) -> None:  # noqa: A002
        self.id = id

    async def run(self, ctx: Any, inbox: list[Message]) -> None:
        """Reply to each question."""
        for message in inbox:
            await ctx.reply(message, PAYLOAD)


@asynccontextmanager
async def _store(
    namespace: Namespace, owner: str, *, brokered: bool
) -> AsyncIterator[PostgresStore]:
    settings = StoreSettings(
        url=namespace.servers.postgres_url,
        owner=HostIncarnation(owner),
        schema=namespace.schema,
        brokered=brokered,
        local_delivery=not brokered,
    )
    async with open_store(settings) as store:
        yield store


@asynccontextmanager
async def _hosts(namespace: Namespace, *, two: bool) -> AsyncIterator[Runtime]:
    """Yield the runtime of the askers; the answerers are served by it, or by a second host."""
    async with AsyncExitStack() as stack:

        async def host(name: str) -> Runtime:
            owner = f"{namespace.name}-{name}"
            store = await stack.enter_async_context(_store(namespace, owner, brokered=two))
            broker = None
            if two:
                transport = JetStreamTransport(
                    namespace.servers.nats_url,
                    namespace=namespace.name,
                    owner=HostIncarnation(owner),
                )
                broker = Broker(transport, store.mail, store.outbox)
            runtime = Runtime(store=store, owner=HostIncarnation(owner), broker=broker)
            await stack.enter_async_context(runtime)
            if runtime._host.mail is not None:
                await runtime._host.mail.ready()
            return runtime

        asking = await host("asks")
        answering = await host("answers") if two else asking
        await answering.register_type(TYPE, Answerer)
        await asking.register_type(ASKER, Asker)
        yield asking


async def ours(servers: Servers, *, runs: int, at_once: int, two: bool) -> float:
    """Return asks per second."""
    async with _hosts(Namespace(servers), two=two) as runtime:

        async def run_asker(index: int) -> None:
            await runtime.result(await runtime.submit(AgentId(ASKER, str(index % at_once)), None))

        return runs * EACH / await many(run_asker, total=runs, at_once=at_once)


async def floor_of_one(servers: Servers, *, runs: int, at_once: int) -> float:
    """Return asks per second of the commits alone, on one store."""
    namespace = Namespace(servers)
    async with _store(namespace, namespace.name, brokered=False) as store:
        hand = await Floor.over(store)

        async def play_asks(index: int) -> None:
            asking = await Asking.begin(hand, agent_id(f"asks{index}"))
            for position in range(EACH):
                target = agent_id(f"answers{index}")
                question, done = await asking.ask(target, position, PAYLOAD)
                await handle(hand, done.routed[0], reply=PAYLOAD)
                await asking.take(position, question.id)

        return runs * EACH / await many(play_asks, total=runs, at_once=at_once)


class _FarSide:
    """The second host by hand: reads what the first one published, and answers."""

    def __init__(self, hand: Floor, leases: list[ShardLease]) -> None:
        self._hand, self._leases = hand, leases
        self._tasks: list[asyncio.Future[Any]] = []

    async def start(self, connection: MailConnection, stream: StreamRecord) -> None:
        """Read all shards."""
        for lease in self._leases:
            self._tasks.append(asyncio.ensure_future(self._read(connection, stream, lease)))

    async def stop(self) -> None:
        """Stop reading."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(
        self, connection: MailConnection, stream: StreamRecord, lease: ShardLease
    ) -> None:
        [cursor] = await self._hand.store.mail.cursors([lease], stream)
        async for batch in connection.read(lease, cursor):
            outcome = await self._hand.store.mail.ingest(batch)
            assert isinstance(outcome, Ingested), outcome
            connection.ack(batch)
            for arrived in outcome.arrived:
                self._tasks.append(asyncio.ensure_future(self._answer(arrived)))

    async def _answer(self, arrived: Arrived) -> None:
        await handle(self._hand, arrived, reply=PAYLOAD)


async def floor_of_two(servers: Servers, *, runs: int, at_once: int) -> float:
    """Return asks per second with one way through the broker and a hint for the way back."""
    namespace = Namespace(servers)
    async with AsyncExitStack() as stack:
        near = await stack.enter_async_context(
            _store(namespace, f"{namespace.name}a", brokered=True)
        )
        far = await stack.enter_async_context(
            _store(namespace, f"{namespace.name}b", brokered=True)
        )
        await far.shards.declare(Serves((TYPE,)))
        leases = await far.shards.claim(
            owner=far.settings.owner, serves=Serves((TYPE,)), limit=1000
        )
        await near.shards.declare(Serves((ASKER,)))
        mine = await near.shards.claim(
            owner=near.settings.owner, serves=Serves((ASKER,)), limit=1000
        )
        hand = Floor(near, {lease.shard: lease for lease in mine})
        connecting = namespace.transport().connect(
            deployment=await near.mail.deployment(), on_nudge=lambda _: None
        )
        connection = await stack.enter_async_context(connecting)
        stream = await near.mail.stream(await connection.stream_state())
        far_side = _FarSide(Floor(far, {lease.shard: lease for lease in leases}), leases)
        await far_side.start(connection, stream)
        sending: list[asyncio.Future[Any]] = []
        near.outbox.set_hook(
            lambda rows: sending.extend(asyncio.ensure_future(connection.send(r)) for r in rows)
        )
        events: dict[str, asyncio.Event] = {}
        near.set_nudge_hook(
            lambda nudge: events[nudge.run_id].set() if nudge.run_id in events else None
        )
        await near.listening()

        async def play_asks(index: int) -> None:
            asking = await Asking.begin(hand, AgentId(ASKER, str(index)))
            event = events[asking.run_id] = asyncio.Event()
            for position in range(EACH):
                event.clear()
                question, _ = await asking.ask(agent_id(index), position, PAYLOAD)
                await event.wait()
                await asking.take(position, question.id)

        took = await many(play_asks, total=runs, at_once=at_once)
        await far_side.stop()
        near.outbox.set_hook(None)
    return runs * EACH / took


async def plain(url: str, *, runs: int, at_once: int) -> float:
    """Return asks per second of a plain program on one host."""
    async with mock.opened(url) as database:
        took = await many(lambda i: mock.asks(database, i, EACH), total=runs, at_once=at_once)
        return runs * EACH / took


async def run(servers: Servers, *, scale: float = 1.0) -> None:
    """Print a line for one host and two, each with 1 and 64 in flight, and for a crowd on one host."""
    rate = 0.0
    for at_once in (1, 64):
        runs = max(2, int((10 if at_once == 1 else 256) * scale))
        least = await plain(servers.postgres_url, runs=runs, at_once=at_once)
        base = await floor_of_one(servers, runs=runs, at_once=at_once)
        rate = await ours(servers, runs=runs, at_once=at_once, two=False)
        report(
            benchmark="asks",
            between="one host",
            in_flight=at_once,
            asks=runs * EACH,
            asks_per_s=round(rate),
            **beside(rate, mock=least, floor=base),
            goal_per_s=GOALS[at_once],
            times_restate=round(rate / PEERS[at_once], 1),
        )
    runs = max(2, int(CROWD * scale))
    crowded = await ours(servers, runs=runs, at_once=runs, two=False)
    report(
        benchmark="asks",
        between="one host",
        in_flight=runs,
        asks=runs * EACH,
        asks_per_s=round(crowded),
        of_64=round(crowded / rate, 3),
        goal=0.8,
    )
    for at_once in (1, 64):
        runs = max(2, int((10 if at_once == 1 else 256) * scale))
        base = await floor_of_two(servers, runs=runs, at_once=at_once)
        rate = await ours(servers, runs=runs, at_once=at_once, two=True)
        report(
            benchmark="asks",
            between="two hosts",
            in_flight=at_once,
            asks=runs * EACH,
            asks_per_s=round(rate),
            floor_per_s=round(base),
            ratio=round(rate / base, 3),
            goal=0.4,
        )
