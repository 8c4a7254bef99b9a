"""The two builders: what they open is closed again, and a folder has one server for all."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import asyncpg
import pytest

from actors._kernel.runtime.ids import AgentId
from actors.errors import ContractError
from compose import Settings, build_local_runtime, build_postgres_runtime
from compose._assembly.settings import read_settings
from compose.embedded import url_if_running
from persistence.errors import DatabaseUnreachableError, DatabaseUrlError
from tests.harness.servers import server_directory
from tests.harness.servers.postgres import OBSERVER
from tests.system.agents import Ten

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TEN = AgentId("ten", "a")
ALL = [f"value-{n}" for n in range(10)]


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder that an embedded server can use."""
    if sys.platform == "win32":
        pytest.skip("there is no embedded PostgreSQL for this system")
    with server_directory() as directory:
        yield directory


class BoomError(Exception):
    """What goes wrong in the block."""


async def sessions(url: str) -> int:
    """How many connections hosts have."""
    connection = await asyncpg.connect(url)
    try:
        count = await connection.fetchval(
            "select count(*) from pg_stat_activity"
            " where application_name like 'callboard %' and application_name <> $1",
            OBSERVER,
        )
    finally:
        await connection.close()
    return int(count)


@pytest.mark.item(6, 21)
async def test_a_postgres_runtime_makes_its_tables_and_is_started(
    postgres_dsn: str, schema: str, tmp_path: Path
) -> None:
    """A run is executed without anything set up before."""
    settings = Settings(db_schema=schema, trace_redact="salary")
    async with build_postgres_runtime(postgres_dsn, settings=settings) as runtime:
        assert runtime.hidden_names.covers("Salary")
        await runtime.register_type("ten", Ten)
        run_id = await runtime.submit(TEN, {"ledger": str(tmp_path / "ledger")})

        assert await runtime.result(run_id) == ALL


@pytest.mark.item(6)
@pytest.mark.parametrize("way_out", ["return", "error", "cancel"])
async def test_a_runtime_closes_everything_on_every_way_out(
    postgres_dsn: str, schema: str, way_out: str
) -> None:
    """No connection is left (the schema fixture looks too), and the shards are given up."""
    settings = Settings(db_schema=schema, lease_s=60)
    inside = asyncio.Event()

    async def block() -> None:
        async with build_postgres_runtime(postgres_dsn, settings=settings) as runtime:
            await runtime.register_type("ten", Ten)
            inside.set()
            if way_out == "error":
                raise BoomError
            if way_out == "cancel":
                await asyncio.Event().wait()

    task = asyncio.ensure_future(block())
    await inside.wait()
    if way_out == "cancel":
        await asyncio.sleep(0)
        task.cancel()
    done_tasks, _ = await asyncio.wait([task], timeout=10)
    async with build_postgres_runtime(postgres_dsn, settings=settings) as second:
        await second.register_type("ten", Ten)

        assert len(second._host.worker.held.leases) == 16
    assert done_tasks
    assert task.cancelled() is (way_out == "cancel")
    assert way_out == "cancel" or isinstance(task.exception(), BoomError) is (way_out == "error")
    async with asyncio.timeout(20):  # a server process outlives its connection
        while await sessions(postgres_dsn):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.costly
@pytest.mark.item(172, 484)
async def test_a_folder_has_one_server_for_all_who_open_it(folder: Path, tmp_path: Path) -> None:
    """The second runtime uses the first one's server; afterwards the data is still there."""
    job = {"ledger": str(tmp_path / "ledger")}
    async with (
        build_local_runtime(folder) as host,
        build_local_runtime(folder, serve=False, client="other") as client,
    ):
        await host.register_type("ten", Ten)
        run_id = await client.submit(TEN, job)
        result = await client.result(run_id)
    closed = url_if_running(folder)
    async with build_local_runtime(folder, serve=False) as again:
        stored_result = await again.result(run_id)

    assert result == stored_result == ALL
    assert closed is None


async def test_two_that_open_a_new_folder_at_once_share_its_server(folder: Path) -> None:
    """One of them is faster; the other one is not refused."""
    both_in = asyncio.Barrier(2)

    async def use(name: str) -> str:
        async with build_local_runtime(folder, serve=False, client=name) as runtime:
            run_id = await runtime.submit(TEN, name)
            async with asyncio.timeout(20):
                await both_in.wait()
                rows = await runtime.store.lists.runs()
                await both_in.wait()
            assert run_id in {row.run_id for row in rows}
            return str(len(rows))

    assert list(await asyncio.gather(use("one"), use("two"))) == ["2", "2"]


async def test_a_builder_that_is_cancelled_while_the_server_starts_leaves_none(
    folder: Path,
) -> None:
    """The start is waited for and the server stopped."""
    task = asyncio.ensure_future(build_local_runtime(folder).__aenter__())
    await asyncio.sleep(0.2)
    task.cancel()
    await asyncio.wait([task], timeout=20)

    assert task.cancelled()
    assert url_if_running(folder) is None


async def test_a_server_that_is_not_there_is_an_error_when_the_wait_is_over() -> None:
    """It names the server and what to look at."""
    settings = Settings(start_wait_s=0.2)
    with pytest.raises(DatabaseUnreachableError, match=r"127\.0\.0\.1:1"):
        async with build_postgres_runtime("postgresql://u@127.0.0.1:1/d", settings=settings):
            pass


async def test_a_database_that_does_not_exist_is_not_waited_for(postgres_dsn: str) -> None:
    """Waiting would not help; the password is not shown."""
    url = postgres_dsn.rsplit("/", 1)[0] + "/no_such_database"
    with pytest.raises(DatabaseUrlError, match="Create the database") as exc_info:
        async with build_postgres_runtime(url):
            pass

    assert postgres_dsn.split(":")[2].split("@", maxsplit=1)[0] not in str(exc_info.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lease_s": 0}, "CALLBOARD_LEASE_S=0"),
        ({"heartbeat_s": 9.0}, "at most half of lease_s=10"),
        ({"capacity": 0}, "CALLBOARD_CAPACITY=0"),
    ],
)
def test_errors_of_settings_name_the_problem(settings: dict[str, float], words: str) -> None:
    """The variable, the value, the rule."""
    with pytest.raises(ContractError, match=words):
        read_settings(**settings)


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given wins."""
    monkeypatch.setenv("CALLBOARD_LEASE_S", "30")
    monkeypatch.setenv("CALLBOARD_SCHEMA", "mine")

    assert read_settings().db_schema == "mine"
    assert read_settings().beat_s == 9.0
    assert read_settings(lease_s=5.0, db_schema=None).lease_s == 5.0


def test_what_is_old_goes_after_thirty_days_if_nothing_is_said() -> None:
    """Another number of days, or the word for ever, is said by a setting."""
    assert read_settings().retain_days == 30
    assert read_settings(retain_days="90").retain_days == 90
    assert read_settings(retain_days="forever").retain_days is None
    for wrong in ("0", "never", "1e12"):
        with pytest.raises(ContractError, match=f"CALLBOARD_RETAIN_DAYS='{wrong}'"):
            read_settings(retain_days=wrong)
