"""Facts of sessions that another host writes: told while somebody follows the session, and else not at all."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from persistence.postgres.features import sessions
from tests.conformance.run_store.test_sessions import CHAT, FOREIGN, kinds, said, submit
from tests.integration.persistence.hosts import connected, host, sql

if TYPE_CHECKING:
    import pytest

    from actors.kernel.storage.session import SessionFact
    from tests.conformance.bed import Bed

SQL_WATCHED = "select agent from sessions where watched_until > clock_timestamp()"
SQL_LISTENERS = """
select count(*) as n from pg_stat_activity where query like 'LISTEN "' || $1 || ':sessions"%'
"""


async def follow(bed: Bed, found: asyncio.Queue[SessionFact]) -> None:
    """Read a session's facts until cancelled."""
    async with aclosing(bed.store.sessions.tail(CHAT)) as facts:  # type: ignore[type-var]
        async for fact in facts:
            found.put_nowait(fact)


async def hears(url: str, schema: str) -> None:
    """Return when a host besides the test listens, and has said so."""
    while True:
        listeners = await sql(url, schema, SQL_LISTENERS, schema)
        if listeners[0]["n"] == 2 and await sql(url, schema, SQL_WATCHED):
            return
        await asyncio.sleep(0.01)


async def test_hosts_tell_of_sessions_that_somebody_follows(
    postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody looks for itself here; of other sessions nothing is said, nor when the reader has gone."""
    monkeypatch.setattr(sessions, "TAIL_POLL_S", 3_600)
    heard: list[str] = []
    found: asyncio.Queue[SessionFact] = asyncio.Queue()
    async with (
        host(postgres_dsn, schema) as writer,
        writer.rival() as reader,
        connected(postgres_dsn, schema) as ear,
    ):
        await ear.add_listener(f"{schema}:sessions", lambda *said: heard.append(str(said[-1])))
        await said(writer, "a")
        task = asyncio.create_task(follow(reader, found))
        async with asyncio.timeout(20):
            assert [(await found.get()).number for _ in range(3)] == [1, 2, 3]
            await hears(postgres_dsn, schema)
            for n in range(4, 10, 3):
                await said(writer, f"{n}")
                await said(writer, f"{n}", agent=FOREIGN)
                assert [(await found.get()).number for _ in range(3)] == [n, n + 1, n + 2]
            await ear.execute("select 1")
            assert set(heard) == {str(CHAT)}
            assert await kinds(writer, FOREIGN) == ["queued", "started", "ended"] * 2
            task.cancel()
            await asyncio.wait([task])
            await sql(postgres_dsn, schema, "update sessions set watched_until = null")
            heard.clear()
            await submit(writer)
            await ear.execute("select 1")
            assert heard == []
