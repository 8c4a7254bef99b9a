"""Errors of Redis, when it is away or refuses a command."""

from __future__ import annotations

from typing import Final

from redis.exceptions import RedisError, ResponseError

from actors.errors import Facts, PersistenceError, StoreUnreachableError


class RedisUnreachableError(Facts, StoreUnreachableError):
    """No answer from Redis; what was under way may or may not have happened."""

    text = (
        "{doing}: Redis gave no answer ({problem}); the outcome is unknown, and the same may be sent "
        "again. Check that the server runs"
    )
    doing: str
    problem: str


class RedisRefusedError(Facts, PersistenceError):
    """Redis refused what it was sent, and nothing of it was done: no memory, no permission, a replica."""

    text = "{doing}: Redis refused it: {problem}; nothing was changed"
    doing: str
    problem: str


REDIS_ERRORS: Final = (RedisError, OSError)
"""Errors that a call of the client raises; `TimeoutError` is an `OSError`."""


def translate_redis(exc: Exception, doing: str) -> PersistenceError:
    """Return what an error of the client is to our callers."""
    problem = f"{type(exc).__name__}: {exc}"
    if isinstance(exc, ResponseError):
        return RedisRefusedError(doing, problem)
    return RedisUnreachableError(doing, problem)
