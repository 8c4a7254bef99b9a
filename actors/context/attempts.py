"""Work outside the process that a window can do without."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from actors.errors import (
    BrokerError,
    BudgetExhaustedError,
    CancellationError,
    ConflictError,
    ContractError,
    DeadlineExceededError,
    PersistenceError,
)

T = TypeVar("T")

_log = logging.getLogger("callboard.context")

_ABOUT_THE_RUN: Final = (
    BrokerError,
    BudgetExhaustedError,
    CancellationError,
    ConflictError,
    ContractError,
    DeadlineExceededError,
    PersistenceError,
)
"""Errors after which the run cannot go on, whatever stands in the window."""


async def attempted(
    work: Callable[[], Awaitable[T]], *, what: str, timeout_s: float | None
) -> T | None:
    """Return what the work returns, or None if it fails or takes too long, with a warning in the log.

    Cancelling it cancels the work. Errors about the run itself are raised: a budget that is spent, a
    deadline, a lost lease, an unreachable store.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await work()
    except _ABOUT_THE_RUN:
        raise
    except Exception:  # noqa: BLE001 - clients of models raise what they like, and the window goes on
        _log.warning("a part of the window is left out", extra={"part": what}, exc_info=True)
        return None
