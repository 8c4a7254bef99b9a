"""PostgreSQL is absent, fails, recovers, or loses an answer, while a host process is alive."""

from __future__ import annotations

import asyncio
import secrets
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.ids import AgentId
from compose._assembly.runtime import build_postgres_runtime
from compose._assembly.settings import Settings
from tests.harness.proxy import FaultProxy
from tests.system.agents import STEP_COUNT, executed
from tests.system.processes import Hosts
from tests.system.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from actors._runtime import Runtime
    from compose.embedded import PostgresServer
    from tests.harness.servers import OwnPostgres

TEN = AgentId("ten", "a")
ALL = [f"value-{n}" for n in range(STEP_COUNT)]
ONCE_EACH = list(range(STEP_COUNT))


@pytest.fixture
def server(own_postgres: OwnPostgres) -> PostgresServer:
    """A durable server of this test's own."""
    return own_postgres(durable=True)


@pytest.fixture
def own_hosts(server: PostgresServer, tmp_path: Path) -> Iterator[Hosts]:
    """Hosts on that server."""
    hosts = Hosts(server.url, f"t_{secrets.token_hex(4)}", tmp_path)
    yield hosts
    hosts.end()


@asynccontextmanager
async def client_of(hosts: Hosts) -> AsyncIterator[Runtime]:
    """A client beside the hosts."""
    settings = Settings(postgres_url=hosts.url, db_schema=hosts.schema)
    async with build_postgres_runtime(hosts.url, settings=settings, serve=False) as runtime:
        yield runtime


async def until_executed(ledger: Path, count: int) -> None:
    """Return once this many steps have started."""
    await until(lambda: len(executed(ledger)) >= count, f"{count} steps")


async def test_a_host_waits_for_an_absent_server_and_logs_it(
    server: PostgresServer, own_hosts: Hosts, tmp_path: Path
) -> None:
    """It serves as soon as the server is up, without a restart."""
    await asyncio.to_thread(server.stop)
    host = own_hosts.start()
    log_line = await host.until("waiting for PostgreSQL")
    await asyncio.to_thread(server.start)
    await host.until("host.serving")
    async with client_of(own_hosts) as client:
        run_id = await client.submit(TEN, {"ledger": str(tmp_path / "ledger")})
        result = await client.result(run_id)

    assert str(server.port) in log_line["server"]
    assert result == ALL


async def test_a_host_that_waits_for_its_server_obeys_sigterm(
    server: PostgresServer, own_hosts: Hosts
) -> None:
    """SIGTERM works without a server, and the process exits with 0."""
    await asyncio.to_thread(server.stop)
    host = own_hosts.start()
    await host.until("waiting for PostgreSQL")
    host.send(signal.SIGTERM)

    assert await host.exit_code() == 0


@pytest.mark.slow
async def test_a_run_survives_an_outage_of_ten_seconds(
    server: PostgresServer, own_hosts: Hosts, tmp_path: Path
) -> None:
    """No step executes twice, though the host's lease of a second has long expired."""
    ledger = tmp_path / "ledger"
    host = await own_hosts.serving()
    async with client_of(own_hosts) as client:
        run_id = await client.submit(TEN, {"ledger": str(ledger), "pace_s": 0.3})
        await until_executed(ledger, 4)
        await asyncio.to_thread(server.stop)
        at_stop = len(executed(ledger))
        await asyncio.sleep(10)
        begun = len(executed(ledger))
        await asyncio.to_thread(server.start)
        result = await client.result(run_id)

    assert begun <= at_stop + 1
    assert result == ALL
    assert [number for number, _ in executed(ledger)] == ONCE_EACH
    assert host.is_alive


@pytest.mark.costly
async def test_a_run_survives_kills_of_the_server_during_its_writes(
    server: PostgresServer, own_hosts: Hosts, tmp_path: Path
) -> None:
    """Three SIGKILLs of all server processes in one run lose and repeat nothing."""
    ledger = tmp_path / "ledger"
    await own_hosts.serving(lease_s=5)
    async with client_of(own_hosts) as client:
        run_id = await client.submit(TEN, {"ledger": str(ledger), "pace_s": 0.02})
        for count in (2, 5, 8):
            await until_executed(ledger, count)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        result = await client.result(run_id)

    assert result == ALL
    assert [number for number, _ in executed(ledger)] == ONCE_EACH


@pytest.mark.parametrize("lost", ["answer", "request"])
@pytest.mark.parametrize("written", ["value-4", "run.completed"])
async def test_a_write_whose_outcome_is_unknown_is_looked_up(  # noqa: PLR0917 - fixtures
    hosts: Hosts, client: Runtime, postgres_dsn: str, tmp_path: Path, written: str, lost: str
) -> None:
    """An applied COMMIT whose answer is lost, or one that never arrived, gives the same run."""
    ledger = tmp_path / "ledger"
    async with FaultProxy.to(postgres_dsn) as proxy:
        await hosts.serving(url=proxy.through(postgres_dsn), lease_s=10)
        lose = proxy.lose_response if lost == "answer" else proxy.lose_request
        loss = lose(request_has=written.encode())
        run_id = await client.submit(TEN, {"ledger": str(ledger)})
        async with asyncio.timeout(30):
            await loss.happened.wait()
        result = await client.result(run_id)
        hosts.end()
    entries = [(entry.kind, entry.position) async for entry in client.entries(run_id)]

    assert result == ALL
    assert [number for number, _ in executed(ledger)] == ONCE_EACH
    assert len(entries) == len(set(entries))


async def test_a_submit_without_a_hint_is_found_after_the_reconnect(
    hosts: Hosts, client: Runtime, postgres_dsn: str, tmp_path: Path
) -> None:
    """A lost hint costs time, never a run."""
    async with FaultProxy.to(postgres_dsn) as proxy:
        await hosts.serving(url=proxy.through(postgres_dsn), lease_s=30)
        proxy.cut()
        run_id = await client.submit(TEN, {"ledger": str(tmp_path / "ledger")})
        proxy.reset()
        proxy.heal()
        async with asyncio.timeout(30):
            result = await client.result(run_id)
        hosts.end()

    assert result == ALL
