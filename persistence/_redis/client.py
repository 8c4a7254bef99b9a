"""The connection to Redis: a URL that cannot work is refused, a server that does not answer is not.

On a `Line` a command leaves the process in the moment it is given. redis-py makes the connection (TLS, login,
pauses between tries). Its pipelines are not used, because they write when their task runs: milliseconds later
on a busy loop, and a crash comes between.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import AuthenticationError, ReadOnlyError, RedisError, ResponseError
from typing_extensions import override

from actors.errors import ContractError
from persistence._background import background

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection

_log = logging.getLogger("callboard.redis")

ANSWER_S: Final = 1.0
"""Seconds that a connect or an answer may take before its connection counts as lost."""
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0
RETRIES: Final = 2

_REMEDY: Final = (
    "Write redis://user:password@host:port/0 (rediss:// for TLS), with special characters of user "
    "and password percent-encoded, or leave the URL out: Callboard works without Redis"
)


class RedisUrlError(ContractError):
    """Redis cannot be used as the URL says; waiting does not help. It never shows user or password."""

    where: str
    problem: str

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(where, problem)
        self.where, self.problem = where, problem

    @override
    def __str__(self) -> str:
        return f"{self.where}: {self.problem}. {_REMEDY}"


def address(url: str) -> str:
    """Return what may be shown of a URL: scheme, host, port and database.

    Raises:
        RedisUrlError: It is no URL of Redis, or a special character of a password cuts it off too early.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # its text may quote a piece of the password
        raise RedisUrlError("the Redis URL", "it cannot be read") from None
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise RedisUrlError(
            "the Redis URL", "it does not begin with redis://, rediss:// or unix://"
        )
    if "@" in parts.path + parts.query + parts.fragment:
        raise RedisUrlError("the Redis URL", "there is an @ after the host")
    if parts.scheme == "unix":
        return f"unix://{parts.path}"
    return f"{parts.scheme}://{parts.hostname or 'localhost'}:{port or 6379}{parts.path}"


@asynccontextmanager
async def open_redis(url: str, *, answer_s: float | None = None) -> AsyncIterator[Redis]:
    """Yield a client of this server, closed at the end of the block.

    A server that does not answer within a second is not an error: one warning, and the client
    connects when it is used and the server is there. Commands are tried three times, with back-off.

    Args:
        url: ``redis://user:password@host:port/0``.
        answer_s: Time limit in seconds of an answer with all its content; one second by default.

    Raises:
        RedisUrlError: The URL is malformed, or the server refuses its user, password or database.
    """
    where = address(url)
    pause = ExponentialWithJitterBackoff(base=FIRST_PAUSE_S, cap=LONGEST_PAUSE_S)
    try:
        client: Redis = Redis.from_url(
            url,
            retry=Retry(pause, RETRIES),
            socket_timeout=answer_s or ANSWER_S,
            socket_connect_timeout=ANSWER_S,
        )
        # Refuses unknown options without connecting.
        client.connection_pool.make_connection()  # type: ignore[no-untyped-call]
    except (TypeError, ValueError):
        raise RedisUrlError(where, "an option in the URL is unknown or has a bad value") from None
    try:
        await _greet(client, where)
        yield client
    finally:
        await client.aclose()


async def _greet(client: Redis, where: str) -> None:
    try:
        async with asyncio.timeout(ANSWER_S):
            await client.ping()
    except AuthenticationError:
        raise RedisUrlError(where, "user or password is refused") from None
    except ResponseError as exc:
        raise RedisUrlError(where, f"the server refuses it ({exc})") from None
    except (RedisError, OSError) as exc:
        _log.warning(
            "Redis does not answer; going on without it until it does",
            extra={"server": where, "problem": type(exc).__name__},
        )


QUEUE_LIMIT: Final = 1000
QUEUE_BYTES: Final = 16 * 1024 * 1024
"""Most commands, and bytes, that wait for a slow server; then the oldest is given up."""
SENT_LIMIT: Final = 256
SENT_BYTES: Final = 1024 * 1024
"""Bytes by which writing may be ahead of the replies. A written command cannot be given up any more."""
TRIES: Final = 2
RENEW_S: Final = 5.0
"""Least age in seconds at which a connection to a replica, which refuses writes, is made anew."""

Reply: TypeAlias = object
"""bytes or None, a `ResponseError` of the server, or another exception: the command was given up."""


class LineClosedError(Exception):
    """The line ended in good order before there was a reply."""


@dataclass(slots=True, eq=False)
class Command:
    """A packed command, and the callback for its reply, called exactly once and soon after the line has it."""

    packed: bytes
    done: Callable[[Reply], None]
    tries: int = 0


def pack(*words: bytes) -> bytes:
    """Return a command as Redis reads it."""
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


class Line:
    """Pipeline of commands over one connection. It sends while `running()`.

    A command whose connection was lost before its reply is sent a second time, so it must be idempotent.
    """

    def __init__(self, redis: Redis) -> None:
        self._pool = redis.connection_pool
        self._queue: deque[Command] = deque()
        self._queued_bytes = 0
        self._sent_commands: deque[Command] = deque()
        self._sent_bytes = 0
        self._writer: asyncio.StreamWriter | None = None
        self._wake = asyncio.Event()
        self._is_stopping = False

    def send(self, command: Command) -> None:
        """Write the command now. Queue it if earlier commands wait for answers or there is no connection."""
        # Behind the commands that wait already: the order of commands stays.
        if self._queue or not self._write(command):
            self._queue.append(command)
            self._queued_bytes += len(command.packed)
            while len(self._queue) > QUEUE_LIMIT or self._queued_bytes > QUEUE_BYTES:
                self._dequeue().done(OverflowError("the queue is full"))
        self._wake.set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Connect and read replies while the block lasts. At its end, commands without a reply fail."""
        self._is_stopping = False
        self._wake.set()  # connects before the first command

        def stop() -> None:
            self._is_stopping = True

        async with background([self._serve], [], stop=stop):
            yield

    async def _serve(self) -> None:
        try:
            # Cancelling is not enough: redis-py 8 swallows it in some moments (measured).
            while not self._is_stopping:
                await self._wake.wait()
                await self._use_connection()
        finally:
            self._give_up(LineClosedError())

    async def _use_connection(self) -> None:
        """Make a connection and use it until it is lost."""
        connection: AbstractConnection | None = None
        try:
            connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
            await self._converse(connection)
        except Exception as exc:  # noqa: BLE001 - whatever it is, no host may end because of Redis
            if connection is None:
                self._give_up(exc)
                # There is no server: connect again with the next command, not in a loop.
                self._wake.clear()
            else:
                self._send_again(exc)
        finally:
            self._writer = None
            if connection is not None:
                with suppress(
                    Exception
                ):  # the connection is not used again, so an error does not matter
                    await connection.disconnect(nowait=True)
                    await self._pool.release(connection)

    async def _converse(self, connection: AbstractConnection) -> None:
        now = asyncio.get_running_loop().time
        opened_at = now()
        self._writer = connection._writer  # noqa: SLF001 - no public call writes without waiting for a task
        while not self._is_stopping:
            while self._queue and self._write(self._queue[0]):
                self._dequeue()
            if not self._sent_commands:
                self._wake.clear()
                await self._wake.wait()
                continue
            try:
                reply: Reply = await connection.read_response()
            except ResponseError as exc:
                reply = exc
            command = self._sent_commands.popleft()
            self._sent_bytes -= len(command.packed)
            command.done(reply)
            if isinstance(reply, ReadOnlyError) and now() - opened_at > RENEW_S:
                raise reply  # the address may lead to another primary by now

    def _write(self, command: Command) -> bool:
        is_ahead = len(self._sent_commands) >= SENT_LIMIT or self._sent_bytes >= SENT_BYTES
        if self._writer is None or self._writer.is_closing() or is_ahead:
            return False
        command.tries += 1
        self._writer.write(command.packed)
        self._sent_commands.append(command)
        self._sent_bytes += len(command.packed)
        return True

    def _dequeue(self) -> Command:
        command = self._queue.popleft()
        self._queued_bytes -= len(command.packed)
        return command

    def _send_again(self, problem: Exception) -> None:
        """Put what has no reply in front of the queue; what was lost before is given up."""
        commands, self._sent_commands, self._sent_bytes = self._sent_commands, deque(), 0
        for command in reversed(commands):
            if command.tries < TRIES:
                self._queue.appendleft(command)
                self._queued_bytes += len(command.packed)
            else:
                command.done(problem)

    def _give_up(self, problem: Exception) -> None:
        commands = [*self._sent_commands, *self._queue]
        self._sent_commands.clear()
        self._queue.clear()
        self._sent_bytes = self._queued_bytes = 0
        for command in commands:
            command.done(problem)
