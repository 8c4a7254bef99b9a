"""The connection to Redis: a URL that cannot work is refused, a server that does not answer is not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from typing_extensions import override

from actors.errors import ContractError

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
