"""Connections of a store: its settings, a connection that is opened again after a loss, and the shared outage.

All connections of a store share the outage: it is said once, and ended once.

PostgreSQL's own types are looked up once a process, because the driver asks each new connection for them. Its
statement for that is a recursion over the catalog, which takes the server 7 ms of CPU a connection, more than
all else that opening one takes it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, LiteralString, TypeAlias
from urllib.parse import urlsplit

import asyncpg

from actors._kernel.basics import Backoff
from actors._kernel.runtime.ids import HostIncarnation
from actors.errors import InvalidNameError
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
    "select pid, backend_start, meet_server() as incarnation from pg_stat_get_activity(pg_backend_pid())"
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
    session_settings = {"search_path": f'"{settings.schema}"', **_SESSION, **(extra or {})}
    connection = await asyncpg.connect(
        settings.url,
        timeout=CONNECT_TIMEOUT_S,
        max_cached_statement_lifetime=0,
        connection_class=TypedConnection,
        server_settings={"application_name": f"callboard {settings.owner}", **session_settings},
    )
    try:
        await _check_session(connection, settings.url, session_settings)
    # Also a cancellation: a session that was not checked must not stay open on the server.
    except BaseException:
        connection.terminate()
        raise
    return connection


async def _check_session(connection: Connection, url: str, expected: Mapping[str, str]) -> None:
    rows = await connection.fetch(SQL_SESSION, [*expected], timeout=CONNECT_TIMEOUT_S)
    for name, value in rows:
        if value != expected[name]:
            raise pooled(url, f"{name} is {value}, and {expected[name]} was asked for")


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
            # Also what would be a mistake at the start: a server that has let this user in before is waited
            # for.
            except (DatabaseUrlError, *DRIVER_ERRORS) as exc:
                self._outage.begins(exc)
                self.check_time(deadline - backoff.pause_s, exc)
                await asyncio.sleep(backoff.next_s())
        return self._connection

    async def _open(self) -> Connection:
        connection = await connect(self._settings, self._extra)
        try:
            if self._backend is not None:
                # A statement of the lost connection has ended before anybody asks what became of it.
                await connection.fetch(SQL_END_PREDECESSOR, *self._backend)
            row = await connection.fetchrow(SQL_WHO_AM_I)
            assert row is not None
        # Also a cancellation: nobody has the connection yet who would close it.
        except BaseException:
            connection.terminate()
            raise
        self._backend = (row["pid"], row["backend_start"])
        self._incarnation = row["incarnation"]
        self._outage.ends()
        self._outage.meets(row["incarnation"])
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
        try_once = partial(self.attempt, doing, sql, *args)
        return await _until_capacity(self._settings, self._outage, try_once)

    async def attempt(
        self, doing: str, sql: LiteralString, *args: object, deadline: float, may_be_done: bool
    ) -> Attempted:
        """Execute; return rows, or the error of a full server, and if an earlier try may have been executed."""
        passing_errors = 0
        # The driver refuses a second statement while one is under way.
        async with self._lock:
            while True:
                connection = await self.connection(deadline)
                try:
                    rows = await connection.fetch(sql, *args, timeout=self._settings.answer_s)
                except asyncio.CancelledError:
                    self._forget()  # the cancel request under way could hit the next statement
                    raise
                # Whatever the driver raises: `lose` decides, and closes a connection whose state is unknown.
                except Exception as exc:
                    # A deadlock or a serialization failure: the server rolled the statement back, so it is sent
                    # again.
                    if is_passing(exc) and (passing_errors := passing_errors + 1) < PASSING_RETRIES:
                        continue
                    # Returned, not awaited here: the caller pauses without the lock, and others use the
                    # connection meanwhile.
                    if is_full(exc) and not is_lost(exc):
                        return exc, may_be_done
                    if not self.lose(exc):
                        raise (
                            _unknown_outcome(self._settings, exc, deadline)
                            if may_be_done
                            else translate(exc, doing)
                        ) from exc
                    # The statement may have been executed before its answer was lost.
                    may_be_done = True
                    self.check_time(deadline, exc)
                else:
                    return rows, may_be_done

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
    # A server may not answer the goodbye: the socket is closed without it.
    except DRIVER_ERRORS:
        connection.terminate()


async def _until_capacity(
    settings: StoreSettings, outage: ServerOutage, attempt: Callable[..., Awaitable[Attempted]]
) -> tuple[list[Row], bool]:
    """Return what `attempt` does, which is called again while the server has no capacity."""
    deadline = asyncio.get_running_loop().time() + settings.outage_s
    backoff, was_full, may_be_done = Backoff(), False, False
    while True:
        result, may_be_done = await attempt(deadline=deadline, may_be_done=may_be_done)
        if not isinstance(result, asyncpg.PostgresError):
            if was_full:
                outage.writes()
            return result, may_be_done
        was_full = True
        outage.refuses(result)
        if asyncio.get_running_loop().time() > deadline:
            # The refusal says nothing about the earlier try, whose answer was lost and which may be committed.
            if may_be_done:
                raise _unknown_outcome(settings, result, deadline) from result
            raise DatabaseFullError(
                address(settings), settings.outage_s, want_of(result)
            ) from result
        await asyncio.sleep(backoff.next_s())


def _unknown_outcome(
    settings: StoreSettings, exc: Exception, deadline: float
) -> DatabaseUnreachableError:
    """The statement is refused now; the answer to an earlier try of it was lost."""
    remaining_s = deadline - asyncio.get_running_loop().time()
    waited_s = round(settings.outage_s - remaining_s, 1)
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
        """Return the rows of a statement, by the first link that is free. For errors see `Link.fetch`."""
        attempt = partial(self._attempt, doing, sql, *args)
        rows, _ = await _until_capacity(self._settings, self._outage, attempt)
        return rows

    async def _attempt(
        self, doing: str, sql: LiteralString, *args: object, deadline: float, may_be_done: bool
    ) -> Attempted:
        link = await self._free.get()
        try:
            return await link.attempt(doing, sql, *args, deadline=deadline, may_be_done=may_be_done)
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


def address(settings: StoreSettings) -> str:
    """Return host and port for log lines."""
    parts = urlsplit(settings.url)
    return parts.netloc.rpartition("@")[2] or "the default host"


class ServerOutage:
    """The state of an outage of the server: one log line when it begins and one when it ends.

    Attributes:
        incarnation: The incarnation of the server that was met last.
        on_new_incarnation: Called on the event loop when another one is met, before anything is asked of it.
            It may be behind: a standby that took over without the last commits.
    """

    def __init__(self, settings: StoreSettings) -> None:
        self._address = address(settings)
        self._began_at: float | None = None
        self._ended_at = 0.0
        self._full_since = 0.0
        self._full_problem: str | None = None
        self._refused_problem: str | None = None
        self.incarnation: datetime | None = None
        self.on_new_incarnation: Callable[[], None] = lambda: None

    def meets(self, incarnation: datetime) -> None:
        """Note whose connection was made."""
        previous, self.incarnation = self.incarnation, incarnation
        if previous not in {None, incarnation}:
            self.on_new_incarnation()

    @property
    def trouble(self) -> str | None:
        """The reason why a server that answers takes nothing; None if no reason is known."""
        return self._full_problem or self._refused_problem

    def refuses(self, problem: BaseException) -> None:
        """Note that the server had no capacity for a statement."""
        if self._full_problem is None:
            self._full_since = asyncio.get_running_loop().time()
            _log.warning(
                "PostgreSQL refuses to write; calls wait for it",
                extra={"server": self._address, "problem": want_of(problem)},
            )
        self._full_problem = f"refuses to write: {want_of(problem)}"

    def writes(self) -> None:
        """Note that the server took a statement for which it had no capacity before."""
        if self._full_problem is not None:
            self._full_problem = None
            away_s = asyncio.get_running_loop().time() - self._full_since
            _log.warning(
                "PostgreSQL writes again",
                extra={"server": self._address, "away_s": round(away_s, 3)},
            )

    def begins(self, problem: BaseException, opened_at: float | None = None) -> None:
        """Note that a connection, opened at that time of the event loop's clock, was lost.

        One that is older than the end of the last outage was lost in that one already.
        """
        if is_full(problem):
            self._refused_problem = f"refuses connections: {want_of(problem)}"
        if self._began_at is None and (opened_at is None or opened_at > self._ended_at):
            self._began_at = asyncio.get_running_loop().time()
            _log.warning(
                "connection to PostgreSQL lost; calls wait for it",
                extra={"server": self._address, "problem": f"{type(problem).__name__}: {problem}"},
            )

    def ends(self) -> None:
        """Note that a connection was made."""
        self._refused_problem = None
        if self._began_at is not None:
            self._ended_at = asyncio.get_running_loop().time()
            away_s = self._ended_at - self._began_at
            self._began_at = None
            _log.warning(
                "connection to PostgreSQL is back",
                extra={"server": self._address, "away_s": round(away_s, 3)},
            )


_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,39}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """Everything a `PostgresStore` and its heartbeat need to know.

    Attributes:
        url: ``postgresql://user:password@host:port/database``.
        schema: The schema of the tables; 1 to 40 of ``a-z 0-9 _``.
        owner: This incarnation of this host.
        lease_s: Seconds of ownership after a heartbeat.
        heartbeat_s: Seconds between heartbeats.
        blocked_s: Seconds for which a blocked event loop keeps the shard of the agent that blocks it.
        outage_s: Seconds for which calls wait for a server that went away, then PersistenceError.
        answer_s: Time limit of a statement in seconds; then its connection counts as lost.
        start_wait_s: Seconds to wait for a server that is not there yet; None if there is no limit.
        group_limit: Most calls that one round trip carries.
        readers: Connections for reads and rare writes.
        capacity: The host's share of the shards, relative to other hosts, in any unit they share.
        brokered: Whether a broker takes what agents send to agents of other hosts.
        local_delivery: Whether, with a broker, messages between agents of this host go without it.
    """

    url: str
    owner: HostIncarnation
    schema: str = "callboard"
    lease_s: float = 10.0
    heartbeat_s: float = 3.0
    blocked_s: float = 60.0
    outage_s: float = 60.0
    answer_s: float = 30.0
    start_wait_s: float | None = None
    group_limit: int = 250
    readers: int = 2
    capacity: int = 1000
    brokered: bool = False
    local_delivery: bool = True

    def __post_init__(self) -> None:
        if _SCHEMA.fullmatch(self.schema) is None:
            raise InvalidNameError("schema", self.schema, "1 to 40 of a-z, 0-9 and _")

    @property
    def lease(self) -> timedelta:
        """`lease_s` as the driver takes it."""
        return timedelta(seconds=self.lease_s)

    @property
    def own_channel(self) -> str:
        """The channel on which others NOTIFY this host; the SQL function `nudge_channel` says the same."""
        digest = hashlib.md5(self.owner.encode(), usedforsecurity=False).hexdigest()
        return f"{self.schema}:{digest[:16]}"

    @property
    def common_channel(self) -> str:
        """The channel on which every host listens: shards were made or given up."""
        return f"{self.schema}:all"

    @property
    def sessions_channel(self) -> str:
        """The channel of hosts that follow sessions: new facts of those that have readers."""
        return f"{self.schema}:sessions"

    @property
    def followed_channel(self) -> str:
        """The channel on which every host hears that another process follows a log."""
        return f"{self.schema}:followed"

    @property
    def growth_channel(self) -> str:
        """Channel of notifications that logs have grown, for the processes that follow them."""
        return f"{self.schema}:growth"


if TYPE_CHECKING:
    from collections.abc import Iterable

    _Base = asyncpg.Connection[asyncpg.Record]
else:
    _Base = asyncpg.Connection

FIRST_UNSTABLE_OID: Final = 10_000
"""Below it the same number is the same type on every server (PostgreSQL's transam.h)."""

_known_types: dict[int, asyncpg.Record] = {}


@dataclass(frozen=True, slots=True)
class _NoStatement:
    """Says to the driver that nothing was prepared, so that what it has prepared is still there."""

    name: str = "known"


class TypedConnection(_Base):
    """A connection that knows the types that another connection of this process has learned."""

    __slots__ = ()

    async def _introspect_types(self, typeoids: Iterable[int], timeout: float | None) -> Any:
        """Return rows on these types, and the statement that asked for them; the driver's own hook."""
        oids = set(typeoids)
        if oids <= _known_types.keys():
            return [_known_types[oid] for oid in oids], _NoStatement()
        rows, statement = await super()._introspect_types(oids, timeout)  # type: ignore[misc]
        _known_types.update({row["oid"]: row for row in rows if row["oid"] < FIRST_UNSTABLE_OID})
        return rows, statement
