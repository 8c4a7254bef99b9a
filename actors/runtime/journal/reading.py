"""A run's reads of the store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from actors.errors import ActorsError, RunSuspended, StoreRefusedError, StoreUnreachableError
from actors.kernel.json import check_readable
from actors.runtime.journal.run_log import RunLog

T = TypeVar("T")

ASK_AGAIN_S: Final = 1.0
"""Pause before a server that gave no answer within its limit is asked again."""


async def reading(log: RunLog, rows: Callable[[], Awaitable[T]]) -> T:
    """Return the store's rows. If it fails, drop the run from memory, so that it is loaded again.

    Agent code never sees the store's errors, because replay would not repeat them. A server that does not
    answer is asked again for as long as this process lives, because the run's other branches may hold
    results that are not durable yet.

    Raises:
        RunSuspended: The store could not be read.
    """
    while True:
        try:
            return await rows()
        except ActorsError as exc:
            if log.broken is not None or not isinstance(exc, StoreUnreachableError):
                log.break_off(exc)
                raise RunSuspended from exc
        await asyncio.sleep(ASK_AGAIN_S)


def refuse_unreadable(log: RunLog, value: object, what: str) -> None:
    """Drop the run from memory if a value that its code would get cannot be decoded: see `Setbacks`.

    Raises:
        RunSuspended: It cannot.
    """
    try:
        check_readable(value, what)
    except StoreRefusedError as exc:
        log.break_off(exc)
        raise RunSuspended from exc
