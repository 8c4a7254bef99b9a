"""A connection that is opened again after a loss."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final, LiteralString, TypeAlias

import asyncpg

from actors.kernel.basics import Backoff
from persistence.errors import (
    DRIVER_ERRORS,
    DatabaseFullError,
    DatabaseUnreachableError,
    DatabaseUrlError,
    is_full,
    is_lost,
    is_passing,
    pooled,
    translate,
    want_of,
)
from persistence.postgres.connection.builtin_types import TypedConnection
from persistence.postgres.connection.outage import ServerOutage, address
from persistence.postgres.connection.settings import StoreSettings

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
Row: TypeAlias = asyncpg.Record
Attempted: TypeAlias = tuple[list[Row] | asyncpg.PostgresError, bool]
"""Rows, or that there is no capacity; and whether an earlier try may have been executed."""

_log = logging.getLogger("callboard.postgres")
CONNECT_TIMEOUT_S: Final = 5.0
PASSING_RETRIES: Final = 10
# Tables in the wrong schema, and plans that scan them, are what a session without its settings comes to.
SQL_SESSION: Final[LiteralString] = (
    "select name, current_setting(name) as value from unnest($1::text[]) name"
)
SQL_WHO_AM_I: Final[LiteralString] = (
    "select pid, backend_start, meet_server() as life from pg_stat_get_activity(pg_backend_pid())"
)
# A server process may go on with a statement whose connection is gone. It has to have ended
# before anybody asks what became of that statement. A pid alone could be somebody else's by now.
SQL_END_PREDECESSOR: Final[LiteralString] = (
    "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
    " where pid = $1 and backend_start = $2"
)
_SESSION: Final[Mapping[str, str]] = {
    "idle_in_transaction_session_timeout": "5s",
    "jit": "off",
    "timezone": "UTC",
}
# The statements of these connections all start from short arrays and probe indexes. A generic plan
# saves planning them each time; on young tables the planner would choose scans for it, and keep
# them. Where it counts no rows at all, a bitmap of any index costs as much as the index in order.
KEYED: Final[Mapping[str, str]] = {
    "plan_cache_mode": "force_generic_plan",
    "enable_bitmapscan": "off",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}


async def connect(settings: StoreSettings, extra: Mapping[str, str] | None = None) -> Connection:
    """Return a new connection whose `search_path` is the schema; driver errors come as they are.

    Raises:
        DatabaseUrlError: What answers is a pooler that does not pass the session's settings on.
    """
    asked = {"search_path": f'"{settings.schema}"', **_SESSION, **(extra or {})}
    connection = await asyncpg.connect(
        settings.url,
        timeout=CONNECT_TIMEOUT_S,
        max_cached_statement_lifetime=0,
        connection_class=TypedConnection,
        server_settings={"application_name": f"callboard {settings.owner}", **asked},
    )
    try:
        await _check_session(connection, settings.url, asked)
    except BaseException:
        connection.terminate()
        raise
    return connection


async def _check_session(connection: Connection, url: str, asked: Mapping[str, str]) -> None:
    rows = await connection.fetch(SQL_SESSION, [*asked], timeout=CONNECT_TIMEOUT_S)
    for name, value in rows:
        if value != asked[name]:
            raise pooled(url, f"{name} is {value}, and {asked[name]} was asked for")


class Link:
    """A connection that is opened when it is needed and again after it was lost.

    Not for concurrent use; `fetch` waits by itself.

    Args:
        settings: Settings of the server to connect to.
        outage: The store's outage.
        extra: Settings of its sessions.
        first: Its connection until it is lost, opened by the caller.
    """

    def __init__(
        self,
        settings: StoreSettings,
        outage: ServerOutage,
        extra: Mapping[str, str] | None = None,
        *,
        first: Connection | None = None,
    ) -> None:
        self._settings, self._outage, self._extra = settings, outage, extra
        self._connection = first
        self._backend: tuple[int, datetime] | None = None
        self._incarnation: datetime | None = None
        self._opened_at = 0.0
        self._lock = asyncio.Lock()

    def is_of(self, pid: int) -> bool:
        """Return True if a server process is that of this link's last connection."""
        return self._backend is not None and self._backend[0] == pid

    async def connection(self, deadline: float) -> Connection:
        """Return the open connection, or open one, waiting for the server until `deadline`.

        A predecessor's server process has ended when this returns.

        Args:
            deadline: The instant, by the event loop's clock, at which the call fails.

        Raises:
            DatabaseUnreachableError: The server was away until the deadline, or refused this user,
                which it has let in before, or a pooler has come between.
        """
        backoff = Backoff()
        if self._incarnation != self._outage.incarnation:
            self._forget()  # of a server whose place another one took
        while self._connection is None or self._connection.is_closed():
            try:
                self._connection = await self._open()
            except (DatabaseUrlError, *DRIVER_ERRORS) as exc:
                self._outage.begins(exc)
                self.check_time(deadline - backoff.pause_s, exc)
                await asyncio.sleep(backoff.next_s())
        return self._connection

    async def _open(self) -> Connection:
        connection = await connect(self._settings, self._extra)
        try:
            if self._backend is not None:
                await connection.fetch(SQL_END_PREDECESSOR, *self._backend)
            row = await connection.fetchrow(SQL_WHO_AM_I)
            assert row is not None
        except BaseException:
            connection.terminate()
            raise
        self._backend = (row["pid"], row["backend_start"])
        self._incarnation = row["life"]
        self._outage.ends()
        self._outage.meets(row["life"])
        self._opened_at = asyncio.get_running_loop().time()
        return connection

    def lose(self, exc: BaseException) -> bool:
        """Give the connection up if `exc` means that it is gone; say whether it is.

        Also where it is the driver that fails: the state of the connection is unknown.
        """
        connection = self._connection
        is_gone = is_lost(exc) or (connection is not None and connection.is_closed())
        if is_gone:
            self._outage.begins(exc, self._opened_at)
        if is_gone or not isinstance(exc, asyncpg.PostgresError):
            self._forget()
        return is_gone

    def check_time(self, deadline: float, exc: Exception) -> None:
        """Raise DatabaseUnreachableError if the deadline, by the event loop's clock, is over."""
        if asyncio.get_running_loop().time() > deadline:
            where, waited_s = address(self._settings), self._settings.outage_s
            raise DatabaseUnreachableError(where, waited_s, str(exc)) from exc

    async def fetch(self, doing: str, sql: LiteralString, *args: object) -> list[Row]:
        """Return the rows of a statement that may be executed twice. Waits out an outage.

        Args:
            doing: Its purpose, for errors.
            sql: The statement.
            args: Its arguments.

        Raises:
            RefusedError: The server refused the statement: nothing of it was executed.
            DatabaseUnreachableError: The server was away too long, or refused it after an earlier try
                whose answer was lost: that one may have been executed.
            DatabaseFullError: It had no capacity for too long: nothing was executed.
        """
        rows, _ = await self.fetch_once_or_again(doing, sql, *args)
        return rows

    async def fetch_once_or_again(
        self, doing: str, sql: LiteralString, *args: object
    ) -> tuple[list[Row], bool]:
        """Like `fetch`; also return whether an earlier try may have been executed.

        While a server is full, other callers use the connection between two tries.
        """
        attempt = partial(self.attempt, doing, sql, *args)
        return await _until_capacity(self._settings, self._outage, attempt)

    async def attempt(
        self, doing: str, sql: LiteralString, *args: object, deadline: float, again: bool
    ) -> Attempted:
        """Execute; return rows, or the error of a full server, and if an earlier try may have been executed."""
        passing = 0
        async with self._lock:
            while True:
                connection = await self.connection(deadline)
                try:
                    rows = await connection.fetch(sql, *args, timeout=self._settings.answer_s)
                except asyncio.CancelledError:
                    self._forget()  # the cancel request under way could hit the next statement
                    raise
                except Exception as exc:
                    if is_passing(exc) and (passing := passing + 1) < PASSING_RETRIES:
                        continue
                    if is_full(exc) and not is_lost(exc):
                        return exc, again
                    if not self.lose(exc):
                        raise (
                            _unsure(self._settings, exc, deadline)
                            if again
                            else translate(exc, doing)
                        ) from exc
                    again = True
                    self.check_time(deadline, exc)
                else:
                    return rows, again

    def _forget(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def close(self) -> None:
        """Close the connection, within two seconds."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await shut(connection)


async def shut(connection: Connection) -> None:
    """Close a connection, within two seconds, whatever its server does."""
    try:
        await connection.close(timeout=2)
    except DRIVER_ERRORS:
        connection.terminate()


async def _until_capacity(
    settings: StoreSettings, outage: ServerOutage, attempt: Callable[..., Awaitable[Attempted]]
) -> tuple[list[Row], bool]:
    """Return what `attempt` does, which is called again while the server has no capacity."""
    deadline = asyncio.get_running_loop().time() + settings.outage_s
    backoff, had_no_room, again = Backoff(), False, False
    while True:
        done, again = await attempt(deadline=deadline, again=again)
        if not isinstance(done, asyncpg.PostgresError):
            if had_no_room:
                outage.writes()
            return done, again
        had_no_room = True
        outage.refuses(done)
        if asyncio.get_running_loop().time() > deadline:
            if again:
                raise _unsure(settings, done, deadline) from done
            raise DatabaseFullError(address(settings), settings.outage_s, want_of(done)) from done
        await asyncio.sleep(backoff.next_s())


def _unsure(settings: StoreSettings, exc: Exception, deadline: float) -> DatabaseUnreachableError:
    """The statement is refused now; the answer to an earlier try of it was lost."""
    left_s = deadline - asyncio.get_running_loop().time()
    waited_s = round(settings.outage_s - left_s, 1)
    problem = f"its answer was lost, and sent again it was refused: {exc}"
    return DatabaseUnreachableError(address(settings), waited_s, problem)


class Links:
    """A few links; a statement takes the first that is free, however long the others take."""

    def __init__(
        self,
        settings: StoreSettings,
        outage: ServerOutage,
        count: int,
        extra: Mapping[str, str] | None = None,
    ) -> None:
        self._settings, self._outage = settings, outage
        self._links = [Link(settings, outage, extra) for _ in range(count)]
        # The one that was used last comes first: links that are not needed open no connection.
        self._free: asyncio.LifoQueue[Link] = asyncio.LifoQueue()
        for link in reversed(self._links):
            self._free.put_nowait(link)

    @property
    def outage_s(self) -> float:
        """The seconds for which calls wait for a server that went away."""
        return self._settings.outage_s

    async def fetch(self, doing: str, sql: LiteralString, *args: object) -> list[Row]:
        """See `Link.fetch`."""
        attempt = partial(self._attempt, doing, sql, *args)
        rows, _ = await _until_capacity(self._settings, self._outage, attempt)
        return rows

    async def _attempt(
        self, doing: str, sql: LiteralString, *args: object, deadline: float, again: bool
    ) -> Attempted:
        link = await self._free.get()
        try:
            return await link.attempt(doing, sql, *args, deadline=deadline, again=again)
        finally:
            self._free.put_nowait(link)

    async def value(self, doing: str, sql: LiteralString, *args: object) -> Any:
        """Return the one value of the one row; else see `Link.fetch`."""
        [[value]] = await self.fetch(doing, sql, *args)
        return value

    async def close(self) -> None:
        """Close them all."""
        for link in self._links:
            await link.close()
