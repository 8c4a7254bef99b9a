"""Messages between agents of one host: written by the sender's commit, or by way of the broker."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import asyncpg

from actors._kernel.agent.message import Message
from actors._kernel.runtime.ids import AgentId
from actors._runtime import Runtime
from actors._runtime.delivery.mail_service import Broker
from persistence.postgres import StoreSettings, open_store
from tests.benchmarks.bench import PAYLOAD, TYPE, agent_id, report
from tests.benchmarks.outside import Namespace, Servers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SENDERS = 50
EACH = 20
SENDER_TYPE = "sender"


class Sender:
    """Sends to as many receivers as it is told."""

    def __init__(self, id: AgentId) -> None:  # noqa: A002
        self.id = id

    async def run(self, ctx: Any, inbox: list[Message]) -> None:
        """Send, all in one commit."""
        first = int(inbox[0].payload)  # type: ignore[arg-type]
        for index in range(first, first + EACH):
            await ctx.send(agent_id(index), PAYLOAD)


class Receiver:
    """Takes what comes."""

    def __init__(self, id: AgentId) -> None:  # noqa: A002
        self.id = id

    async def run(self, ctx: Any, inbox: list[Message]) -> int:
        """Count."""
        return len(inbox)


@asynccontextmanager
async def _host(namespace: Namespace, *, local: bool) -> AsyncIterator[Runtime]:
    settings = StoreSettings(
        url=namespace.servers.postgres_url,
        owner=namespace.owner,
        schema=namespace.schema,
        brokered=True,
        local_delivery=local,
    )
    async with (
        open_store(settings) as store,
        Runtime(
            store=store,
            owner=namespace.owner,
            broker=Broker(namespace.transport(), store.mail, store.outbox),
        ) as runtime,
    ):
        assert runtime._host.mail is not None
        await runtime._host.mail.ready()
        await runtime.register_type(TYPE, Receiver)
        await runtime.register_type(SENDER_TYPE, Sender)
        yield runtime


async def measure(servers: Servers, *, total: int, local: bool) -> float:
    """Return messages per second until each is in a run that has ended."""
    namespace = Namespace(servers)
    async with _host(namespace, local=local) as runtime:
        watcher = await asyncpg.connect(servers.postgres_url)
        query = f"select count(*) from {namespace.schema}.inbox where state = 'd' and agent like '{TYPE}/%'"
        began = time.perf_counter()
        for first in range(0, total, EACH):
            await runtime.submit(AgentId(SENDER_TYPE, str(first % SENDERS)), first)
        while await watcher.fetchval(query) < total:  # noqa: ASYNC110 - rows tell nobody
            await asyncio.sleep(0.02)
        took = time.perf_counter() - began
        await watcher.close()
    return total / took


async def run(servers: Servers, *, scale: float = 1.0) -> None:
    """Print one line: by way of the broker, and without."""
    total = max(10, int(250 * scale)) * EACH
    broker = await measure(servers, total=total, local=False)
    local = await measure(servers, total=total, local=True)
    report(
        benchmark="between_agents",
        messages=total,
        floor_by_broker_per_s=round(broker),
        local_per_s=round(local),
        ratio=round(local / broker, 2),
    )
