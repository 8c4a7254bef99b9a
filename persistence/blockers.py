"""Log lines that name the session which blocks another one, while that one waits for a lock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, LiteralString, TypeAlias

from persistence.background import background
from persistence.errors import DRIVER_ERRORS

if TYPE_CHECKING:
    import asyncpg

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
Connect: TypeAlias = Callable[[], Awaitable[Connection]]

_log = logging.getLogger("callboard.postgres")

POLL_S: Final = 0.1
SAY_EVERY_S: Final = 10.0

# Of another role's session a role sees who it is; what it does, only with pg_read_all_stats.
SQL_BLOCKERS: Final[LiteralString] = """
select a.pid, a.application_name as name, a.query,
    round(extract(epoch from clock_timestamp() - a.xact_start))::int as age_s
  from unnest(pg_blocking_pids($1)) b(pid) join pg_stat_activity a on a.pid = b.pid
  order by a.xact_start
"""
# Sessions that have had a lock of a table of this schema for longer than a migration waits.
SQL_READERS: Final[LiteralString] = """
select a.pid, a.application_name as name, a.query,
    round(extract(epoch from clock_timestamp() - a.xact_start))::int as age_s
  from pg_stat_activity a
  where a.pid <> pg_backend_pid() and a.xact_start < clock_timestamp() - interval '0.5 s' and exists (
    select from pg_locks l join pg_class c on c.oid = l.relation
      where l.pid = a.pid and l.granted and c.relnamespace = current_schema()::regnamespace)
  order by a.xact_start limit 10
"""


@dataclass(slots=True)
class Waiting:
    """A session whose statement may have to wait for a lock.

    Attributes:
        pid: Process id of its server process.
        doing: What it is at now, for the log.
    """

    pid: int
    doing: str = ""


@asynccontextmanager
async def blockers_named(
    waiting: Waiting, connect: Connect | None, **facts: object
) -> AsyncIterator[None]:
    """Log who blocks the session, at once and every ten seconds, while the block lasts.

    Args:
        waiting: The session.
        connect: Makes the connection that polls; None: there is no polling.
        facts: More for the log line.
    """
    if connect is None:
        yield
        return

    async def poll() -> None:
        await asyncio.sleep(POLL_S)  # most are done by then
        try:
            connection = await connect()
        except DRIVER_ERRORS:
            return
        try:
            await _poll(connection, waiting, facts)
        except DRIVER_ERRORS:
            pass  # the session that waits will say what is wrong with the server
        finally:
            connection.terminate()

    async with background([poll], [], stop=lambda: None):
        yield


async def _poll(connection: Connection, waiting: Waiting, facts: dict[str, object]) -> None:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    said = begun - SAY_EVERY_S
    while True:
        rows = await connection.fetch(SQL_BLOCKERS, waiting.pid)
        if rows and loop.time() >= said + SAY_EVERY_S:
            said = loop.time()
            say_blockers(rows, **facts, migration=waiting.doing, waited_s=round(said - begun))
        await asyncio.sleep(POLL_S)


def say_blockers(rows: Sequence[asyncpg.Record], **facts: object) -> None:
    """Log who keeps a migration waiting, rows of `SQL_BLOCKERS` or `SQL_READERS`, with these facts."""
    blockers = [
        f"pid {row['pid']} ({row['name']}, for {row['age_s']} s): {row['query'][:200]}"
        for row in rows
    ]
    _log.warning("a migration waits for other sessions", extra={**facts, "blockers": blockers})
