"""Calls outside of the process whose failure leaves the window usable."""

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
"""Errors after which the run cannot continue, whatever the window is."""


async def attempted(
    work: Callable[[], Awaitable[T]], *, what: str, timeout_s: float | None
) -> T | None:
    """Return the result of `work`. If it fails or takes too long, log a warning and return None.

    A cancellation cancels the work. Errors about the run itself are raised: an exhausted budget, a deadline, a
    lost lease, an unreachable store.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await work()
    except _ABOUT_THE_RUN:
        raise
    except Exception:  # noqa: BLE001 - a model client may raise any error; the window is made without it
        _log.warning("a part of the window is left out", extra={"part": what}, exc_info=True)
        return None
