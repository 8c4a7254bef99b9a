"""The sweeper: what ended runs leave behind goes after a while, a little at a time."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from actors.errors import PersistenceError

if TYPE_CHECKING:
    from actors.kernel.runtime.store import RunStore

_log = logging.getLogger(__name__)

BATCH: Final = 200
PAUSE_S: Final = 0.2
"""Between two batches, so that the store has time for others."""
EVERY_S: Final = 60.0


async def sweep_all(store: RunStore, *, older_than_s: float, pause_s: float = 0.0) -> int:
    """Sweep until nothing of that age is left; return how many runs were swept."""
    total = 0
    while swept := await store.sweep(older_than_s=older_than_s, limit=BATCH):
        total += swept
        await asyncio.sleep(pause_s)
    return total


async def sweep_for_ever(store: RunStore, *, older_than_s: float) -> None:
    """Sweep once a minute until cancelled. Several hosts may do it: each run is taken once."""
    while True:
        try:
            swept = await sweep_all(store, older_than_s=older_than_s, pause_s=PAUSE_S)
            if swept:
                _log.info("old runs were swept", extra={"runs": swept})
        except PersistenceError as exc:
            _log.warning("sweeping is tried again", exc_info=exc)
        await asyncio.sleep(EVERY_S)
