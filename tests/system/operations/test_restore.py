"""The drill of docs/operations.md: a back-up of Postgres is restored beside a NATS that is newer."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

from actors import idempotency_key
from actors._kernel.runtime.ids import AgentId
from compose._assembly.runtime import build_runtime
from compose._assembly.settings import Settings
from tests.harness.rawnats import raw_nats
from tests.harness.tools import postgres
from tests.system.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from actors import Message, RunContext
    from actors._runtime import Runtime
    from compose.embedded import NatsServer, PostgresServer
    from tests.harness.servers import OwnNats, OwnPostgres

BOOK: Final = AgentId("book", "main")
MANY: Final = AgentId("many", "main")
SINGLE: Final = AgentId("single", "main")

pytestmark = pytest.mark.timeout(60)


class Book:
    """Passes orders on to the warehouse, an external service that records them."""

    def __init__(self, agent_id: AgentId, warehouse: list[Any]) -> None:
        self.id, self._warehouse = agent_id, warehouse

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        """Handle each order once."""
        for message in inbox:
            order: Any = message.payload
            await ctx.step("order", self._order, order["order"])

    async def _order(self, number: str) -> None:
        self._warehouse.append(number)


class Deployment:
    """Servers with a host that starts and stops, and the warehouse's records."""

    def __init__(self, nats: NatsServer, postgres: PostgresServer) -> None:
        self.nats, self.postgres = nats, postgres
        self.warehouse: list[str] = []

    @asynccontextmanager
    async def host(self) -> AsyncIterator[Runtime]:
        """Run a host that serves the book."""
        url = self.postgres.url
        settings = Settings(postgres_url=url, lease_s=2, gateway=False)
        async with build_runtime(self.nats.url, url, settings=settings) as runtime:
            await runtime.register_type("book", lambda agent_id: Book(agent_id, self.warehouse))
            yield runtime

    async def order(self, runtime: Runtime, number: str, runs: int) -> None:
        """Publish an order as an external client, and wait until its run has ended."""
        subject = f"agent.v1.default.{BOOK.type}.{BOOK.key}.ext.shop"
        body = json.dumps({"order": number}).encode()
        async with raw_nats(self.nats.url) as shop:
            ack = await shop.publish(subject, body, {"Nats-Msg-Id": number})
        assert "error" not in ack
        await self.until_ended(runtime, runs)

    @asynccontextmanager
    async def cashiers(self, charged: dict[tuple[str, str, str], str]) -> AsyncIterator[None]:
        """Run a host that serves the cashiers."""
        url = self.postgres.url
        settings = Settings(postgres_url=url, lease_s=2, gateway=False)
        async with build_runtime(self.nats.url, url, settings=settings) as runtime:
            for agent_id in (MANY, SINGLE):
                await runtime.register(Cashier(agent_id, charged))
            yield

    async def publish(self, orders: Sequence[str]) -> None:
        """Publish orders to both cashiers as an external client."""
        async with raw_nats(self.nats.url) as shop:
            for agent in (MANY, SINGLE):
                subject = f"agent.v1.default.{agent.type}.{agent.key}.ext.shop"
                for order in orders:
                    ack = await shop.publish(subject, b"{}", {"Nats-Msg-Id": order})
                    assert "error" not in ack

    async def until_ended(self, runtime: Runtime, count: int) -> None:
        """Return when the database has this many runs, all of them completed."""

        async def ended() -> bool:
            rows = await runtime.store.lists.runs(agent=BOOK, limit=20)
            return len(rows) == count and all(row.status == "COMPLETED" for row in rows)

        await until(ended, f"{count} runs ended")

    def back_up(self, dump: Path) -> None:
        """Execute the document's back-up."""
        postgres("pg_dump", "-Fc", "-f", str(dump), self.postgres.url)

    def restore(self, dump: Path) -> None:
        """Execute the document's restore."""
        postgres("psql", "-c", "drop schema callboard cascade", self.postgres.url)
        postgres("pg_restore", "-d", self.postgres.url, str(dump))

    async def forget_mail(self) -> None:
        """Delete MAIL and TOPIC, which loses nothing."""
        async with raw_nats(self.nats.url) as admin:
            for stream in ("MAIL", "TOPIC"):
                answer = await admin.publish(f"$JS.API.STREAM.DELETE.{stream}")
                assert answer.get("success"), answer


@pytest.fixture
def deployment(own_nats: OwnNats, own_postgres: OwnPostgres) -> Deployment:
    """Servers of this test's own."""
    return Deployment(own_nats(), own_postgres())


@pytest.mark.costly
async def test_a_restored_database_gets_later_external_messages(
    deployment: Deployment, tmp_path: Path
) -> None:
    """Orders before the back-up are not repeated. Later ones are handled, and new ones come after them."""
    dump = tmp_path / "callboard.dump"
    async with deployment.host() as runtime:
        await deployment.order(runtime, "before", 1)
        deployment.back_up(dump)
        await deployment.order(runtime, "since", 2)
    deployment.restore(dump)
    await deployment.forget_mail()
    async with deployment.host() as runtime:
        await deployment.until_ended(runtime, 2)
        await deployment.order(runtime, "after", 3)

    assert deployment.warehouse == ["before", "since", "since", "after"]


@pytest.mark.costly
async def test_a_database_older_than_its_stream_continues_at_its_cursor(
    deployment: Deployment, tmp_path: Path
) -> None:
    """Without the deletion of MAIL no known order is repeated, and the host starts."""
    dump = tmp_path / "callboard.dump"
    async with deployment.host() as runtime:
        await deployment.order(runtime, "before", 1)
        deployment.back_up(dump)
        await deployment.order(runtime, "since", 2)
    deployment.restore(dump)
    async with deployment.host() as runtime:
        await deployment.until_ended(runtime, 2)

    assert deployment.warehouse == ["before", "since", "since"]


class Cashier:
    """Charges for orders, at an external service that identifies a charge by its key.

    Attributes: charged: Keys, by who charged, whether the key was the message's or the run's, and
    the order.
    """

    def __init__(self, agent_id: AgentId, charged: dict[tuple[str, str, str], str]) -> None:
        self.id, self.charged = agent_id, charged
        self.batch = 1 if agent_id == SINGLE else 100

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        """Charge for each order, in two ways."""
        for message in inbox:
            await ctx.step("charge", self._charge, "message", message.id, key=message.id)
            await ctx.step("charge", self._charge, "run", message.id)

    def _charge(self, kind: str, order: str) -> None:
        self.charged[self.id.type, kind, order] = idempotency_key()


@pytest.mark.costly
async def test_messages_batched_differently_are_charged_under_the_same_keys(
    deployment: Deployment, tmp_path: Path
) -> None:
    """A message's key never changes; a run's does, unless each message has a run of its own."""
    dump = tmp_path / "callboard.dump"
    orders = [str(n) for n in range(40)]
    first: dict[tuple[str, str, str], str] = {}
    second: dict[tuple[str, str, str], str] = {}
    async with deployment.cashiers(first):
        deployment.back_up(dump)
        for some in (orders[:1], orders[1:3], orders[3:8], orders[8:]):
            count = len(first) + 4 * len(some)
            await deployment.publish(some)
            await until(partial(has, first, count), "all is charged")
    deployment.restore(dump)
    async with deployment.cashiers(second):
        await until(partial(has, second, len(first)), "all is charged again")

    changed = {who[:2] for who in first if first[who] != second[who]}
    assert changed == {(MANY.type, "run")}
    assert len(set(first.values())) == len(first) == 4 * len(orders)


def has(charged: dict[tuple[str, str, str], str], count: int) -> bool:
    """Return whether this much was charged."""
    return len(charged) == count
