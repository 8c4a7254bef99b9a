"""The sweeper: what is old goes, a little at a time."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from actors.errors import ContractError, PersistenceError
from actors.kernel.runtime.ids import AgentId
from actors.kernel.stores.forgotten import Forgotten
from actors.kernel.stores.run_store import RunStore

_log = logging.getLogger("callboard.sharding")

BATCH: Final = 200
FORGET_BATCH: Final = 2000
PAUSE_S: Final = 0.2
"""Seconds between two batches, so that the store has time for other work."""
EVERY_S: Final = 60.0
AGAIN_S: Final = 0.1
"""The pause before an agent whose runs were cancelled is polled again."""


async def sweep_all(store: RunStore, *, older_than_s: float | None, pause_s: float = 0.0) -> int:
    """Sweep and forget until nothing of that age is left; return how many runs were swept.

    Args:
        store: The store of the runs.
        older_than_s: Age of what goes; None: what needs no age alone (see `RunStore`).
        pause_s: Between two batches.
    """
    total = 0
    while True:
        swept = await store.retention.sweep(older_than_s=older_than_s, limit=BATCH)
        forgotten = await store.retention.forget_old(older_than_s=older_than_s, limit=FORGET_BATCH)
        total += swept
        if not swept and forgotten < FORGET_BATCH:
            return total
        await asyncio.sleep(pause_s)


async def forget_agent(
    store: RunStore, agent_id: AgentId, *, cancel: bool = False, wait_s: float = 30.0
) -> Forgotten:
    """Take away what is the agent's, see `RetentionStore.forget_agent`; return how much that was.

    Broken off in between it is done in part; begin again.

    Raises:
        ContractError: A run of it is open; with `cancel`: still open after `wait_s`.
    """
    total = Forgotten(more=True)
    end = asyncio.get_running_loop().time() + wait_s
    while total.more:
        total = total.and_then(await store.retention.forget_agent(agent_id, cancel=cancel))
        if total.open_run is None:
            continue
        if not cancel:
            msg = f"run {total.open_run} of {agent_id} is open: wait for its end, or say --cancel"
            raise ContractError(msg)
        if asyncio.get_running_loop().time() > end:
            problem = f"run {total.open_run} of {agent_id} was cancelled and is still open"
            raise ContractError(f"{problem} after {wait_s:g} s: does a host serve it? Ask again")
        await asyncio.sleep(AGAIN_S)
    return total


async def sweep_for_ever(store: RunStore, *, older_than_s: float | None) -> None:
    """Sweep once a minute until cancelled. Several hosts may do it: each row is taken once."""
    while True:
        try:
            swept = await sweep_all(store, older_than_s=older_than_s, pause_s=PAUSE_S)
            if swept:
                _log.info("old runs were swept", extra={"runs": swept})
        except PersistenceError as exc:
            _log.warning("sweeping is tried again", exc_info=exc)
        await asyncio.sleep(EVERY_S)
