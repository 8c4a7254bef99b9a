"""The way round the broker: while it cannot be used, what agents send each other goes by the database.

The sender's host hands over what its agents have in the outbox: it knows first that nothing can be published.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from actors.errors import BrokerError, PersistenceError
from actors.kernel.stores.transport import OutboxRow, OutboxStore
from actors.runtime.delivery.outbox_relay import OutboxRelay
from actors.runtime.loop.tasks import TaskScope, happens
from actors.runtime.worker.held_shards import HeldShards

_log = logging.getLogger("callboard.delivery")

AFTER_S: Final = 1.0
"""Seconds that the broker may be unusable before messages go through the database."""
POLL_S: Final = 5.0
"""Seconds between polls of the outbox meanwhile, for rows that no commit of this host announced."""
AGAIN_S: Final = 1.0


@dataclass(slots=True)
class Suspicion:
    """The suspicion that the broker has failed, and the instant of its first failure. Pure.

    Attributes:
        since: The instant of the first failure; None while the broker works.
    """

    since: float | None = None

    def begin(self, now: float) -> None:
        """Suspect the broker: it did not do what was asked of it, or is not there."""
        if self.since is None:
            self.since = now

    def end(self) -> None:
        """Trust the broker again: it did all that messages need."""
        self.since = None

    def left_s(self, now: float) -> float | None:
        """Return the seconds until the bypass opens, 0 when they are over; None: the broker works."""
        return None if self.since is None else max(0.0, self.since + AFTER_S - now)


class Bypass:
    """Hands over what the broker cannot take, while that lasts. The relay goes by it as by a connection.

    Args:
        relay: Sends by what it was opened with last.
        outbox: What it hands over.
        held: Our shards.

    Attributes:
        is_open: Whether messages go this way.
    """

    def __init__(self, relay: OutboxRelay, outbox: OutboxStore, held: HeldShards) -> None:
        self._relay, self._outbox, self._held = relay, outbox, held
        self._suspicion, self._news = Suspicion(), asyncio.Event()
        self._now = asyncio.get_running_loop().time
        self.is_open = False

    def begin(self) -> None:
        """The broker is in doubt: go round it soon."""
        self._suspicion.begin(self._now())
        self._news.set()

    def end(self) -> None:
        """The broker is of use; the relay was opened with a connection to it."""
        self._suspicion.end()
        self._news.set()

    def refresh(self) -> None:
        """Refresh, because other shards are ours or the database may have lost its last commits."""
        self._news.set()

    async def run(self) -> None:
        """Be open while the broker is of no use; to be run as a task until it is cancelled."""
        while True:
            self._news.clear()
            left_s = self._suspicion.left_s(self._now())
            if left_s is None:
                await self._news.wait()
            elif left_s > 0:
                await happens(self._news, within_s=left_s)
            else:
                await self._go()

    async def _go(self) -> None:
        _log.warning("messages between agents go through the database until the broker is usable")
        try:
            async with TaskScope() as tasks:
                self._relay.open(self, tasks, mail_only=True)
                self.is_open = True
                while self._suspicion.since is not None:
                    await self._poll()
        finally:
            self.is_open = False
            self._relay.close(self)

    async def _poll(self) -> None:
        self._news.clear()
        try:
            await self._relay.reload(self._held.loaded)
        except PersistenceError as exc:
            _log.warning("the outbox could not be read and is retried", extra={"problem": str(exc)})
            await asyncio.sleep(AGAIN_S)
        else:
            await happens(self._news, within_s=POLL_S)

    async def send(self, row: OutboxRow) -> int:
        """Hand a row over; as `MailConnection.send`, but nothing is stored under a sequence."""
        try:
            if await self._outbox.hand_over(row):
                return 0
        except PersistenceError as exc:
            raise BrokerError(str(exc)) from exc
        msg = "something older of its sender is on its way"
        raise BrokerError(msg)
