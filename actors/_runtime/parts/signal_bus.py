"""The signal bus: a view over one RunStore, and one in memory on which code can wait itself.

The one in memory is no view: it has `wait_for_signal`, and its timers are signals; a store has neither.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Final

from actors._inmemory.runs.records import pack, unpack
from actors._kernel.basics import Clock, Entropy
from actors._kernel.json import JsonValue
from actors._kernel.runtime.commit import Suspend
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.log_entry import EntryKind, NewEntry
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.runtime.waits import WakeSet
from actors._kernel.stores.run_store import RunStore
from actors._runtime.loop.timers import Alarm
from actors._runtime.parts.inbox import LeaseOf, StoreView
from actors._runtime.replay.verdict import row_of
from actors.errors import IllegalTransitionError

BUS_SENDER: Final = "client:signal-bus"

TIMER_SIGNAL: Final = "__timer__"
"""The signal that a timer gives; its payload is ``{"at": ISO 8601 text}``."""


class InMemorySignalBus:
    """A `SignalBus` in memory. Nothing survives the process.

    Args:
        clock: The clock that decides when timers are due. On a clock that is moved by hand call `fire_due`.
        wake: Called for each signal without a waiter in memory, so that a suspended run goes on.
    """

    def __init__(self, *, clock: Clock, wake: Callable[[RunId], None] | None = None) -> None:
        self._clock = clock
        self._wake = wake
        self._buffers: dict[tuple[RunId, str], deque[bytes]] = {}
        self._waiters: dict[tuple[RunId, str], deque[asyncio.Future[bytes]]] = {}
        self._timers: list[tuple[datetime, RunId]] = []
        self._alarm: Alarm | None = None

    async def signal(self, run_id: RunId, name: str, payload: dict[str, JsonValue]) -> None:
        """Buffer a signal for a run."""
        self._give(run_id, name, pack(payload))

    async def timer(self, run_id: RunId, at: datetime) -> None:
        """Set a timer of a run."""
        self._timers.append((at, run_id))
        self._timers.sort()
        self.fire_due()

    async def wait_for_signal(
        self, run_id: RunId, name: str, *, timeout: float | None = None
    ) -> JsonValue:
        """Return the payload of the run's next signal of that name, also of one that came before.

        Cancelling it, and running out of time, consumes nothing.

        Args:
            run_id: The waiting run.
            name: The signal's; a timer's is ``__timer__``.
            timeout: Seconds; by default it waits for ever.

        Raises:
            TimeoutError: No signal came in time.
        """
        slot = (run_id, name)
        buffer = self._buffers.get(slot)
        if buffer:
            payload = buffer.popleft()
            if not buffer:
                del self._buffers[slot]
            return unpack(payload)
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(slot, deque()).append(future)
        try:
            async with asyncio.timeout(timeout):
                return unpack(await future)
        # A timeout or a cancellation may come in the same turn of the loop as the signal, which would be lost.
        except BaseException:
            if future.done() and not future.cancelled():
                # The future got the signal but its caller is gone: the next caller gets it first.
                self._buffers.setdefault(slot, deque()).appendleft(future.result())
            raise
        finally:
            waiters = self._waiters[slot]
            waiters.remove(future)
            if not waiters:
                del self._waiters[slot]

    def fire_due(self) -> list[RunId]:
        """Give the timers whose time has come, and return their runs, earliest first."""
        now, run_ids = self._clock.now(), []
        while self._timers and self._timers[0][0] <= now:
            at, run_id = self._timers.pop(0)
            self._give(run_id, TIMER_SIGNAL, pack({"at": at.isoformat()}))
            run_ids.append(run_id)
        self._arm()
        return run_ids

    def forget(self, run_id: RunId) -> None:
        """Drop the signals and timers of a run that has ended."""
        self._timers = [timer for timer in self._timers if timer[1] != run_id]
        for slot in [slot for slot in self._buffers if slot[0] == run_id]:
            del self._buffers[slot]
        self._arm()

    def _give(self, run_id: RunId, name: str, payload: bytes) -> None:
        for future in self._waiters.get((run_id, name), ()):
            if not future.done():
                future.set_result(payload)
                return
        self._buffers.setdefault((run_id, name), deque()).append(payload)
        if self._wake is not None:
            self._wake(run_id)

    def _arm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._timers:
            self._alarm = Alarm(self._clock, self._timers[0][0], self.fire_due)


class SignalBusView(StoreView):
    """The `SignalBus` of a store. Signals are rows; a timer is part of a suspended run's wake set.

    Args:
        store: The store of the rows.
        lease_of: This host's shard leases.
        clock: The clock that a timer is compared with.
        entropy: The source of a signal's id: a signal that is sent again is a new one here.
        wake: Called when something came for a run of this process.
    """

    def __init__(
        self,
        store: RunStore,
        *,
        lease_of: LeaseOf,
        clock: Clock,
        entropy: Entropy,
        wake: Callable[[AgentId, RunId], None] | None = None,
    ) -> None:
        super().__init__(store, lease_of=lease_of)
        self._clock, self._entropy = clock, entropy
        self._wake = wake

    async def signal(self, run_id: RunId, name: str, payload: dict[str, JsonValue]) -> None:
        """Buffer a signal for a run. Dropped when the run has ended.

        Raises:
            UnknownRunError: There is no such run.
        """
        outcome = await self._store.arrivals.signal(
            run_id, name, payload, message_id=self._entropy.token(), sender=BUS_SENDER
        )
        if outcome.accepted and outcome.agent_id is not None and self._wake is not None:
            self._wake(outcome.agent_id, run_id)

    async def timer(self, run_id: RunId, at: datetime) -> None:
        """Set a timer of a run. An earlier timer of the run stays; an ended run has none.

        Raises:
            UnknownRunError: There is no such run.
            IllegalTransitionError: It executes, or waits for its first or next attempt: only a
                suspended run waits for a timer, and a running one sets its own.
        """
        row = await row_of(self._store, run_id)
        if row.status.is_terminal:
            return
        if row.status is not RunStatus.SUSPENDED or row.parked is not None:
            raise IllegalTransitionError(run_id, row.status, RunStatus.SUSPENDED)
        wake = row.wake or WakeSet()
        if wake.at is None or at < wake.at:
            wake = replace(wake, at=at)
            lease = self._lease(run_id, row.agent_id, attempt=row.attempt)
            entry = NewEntry(EntryKind.RUN_SUSPENDED, "", {"wake": wake.to_json()})
            await self._write(lease, row.last_seq, entry, then=Suspend(wake))
        if at <= self._clock.now() and self._wake is not None:
            self._wake(row.agent_id, run_id)
