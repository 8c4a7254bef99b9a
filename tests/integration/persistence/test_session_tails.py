"""Facts of sessions that another host writes: told while somebody follows the session, and else not at all."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

from persistence._postgres.conversations import fact_readers, sessions
from tests.conformance.run_store.test_sessions import CHAT, FOREIGN, kinds, said, submit
from tests.integration.persistence.hosts import connected, host, sql

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from actors._kernel.runtime.ids import AgentId
    from actors._kernel.stores.conversations import SessionFact
    from persistence.postgres import PostgresStore
    from tests.conformance.bed import Bed

SQL_WATCHED = "select agent from sessions where watched_until > clock_timestamp()"
READERS = 40
SQL_LISTENERS = """
select count(*) as n from pg_stat_activity where query like 'LISTEN "' || $1 || ':sessions"%'
"""


async def follow(bed: Bed, queue: asyncio.Queue[SessionFact], agent: AgentId = CHAT) -> None:
    """Read a session's facts until cancelled."""
    async with aclosing(bed.store.data.sessions.tail(agent)) as facts:  # type: ignore[type-var]
        async for fact in facts:
            queue.put_nowait(fact)


async def hears(url: str, schema: str) -> None:
    """Return when a host besides the test listens, and has said so."""
    while True:
        listeners = await sql(url, schema, SQL_LISTENERS, schema)
        if listeners[0]["n"] == 2 and await sql(url, schema, SQL_WATCHED):
            return
        await asyncio.sleep(0.01)


async def test_hosts_notify_of_sessions_that_a_client_follows(
    postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody looks for itself here; of other sessions nothing is said, nor when the reader has gone."""
    monkeypatch.setattr(fact_readers, "POLL_S", 3_600)
    notices: list[str] = []
    queue: asyncio.Queue[SessionFact] = asyncio.Queue()
    async with (
        host(postgres_dsn, schema) as writer,
        writer.rival() as reader,
        connected(postgres_dsn, schema) as ear,
    ):
        await ear.add_listener(
            f"{schema}:sessions", lambda *arguments: notices.append(str(arguments[-1]))
        )
        await said(writer, "a")
        task = asyncio.create_task(follow(reader, queue))
        async with asyncio.timeout(20):
            assert [(await queue.get()).number for _ in range(3)] == [1, 2, 3]
            await hears(postgres_dsn, schema)
            for n in range(4, 10, 3):
                await said(writer, f"{n}")
                await said(writer, f"{n}", agent=FOREIGN)
                assert [(await queue.get()).number for _ in range(3)] == [n, n + 1, n + 2]
            await ear.execute("select 1")
            assert set(notices) == {str(CHAT)}
            assert await kinds(writer, FOREIGN) == ["queued", "started", "ended"] * 2
            task.cancel()
            await asyncio.wait([task])
            await sql(postgres_dsn, schema, "update sessions set watched_until = null")
            notices.clear()
            await submit(writer)
            await ear.execute("select 1")
            assert notices == []


def count_statements(
    store: PostgresStore, counts: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Count what is asked by keys."""

    def count_calls(fetch: Callable[..., Any]) -> Callable[..., Any]:
        async def call(doing: str, sql: str, *args: object) -> Any:
            counts[sql] += 1
            return await fetch(doing, sql, *args)

        return call

    for link in store._keyed:
        monkeypatch.setattr(link, "fetch", count_calls(link.fetch))


async def test_many_readers_of_a_session_read_its_facts_once(
    postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who leaves in the middle of a statement takes no connection along."""
    monkeypatch.setattr(fact_readers, "POLL_S", 3_600)
    counts: Counter[str] = Counter()
    queue: asyncio.Queue[SessionFact] = asyncio.Queue()
    async with host(postgres_dsn, schema) as writer, writer.rival() as reader:
        store = cast("PostgresStore", reader.store)
        count_statements(store, counts, monkeypatch)
        await said(writer, "a")
        link = store.data.sessions._keyed._links[0]
        tasks = [asyncio.create_task(follow(reader, queue)) for _ in range(READERS)]
        async with asyncio.timeout(20):
            numbers = Counter([(await queue.get()).number for _ in range(3 * READERS)])
        connection = link._connection
        assert connection is not None
        leaving = asyncio.create_task(follow(reader, queue))
        async with asyncio.timeout(20):
            while not link._lock.locked():  # noqa: ASYNC110 - until it has asked
                await asyncio.sleep(0)
        for task in (*tasks, leaving):
            task.cancel()
        await asyncio.wait((*tasks, leaving))
        assert await kinds(reader) == ["queued", "started", "ended"]
        assert link._connection is connection

    assert numbers == {1: READERS, 2: READERS, 3: READERS}
    assert counts[sessions.SQL_FACTS] < READERS
    assert counts[fact_readers.SQL_WATCH_SESSION] < READERS


async def test_one_poll_is_for_all_sessions_that_are_followed(
    postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds facts that nobody told of; a session without any is not read again."""
    monkeypatch.setattr(fact_readers, "POLL_S", 0.02)
    monkeypatch.setattr(fact_readers.FactReaders, "_hear", lambda *_: None)
    counts: Counter[str] = Counter()
    queues: dict[AgentId, asyncio.Queue[SessionFact]] = {
        a: asyncio.Queue() for a in (CHAT, FOREIGN)
    }
    async with host(postgres_dsn, schema) as writer, writer.rival() as reader:
        store = cast("PostgresStore", reader.store)

        async def looked(times: int) -> None:
            count_before = counts[fact_readers.SQL_POLL_SESSIONS]
            while counts[fact_readers.SQL_POLL_SESSIONS] < count_before + times:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

        count_statements(store, counts, monkeypatch)
        tasks = [
            asyncio.create_task(follow(reader, queues[agent], agent))
            for agent in queues
            for _ in "ab"
        ]
        async with asyncio.timeout(20):
            for agent in queues:
                await said(writer, "a", agent=agent)
            for facts in queues.values():
                assert [(await facts.get()).number for _ in range(6)].count(3) == 2
            await looked(fact_readers.SAY_EVERY)
            before = counts[sessions.SQL_FACTS]
            await looked(fact_readers.SAY_EVERY)
            watched_rows = await sql(postgres_dsn, schema, SQL_WATCHED)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    assert counts[sessions.SQL_FACTS] == before
    assert counts[fact_readers.SQL_WATCH_SESSIONS] >= 2
    assert {row["agent"] for row in watched_rows} == {str(agent) for agent in queues}
