"""Deletion of sessions: of named ones, and of sessions that were idle for a given time."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timedelta
from typing import Final

from actors.errors import ContractError, PersistenceError
from actors.kernel.runtime.ids import AgentId
from actors.kernel.stores.errors import OpenRunsError, SessionActiveError
from actors.runtime.runtime import Runtime
from actors.sessions.cleanup import sweep_below

_log = logging.getLogger("callboard.sessions")

IDLE_BATCH: Final = 20
"""Number of idle sessions that are read at once."""
PAUSE_S: Final = 0.2
"""Pause between two batches in seconds, in which the store serves other callers."""
EVERY_S: Final = 60.0
"""Seconds between two polls for idle sessions."""


async def delete_session(
    runtime: Runtime, agent: AgentId, *, unless_since: datetime | None = None
) -> dict[str, dict[str, int]] | None:
    """Delete a session in batches; return the numbers of deleted rows by kind.

    None: the session does not exist, or it is used again.

    Args:
        runtime: The runtime of the session.
        agent: The session.
        unless_since: An instant. If the session's last fact is of this instant or later, the session is not
            deleted.

    Raises:
        SessionActiveError: A run of the session is open.
    """
    sessions = runtime.store.sessions
    if not await sessions.begin_delete(agent, unless_since=unless_since):
        return None
    below = await sweep_below(runtime.store, agent)  # runs are found from the runs above them
    report = await runtime.erase(tenant=agent.tenant, agent=agent)
    rows = await sessions.finish_delete(agent)
    return {name: dict(kinds) for name, kinds in report.counts.items()} | {
        "sessions": {"rows": rows},
        "children": {"logs": below},
    }


def ttl_of(days: float | None) -> timedelta | None:
    """Return the time after which idle sessions are deleted. None: never.

    Raises:
        ContractError: `days` is not a number above 0.
    """
    if days is None:
        return None
    try:
        if days > 0:
            return timedelta(days=days)
    except (OverflowError, ValueError):
        pass
    raise ContractError(
        f"ttl_days is {days!r}: give a number of days above 0, or None to keep sessions"
    )


async def delete_idle(runtime: Runtime, tenant: str, app: str, *, ttl: timedelta) -> int:
    """Delete the sessions of an app that were idle for `ttl`; return their number.

    A session that is used during the call stays. Several processes may call this at once.
    """
    deleted = 0
    while True:
        before = runtime.clock.now() - ttl
        found = await runtime.store.sessions.idle(tenant, app, before=before, limit=IDLE_BATCH)
        gone = 0
        for agent in found:
            try:
                gone += await delete_session(runtime, agent, unless_since=before) is not None
            except (SessionActiveError, OpenRunsError):
                continue
        deleted += gone
        if not gone or len(found) < IDLE_BATCH:
            return deleted
        await asyncio.sleep(PAUSE_S)


async def delete_idle_for_ever(runtime: Runtime, tenant: str, app: str, *, ttl: timedelta) -> None:
    """Delete idle sessions once a minute until cancelled."""
    while True:
        try:
            deleted = await delete_idle(runtime, tenant, app, ttl=ttl)
            if deleted:
                _log.info("idle sessions were deleted", extra={"sessions": deleted})
        except PersistenceError as exc:
            _log.warning("deletion of idle sessions failed and is tried again", exc_info=exc)
        await asyncio.sleep(EVERY_S)
