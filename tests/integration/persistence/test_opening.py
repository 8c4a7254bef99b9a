"""Opening and closing a store, and the errors of a wrong URL."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import asyncpg
import pytest

from actors._kernel.runtime.ids import HostIncarnation
from actors.errors import ContractError, InvalidNameError, PersistenceError
from persistence._migrate import migrate
from persistence._postgres import opening
from persistence.errors import DatabaseUnreachableError, DatabaseUrlError, without_password
from persistence.postgres import PostgresStore, StoreSettings, open_postgres_store, open_store
from tests.harness.proxy import FaultProxy
from tests.integration.persistence.hosts import host, sql

if TYPE_CHECKING:
    from actors._kernel.stores.run_store import RunStore
    from persistence._postgres.connection.link import Connection
    from tests.harness.servers import OwnPostgres

OWNER = HostIncarnation("h1")


def test_it_is_a_run_store() -> None:
    """By shape; mypy checks this line."""
    shape: type[RunStore] = PostgresStore

    assert shape is PostgresStore


async def test_opening_waits_for_a_server_that_is_not_there_yet(
    own_postgres: OwnPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so with host and port, and goes on when the server comes."""
    server = own_postgres()
    await asyncio.to_thread(server.stop)

    async def open_it() -> int:
        async with open_postgres_store(server.url, owner=OWNER) as store:
            return len(await store.lists.runs())

    opening = asyncio.ensure_future(open_it())
    await asyncio.sleep(0.3)
    await asyncio.to_thread(server.start)

    assert await opening == 0
    line, *_ = (r for r in caplog.records if r.message == "waiting for PostgreSQL")
    assert vars(line)["server"] == urlsplit(server.url).netloc.rpartition("@")[2]


async def test_opening_gives_up_after_its_limit() -> None:
    """With the server's address and the time, never the password."""
    url = "postgresql://me:secret@127.0.0.1:1/db"

    with pytest.raises(DatabaseUnreachableError, match=r"127\.0\.0\.1:1 .* 0\.2 s") as exc_info:
        async with open_postgres_store(url, owner=OWNER, start_wait_s=0.2):
            pass
    assert "secret" not in str(exc_info.value)
    assert isinstance(exc_info.value, PersistenceError)


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ("password", "Check user and password"),
        ("database", "Create the database"),
        ("scheme", "Write postgresql://"),
    ],
)
async def test_a_wrong_url_is_refused_at_once(
    own_postgres: OwnPostgres, change: str, remedy: str
) -> None:
    """Waiting would not help: the error shows the URL without its password, and what to do."""
    parts = urlsplit(own_postgres().url)
    wrong = {
        "password": parts._replace(netloc=f"postgres:secret@127.0.0.1:{parts.port}"),
        "database": parts._replace(path="/nosuch"),
        "scheme": parts._replace(scheme="mysql"),
    }[change]

    with pytest.raises(DatabaseUrlError, match=remedy) as exc_info:
        async with open_postgres_store(wrong.geturl(), owner=OWNER):
            pass
    assert isinstance(exc_info.value, ContractError)
    assert "secret" not in str(exc_info.value)
    assert str(parts.password) not in str(exc_info.value)
    assert f"127.0.0.1:{parts.port}" in str(exc_info.value)


def test_a_url_is_shown_without_its_password() -> None:
    """Wherever the password stands."""
    assert without_password("postgresql://u:p@h:1/d?x=1") == "postgresql://u:***@h:1/d?x=1"
    assert "p4ss" not in without_password("postgresql://h/d?user=u&password=p4ss")
    assert without_password("postgresql://h/d") == "postgresql://h/d"
    assert "p4ss" not in without_password("postgresql://[u:p4ss@h")


@pytest.mark.parametrize("cut", ["p4ss/word", "1234/p4ss", "p4ss#word", "p4ss?word"])
async def test_a_password_that_cuts_the_url_in_the_wrong_place_is_not_shown(cut: str) -> None:
    """Its special characters have to be percent-encoded; the error says how to write a URL."""
    with pytest.raises(DatabaseUrlError, match="Write postgresql://") as exc_info:
        async with open_postgres_store(f"postgresql://me:{cut}@127.0.0.1:1/db", owner=OWNER):
            pass

    assert "p4ss" not in f"{exc_info.value!r} {exc_info.value}"
    assert "1234" not in f"{exc_info.value!r} {exc_info.value}"


def test_an_error_of_a_url_holds_no_password_at_all() -> None:
    """Not in its repr, and not in what another process gets of it."""
    error = DatabaseUrlError("postgresql://u:p4ss@h/d", "it is closed", "Open it")

    assert "p4ss" not in repr(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


async def test_a_schema_name_is_checked() -> None:
    """It goes into a search path and into channel names."""
    with pytest.raises(InvalidNameError):
        async with open_postgres_store("postgresql://h/d", owner=OWNER, schema='x"; drop'):
            pass


async def test_opening_does_not_fail_by_a_server_that_is_silent_for_a_moment(
    postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even in the moment in which the connection of the migrations is closed."""
    terminate = asyncpg.Connection.terminate
    async with FaultProxy.to(postgres_dsn) as proxy:

        async def silent_behind(connection: Connection, schema: str, **_: object) -> list[str]:
            applied_names = await migrate(connection, schema)
            proxy.cut()
            return applied_names

        def ends(connection: Connection) -> None:
            terminate(connection)
            proxy.heal()

        monkeypatch.setattr(opening, "migrate", silent_behind)
        monkeypatch.setattr(asyncpg.Connection, "terminate", ends)
        url = proxy.through(postgres_dsn)
        settings = StoreSettings(url=url, schema=schema, owner=OWNER, answer_s=1)
        async with open_store(settings) as store:
            assert await store.lists.runs() == []


async def test_an_error_in_the_block_comes_out_as_it_is(postgres_dsn: str, schema: str) -> None:
    """Not wrapped in a group, and all connections are closed (the schema fixture looks)."""
    with pytest.raises(ZeroDivisionError):
        async with open_postgres_store(postgres_dsn, schema=schema, owner=OWNER):
            raise ZeroDivisionError


async def test_a_cancelled_block_closes_everything(postgres_dsn: str, schema: str) -> None:
    """Cancellation passes through."""
    entered = asyncio.Event()

    async def live() -> None:
        async with open_postgres_store(postgres_dsn, schema=schema, owner=OWNER):
            entered.set()
            await asyncio.sleep(60)

    task = asyncio.ensure_future(live())
    await entered.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_closed_store_refuses_calls(postgres_dsn: str, schema: str) -> None:
    """Queued writes are finished, later ones fail at once."""
    async with host(postgres_dsn, schema) as bed:
        run = await bed.begin()
        commit = run.turn()
        last = asyncio.ensure_future(bed.store.commits.commit(commit))
        await asyncio.sleep(0)

    assert (await last) is not None
    with pytest.raises(PersistenceError, match="closed"):
        await bed.store.commits.commit(commit)


async def test_closing_does_not_hang_on_a_server_that_is_silent(
    postgres_dsn: str, schema: str
) -> None:
    """A cut route at the end costs some seconds, not a hang."""
    async with FaultProxy.to(postgres_dsn) as proxy:
        async with asyncio.timeout(15):
            async with host(proxy.through(postgres_dsn), schema):
                proxy.cut()
        proxy.heal()
    assert await sql(postgres_dsn, schema, "select 1")
