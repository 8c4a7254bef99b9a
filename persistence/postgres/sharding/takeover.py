"""Sees another host die, so that its agents go on here as soon as its lease is over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, LiteralString

from actors.kernel.basics import Backoff
from persistence.postgres.connection.link import Link
from persistence.postgres.connection.outage import ServerOutage
from persistence.postgres.connection.settings import StoreSettings

_log = logging.getLogger("callboard.postgres")

SQL_NEXT_DEATH: Final[LiteralString] = """
select coalesce(min(extract(epoch from h.expires_at - clock_timestamp()))::float8, 1e9) as left_s
  from hosts h where h.incarnation <> $1
    and exists (select 1 from shards s where s.owner = h.incarnation)
"""
JUST_AFTER_S: Final = 0.02
"""Seconds after the end of a lease, by the database's clock, at which its shards are asked for."""

AGAIN_S: Final = 0.1
LONGEST_AGAIN_S: Final = 1.0
"""Bounds in seconds of the doubling pause before shards that another survivor may claim are asked for again."""


class Takeover:
    """Claims the shards of hosts that died, within milliseconds of the end of their lease.

    One small question per heartbeat interval; the runtime's own scan is the backstop.

    Args:
        settings: Settings of the store.
        claim: Claims what is free, for example `HostParts.claim`.
    """

    def __init__(self, settings: StoreSettings, claim: Callable[[], Awaitable[None]]) -> None:
        self._settings, self._claim = settings, claim
        self._link = Link(settings, ServerOutage(settings))

    async def run(self) -> None:
        """Watch until cancelled."""
        interval_s = self._settings.heartbeat_s
        again = Backoff(AGAIN_S, LONGEST_AGAIN_S)
        try:
            while True:
                wait_s = interval_s
                try:
                    left_s = await self._left_s()
                    if left_s <= 0:
                        await self._claim()
                        wait_s = again.next_s()
                    else:
                        wait_s = min(left_s + JUST_AFTER_S, interval_s)
                        again.reset()
                except Exception as exc:  # noqa: BLE001 - nobody else takes over within milliseconds
                    _log.warning("looking for dead hosts is tried again", exc_info=exc)
                await asyncio.sleep(wait_s)
        finally:
            await self._link.close()

    async def _left_s(self) -> float:
        """Return the seconds left of the lease of the host with the oldest heartbeat."""
        me = self._settings.owner
        [row] = await self._link.fetch("looking for dead hosts", SQL_NEXT_DEATH, me)
        return float(row["left_s"])
