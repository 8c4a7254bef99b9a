"""What a server or its driver refuses: an error of ours for that one caller, and everybody goes on."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from actors._kernel.agent.message import Message
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId, HostIncarnation, RunId, TopicId
from actors._kernel.runtime.rows import NewRun
from actors.errors import PersistenceError
from persistence._postgres.connection.link import Link, ServerOutage
from persistence._postgres.connection.listener import Listener
from persistence.postgres import StoreSettings, Takeover, open_store
from tests.conformance.bed import message
from tests.integration.persistence.hosts import host, sql, store_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from persistence._postgres.connection.link import Connection
    from persistence.postgres import PostgresStore
    from tests.conformance.bed import Bed
    from tests.harness.servers import OwnPostgres

GOOD, FINE, BAD = "good", "fine", "\x00"
"""Ids; the server refuses the last one."""


@pytest.fixture
async def bed(postgres_dsn: str, schema: str) -> AsyncIterator[Bed]:
    """A host that owns every shard."""
    async with host(postgres_dsn, schema) as bed:
        yield bed


def submit(store: PostgresStore, run_id: RunId, name: str) -> Awaitable[object]:
    """Submit a run for a message with this id."""
    new = NewRun(RunId(f"{run_id}.{len(name)}.{name.isprintable()}"), AgentId("desk", "1"))
    return store.arrivals.submit(new, message(id=name))


def deliver(store: PostgresStore, run_id: RunId, name: str) -> Awaitable[object]:
    """Deliver mail with this id."""
    del run_id
    return store.arrivals.deliver([message(id=name)])


def signal(store: PostgresStore, run_id: RunId, name: str) -> Awaitable[object]:
    """Send a signal with this id."""
    return store.arrivals.signal(run_id, "go", None, message_id=name, sender="client:tests")


def publish(store: PostgresStore, run_id: RunId, name: str) -> Awaitable[object]:
    """Publish a post with this id."""
    del run_id
    return store.posts.publish(Message(name, TopicId("news"), None, "client:tests"))


def load(store: PostgresStore, run_id: RunId, name: str) -> Awaitable[object]:
    """Load two runs."""
    return store.reads.load([run_id, RunId(name)])


@pytest.mark.parametrize("call", [submit, deliver, signal, publish, load])
async def test_a_bad_call_does_not_fail_those_it_was_grouped_with(
    bed: Bed, call: Callable[[PostgresStore, RunId, str], Awaitable[object]]
) -> None:
    """Who sends an id that cannot be stored is told so; its neighbours' calls are written."""
    run = await bed.begin()

    answers = await asyncio.gather(
        *(call(store_of(bed), run.run_id, name) for name in (GOOD, BAD, FINE)),
        return_exceptions=True,
    )

    assert isinstance(answers[1], PersistenceError)
    assert [isinstance(answer, BaseException) for answer in answers] == [False, True, False]


async def test_a_driver_at_odds_with_itself_costs_one_call(postgres_dsn: str, schema: str) -> None:
    """Its connection is not used again: it would refuse everything from then on."""
    settings = StoreSettings(url=postgres_dsn, schema=schema, owner=HostIncarnation("h1"))
    async with open_store(settings):
        pass  # the tables are there
    link = Link(settings, ServerOutage(settings))
    connection = await link.connection(asyncio.get_running_loop().time() + 5)
    busy = asyncio.ensure_future(connection.execute("select pg_sleep(60)"))
    await asyncio.sleep(0)
    with pytest.raises(PersistenceError, match="another operation is in progress"):
        await link.fetch("reading", "select 1")

    (row,) = await link.fetch("reading", "select 2 as n")

    assert row["n"] == 2
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
        await busy
    await link.close()


async def test_who_is_locked_out_for_a_while_waits_as_for_a_server_that_is_away(
    own_postgres: OwnPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting may help whom the server has let in before; an error at once would end parts of a host."""
    url = own_postgres().url
    await sql(url, "public", "create role guest login password 'guest'")
    guest = "postgresql://guest:guest@" + url.partition("@")[2]
    async with open_store(StoreSettings(url=url, owner=HostIncarnation("h1"))):
        await sql(url, "public", "grant usage on schema callboard to guest")
    settings = StoreSettings(url=guest, owner=HostIncarnation("h1"))
    was_refused, connect = asyncio.Event(), asyncpg.connect

    async def watch_and_connect(*args: Any, **more: Any) -> Connection:
        try:
            return await connect(*args, **more)
        except asyncpg.InvalidAuthorizationSpecificationError:
            was_refused.set()
            raise

    monkeypatch.setattr(asyncpg, "connect", watch_and_connect)
    link = Link(settings, ServerOutage(settings))
    [(pid,)] = await link.fetch("reading", "select pg_backend_pid()")
    await sql(url, "public", "alter role guest nologin")
    await sql(url, "public", "select pg_terminate_backend($1)", pid)
    asking = asyncio.ensure_future(link.fetch("reading", "select 2"))
    async with asyncio.timeout(10):
        await was_refused.wait()
        await sql(url, "public", "alter role guest login")

        assert [row[0] for row in await asking] == [2]
    await link.close()


class _Unheard(StoreSettings):
    """Settings whose channel the server refuses to listen to."""

    __slots__ = ()

    own_channel = ""


async def test_a_refused_listener_retries_with_growing_pauses_and_logs_once(
    postgres_dsn: str,
    schema: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server that takes the connection and not the LISTEN, as a read-only one does, is no loop."""
    times: list[float] = []
    loop, enough, connect = asyncio.get_running_loop(), asyncio.Event(), asyncpg.connect

    async def connect_and_count(*args: Any, **more: Any) -> Connection:
        times.append(loop.time())
        if len(times) == 4:
            enough.set()
        return await connect(*args, **more)

    monkeypatch.setattr(asyncpg, "connect", connect_and_count)
    settings = _Unheard(url=postgres_dsn, schema=schema, owner=HostIncarnation("h1"))
    listening = asyncio.ensure_future(Listener(settings, ServerOutage(settings)).run())
    async with asyncio.timeout(10):
        await enough.wait()
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)

    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    least = [0.05 * 2**n for n in range(3)]
    assert all(pause >= minimum for pause, minimum in zip(pauses, least, strict=True))
    assert [line for line in caplog.messages if "connection to" in line] == [
        "connection to PostgreSQL lost; calls wait for it"
    ]


@pytest.mark.parametrize(
    "problem", [asyncpg.QueryCanceledError("statement timeout"), RuntimeError("never heard of")]
)
async def test_the_watch_for_dead_hosts_continues_after_any_error(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    """Without it a dead host's agents would wait for the next scan."""
    settings = store_of(bed).settings
    has_claimed = asyncio.Event()
    problems = [problem]

    async def claim() -> None:
        has_claimed.set()

    fetch = asyncpg.Connection.fetch

    async def fails_first(connection: Connection, query: str, *args: object, **more: Any) -> Any:
        if "expires_at - clock_timestamp()" in query and problems:
            raise problems.pop()
        return await fetch(connection, query, *args, **more)

    monkeypatch.setattr(asyncpg.Connection, "fetch", fails_first)
    await sql(settings.url, settings.schema, "update hosts set expires_at = '2000-01-01'")
    other = StoreSettings(
        url=settings.url, schema=settings.schema, owner=HostIncarnation("h2"), heartbeat_s=0.05
    )
    watching = asyncio.ensure_future(Takeover(other, claim).run())
    try:
        async with asyncio.timeout(10):
            await has_claimed.wait()
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert problems == []


async def test_a_hint_of_another_release_does_not_block_others(
    bed: Bed, caplog: pytest.LogCaptureFixture
) -> None:
    """What cannot be read is said, and left."""
    store, nudges = store_of(bed), asyncio.Queue[Nudge]()
    await store.listening()
    store.set_nudge_hook(nudges.put_nowait)
    channel, notify = store.settings.own_channel, "select pg_notify($1, $2)"
    for hint in ('[["mail", "no agent", null]]', '[["mail", "desk/7", null]]'):
        await sql(store.settings.url, store.settings.schema, notify, channel, hint)

    async with asyncio.timeout(10):
        nudge = await nudges.get()

    assert nudge == Nudge("mail", AgentId("desk", "7"))
    assert "a hint could not be read" in caplog.messages
