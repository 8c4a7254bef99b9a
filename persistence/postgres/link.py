"""One connection that comes back by itself, and the outage that all of a store's share."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, LiteralString, TypeAlias
from urllib.parse import urlsplit

import asyncpg

from persistence.errors import (
    DRIVER_ERRORS,
    DatabaseFullError,
    DatabaseUnreachableError,
    is_full,
    is_lost,
    is_passing,
    translate,
    want_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from persistence.postgres.settings import StoreSettings

    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]
    Row: TypeAlias = asyncpg.Record

_log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0
CONNECT_TIMEOUT_S: Final = 5.0
PASSING_RETRIES: Final = 10

SQL_WHO_AM_I: Final[LiteralString] = (
    "select pid, backend_start, meet_server() as life from pg_stat_activity"
    " where pid = pg_backend_pid()"
)
# A server process may go on with a statement whose connection is gone. It has to have ended
# before anybody asks what became of that statement. A pid alone could be somebody else's by now.
SQL_END_PREDECESSOR: Final[LiteralString] = (
    "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
    " where pid = $1 and backend_start = $2"
)

_SESSION: Final[Mapping[str, str]] = {
    "application_name": "callboard",
    "idle_in_transaction_session_timeout": "5s",
    "jit": "off",
    "timezone": "UTC",
}
# The statements of these connections all start from short arrays and probe indexes. A generic plan
# saves planning them each time; on young tables the planner would choose scans for it, and keep
# them.
KEYED: Final[Mapping[str, str]] = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}


async def connect(settings: StoreSettings, extra: Mapping[str, str] | None = None) -> Connection:
    """Return a new connection whose `search_path` is the schema; driver errors come as they are."""
    return await asyncpg.connect(
        settings.url,
        timeout=CONNECT_TIMEOUT_S,
        max_cached_statement_lifetime=0,
        server_settings={**_SESSION, **(extra or {}), "search_path": f'"{settings.schema}"'},
    )


def address(settings: StoreSettings) -> str:
    """Return host and port for log lines."""
    parts = urlsplit(settings.url)
    return parts.netloc.rpartition("@")[2] or "the default host"


class Outage:
    """Whether the server is away: one log line when it goes and one when it is back.

    Attributes:
        life: Which life of the server was met last.
        on_new_life: Called on the event loop when another one is met, before anything is asked of it.
            It may be behind: a standby that took over without the last commits.
    """

    __slots__ = (
        "_full", "_full_since", "_over_at", "_refused", "_since", "_where", "life", "on_new_life",
    )  # fmt: skip

    def __init__(self, settings: StoreSettings) -> None:
        self._where = address(settings)
        self._since: float | None = None
        self._over_at = 0.0
        self._full_since = 0.0
        self._full: str | None = None
        self._refused: str | None = None
        self.life: datetime | None = None
        self.on_new_life: Callable[[], None] = lambda: None

    def meets(self, life: datetime) -> None:
        """Note whose connection was made."""
        known, self.life = self.life, life
        if known not in {None, life}:
            self.on_new_life()

    @property
    def trouble(self) -> str | None:
        """Why a server that is there takes nothing; None: it does, as far as anybody knows."""
        return self._full or self._refused

    def refuses(self, problem: BaseException) -> None:
        """Note that the server had no room for a statement."""
        if self._full is None:
            self._full_since = asyncio.get_running_loop().time()
            _log.warning(
                "PostgreSQL refuses to write; calls wait for it",
                extra={"server": self._where, "problem": want_of(problem)},
            )
        self._full = f"refuses to write: {want_of(problem)}"

    def writes(self) -> None:
        """Note that the server took what it had no room for."""
        if self._full is not None:
            self._full = None
            away_s = asyncio.get_running_loop().time() - self._full_since
            _log.warning(
                "PostgreSQL writes again",
                extra={"server": self._where, "away_s": round(away_s, 3)},
            )

    def begins(self, problem: BaseException, opened_at: float | None = None) -> None:
        """Note that a connection, opened at that time of the event loop's clock, was lost.

        One that is older than the end of the last outage was lost in that one already.
        """
        if is_full(problem):
            self._refused = f"refuses connections: {want_of(problem)}"
        if self._since is None and (opened_at is None or opened_at > self._over_at):
            self._since = asyncio.get_running_loop().time()
            _log.warning(
                "connection to PostgreSQL lost; calls wait for it",
                extra={"server": self._where, "problem": f"{type(problem).__name__}: {problem}"},
            )

    def ends(self) -> None:
        """Note that a connection was made."""
        self._refused = None
        if self._since is not None:
            self._over_at = asyncio.get_running_loop().time()
            away_s = self._over_at - self._since
            self._since = None
            _log.warning(
                "connection to PostgreSQL is back",
                extra={"server": self._where, "away_s": round(away_s, 3)},
            )


class Link:
    """A connection that is opened when it is needed and again after it was lost.

    Not for concurrent use; `fetch` takes turns by itself.
    """

    def __init__(
        self, settings: StoreSettings, outage: Outage, extra: Mapping[str, str] | None = None
    ) -> None:
        self._settings, self._outage, self._extra = settings, outage, extra
        self._connection: Connection | None = None
        self._backend: tuple[int, datetime] | None = None
        self._life: datetime | None = None
        self._opened_at = 0.0
        self._turn = asyncio.Lock()

    async def connection(self, deadline: float) -> Connection:
        """Return the open connection, or open one, waiting for the server until `deadline`.

        A predecessor's server process has ended when this returns.

        Args:
            deadline: By the event loop's clock.

        Raises:
            DatabaseUnreachableError: The server was away until the deadline, or refused this user,
                which it has let in before.
        """
        pause_s = FIRST_PAUSE_S
        if self._life != self._outage.life:
            self._forget()  # of a server whose place another one took
        while self._connection is None or self._connection.is_closed():
            try:
                self._connection = await self._open()
            except DRIVER_ERRORS as exc:
                self._outage.begins(exc)
                self.check_time(deadline - pause_s, exc)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
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
        self._life = row["life"]
        self._outage.ends()
        self._outage.meets(row["life"])
        self._opened_at = asyncio.get_running_loop().time()
        return connection

    def lose(self, exc: BaseException) -> bool:
        """Give the connection up if `exc` means that it is gone; say whether it is.

        Also where it is the driver that fails: nobody knows what state it left the connection in.
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
            doing: What it is for, as an error tells it.
            sql: The statement.
            args: Its arguments.

        Raises:
            RefusedError: The server refused the statement.
            DatabaseUnreachableError: The server was away too long.
            DatabaseFullError: It had no room for too long.
        """
        rows, _ = await self.fetch_once_or_again(doing, sql, *args)
        return rows

    async def fetch_once_or_again(
        self, doing: str, sql: LiteralString, *args: object
    ) -> tuple[list[Row], bool]:
        """Like `fetch`; also return whether an earlier try may have been executed.

        Between two tries of a server that has no room others have the connection.
        """
        deadline = asyncio.get_running_loop().time() + self._settings.outage_s
        pause_s, had_no_room = FIRST_PAUSE_S, False
        while True:
            done = await self._fetch(doing, sql, *args, deadline=deadline)
            if not isinstance(done, asyncpg.PostgresError):
                if had_no_room:
                    self._outage.writes()
                return done
            had_no_room = True
            self._outage.refuses(done)
            if asyncio.get_running_loop().time() > deadline:
                limit_s = self._settings.outage_s
                raise DatabaseFullError(address(self._settings), limit_s, want_of(done)) from done
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def _fetch(
        self, doing: str, sql: LiteralString, *args: object, deadline: float
    ) -> tuple[list[Row], bool] | asyncpg.PostgresError:
        """Return rows and whether an earlier try may have been executed; or that there is no room."""
        again, passing = False, 0
        async with self._turn:
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
                        return exc
                    if not self.lose(exc):
                        raise translate(exc, doing) from exc
                    again = True
                    self.check_time(deadline, exc)
                else:
                    return rows, again

    def _forget(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    @property
    def busy(self) -> bool:
        """Whether a `fetch` is under way."""
        return self._turn.locked()

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


class Links:
    """A few links; a statement takes the first that is free."""

    def __init__(
        self,
        settings: StoreSettings,
        outage: Outage,
        count: int,
        extra: Mapping[str, str] | None = None,
    ) -> None:
        self._links = [Link(settings, outage, extra) for _ in range(count)]
        self._next = 0

    async def fetch(self, doing: str, sql: LiteralString, *args: object) -> list[Row]:
        """See `Link.fetch`."""
        for link in self._links:
            if not link.busy:
                return await link.fetch(doing, sql, *args)
        self._next = (self._next + 1) % len(self._links)
        return await self._links[self._next].fetch(doing, sql, *args)

    async def close(self) -> None:
        """Close them all."""
        for link in self._links:
            await link.close()
