"""Calling an author's function within limits: of time, and of tries."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from actors.errors import ActorsError, DeadlineExceededError
from actors.kernel.json import fresh
from actors.kernel.runtime.scheduler import RetryPolicy


def bounded(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    what: str,
    timeout_s: float | None,
    retry: RetryPolicy | None,
    chance: Callable[[], float],
) -> Callable[[], Awaitable[Any]]:
    """Return a coroutine function that calls `fn(*args)` within its time and retry limits.

    Each try gets arguments of its own: a replay does not call `fn`, so what it does to them must not be seen.
    """

    async def once() -> Any:
        if timeout_s is None:
            result = fn(*fresh(args))
            return await result if inspect.isawaitable(result) else result
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                result = fn(*fresh(args))
                return await result if inspect.isawaitable(result) else result
        except TimeoutError as exc:
            if limit.expired():
                raise DeadlineExceededError(what, timeout_s) from exc
            raise

    async def with_retries() -> Any:
        attempt = 1
        while True:
            try:
                return await once()
            except Exception as exc:
                wait = retry_wait(exc, retry, attempt, chance())
                if wait is None:
                    raise
                await asyncio.sleep(wait)
                attempt += 1

    return once if retry is None else with_retries


def retry_wait(
    exc: Exception, retry: RetryPolicy | None, attempt: int, chance: float
) -> float | None:
    """Return how many seconds to wait before trying again, or None to give up."""
    if retry is None or attempt > retry.max_retries or type(exc).__name__ in retry.non_retryable:
        return None
    if isinstance(exc, ActorsError) and not exc.retryable:
        return None
    return retry.delay_s(attempt, chance)
