"""InMemorySignalBus: named signals and timers, buffered until somebody waits."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from actors.runtime.backends._records import pack, unpack
from actors.runtime.timers import Alarm

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from actors.kernel.clock import Clock
    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.ids import RunId

TIMER_SIGNAL: Final = "__timer__"
"""The signal that a timer gives; its payload is ``{"at": ISO 8601 text}``."""


class InMemorySignalBus:
    """See `SignalBus`. Nothing survives the process.

    Args:
        clock: Decides when timers are due. On a clock that is moved by hand call `fire_due`.
        wake: Called for each signal nobody waits for in memory, so that a suspended run goes on.
    """

    def __init__(self, *, clock: Clock, wake: Callable[[RunId], None] | None = None) -> None:
        self._clock = clock
        self._wake = wake
        self._buffers: dict[tuple[RunId, str], deque[bytes]] = {}
        self._waiters: dict[tuple[RunId, str], deque[asyncio.Future[bytes]]] = {}
        self._timers: list[tuple[datetime, RunId]] = []
        self._alarm: Alarm | None = None

    async def signal(self, run_id: RunId, name: str, payload: dict[str, JsonValue]) -> None:
        """See `SignalBus.signal`."""
        self._give(run_id, name, pack(payload))

    async def timer(self, run_id: RunId, at: datetime) -> None:
        """See `SignalBus.timer`."""
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
            timeout: Seconds; None waits for ever.

        Raises:
            TimeoutError: None came in time.
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
        except BaseException:
            if future.done() and not future.cancelled():
                # It was given the signal but nobody will see it: the next one gets it first.
                self._buffers.setdefault(slot, deque()).appendleft(future.result())
            raise
        finally:
            self._leave(slot, future)

    def fire_due(self) -> list[RunId]:
        """Give the timers whose time has come, and return their runs, earliest first."""
        now, fired = self._clock.now(), []
        while self._timers and self._timers[0][0] <= now:
            at, run_id = self._timers.pop(0)
            self._give(run_id, TIMER_SIGNAL, pack({"at": at.isoformat()}))
            fired.append(run_id)
        self._arm()
        return fired

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

    def _leave(self, slot: tuple[RunId, str], future: asyncio.Future[bytes]) -> None:
        waiters = self._waiters[slot]
        waiters.remove(future)
        if not waiters:
            del self._waiters[slot]

    def _arm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._timers:
            self._alarm = Alarm(self._clock, self._timers[0][0], self.fire_due)
