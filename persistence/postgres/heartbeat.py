"""The heartbeat: a thread that keeps this host's shards while the main event loop is busy.

It has its own event loop and connection, so that a slow main loop does not cost the lease; it names
what blocks the main loop, and lets the lease go when the main loop is blocked for a minute.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Final, Self

from persistence.postgres.clock import Reading
from persistence.postgres.link import connect
from persistence.postgres.ownership import SQL_HEARTBEAT, host_report

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from actors.kernel.clock import Clock
    from actors.kernel.runtime.commit import HostReport
    from actors.kernel.runtime.ids import HostIncarnation
    from actors.kernel.runtime.scheduler import ShardLease
    from persistence.postgres.clock import PostgresClock
    from persistence.postgres.link import Connection
    from persistence.postgres.settings import StoreSettings

_log = logging.getLogger(__name__)

BLOCKED_S: Final = 1.0
GIVE_UP_S: Final = 60.0
LOOK_EVERY_S: Final = 0.25


class Heartbeat:
    """Renews the lease of `owner` every `heartbeat_s` while the block lasts.

    Args:
        settings: Lease and interval.
        owner: The host's incarnation.
        known: Returns the shards this host thinks it holds; called in the heartbeat's thread, so it
            returns an immutable value.
        on_report: Called with every answer on the event loop that entered the block.
        clock: Hears the database's time with every answer.
        machine: The wall clock of this machine; how wrong it is can be seen, and decides nothing.
    """

    def __init__(
        self,
        settings: StoreSettings,
        owner: HostIncarnation,
        *,
        known: Callable[[], Sequence[ShardLease]],
        on_report: Callable[[HostReport], None],
        clock: PostgresClock,
        machine: Clock,
    ) -> None:
        self._settings, self._owner = settings, owner
        self._clock, self._machine = clock, machine
        self._known, self._on_report = known, on_report
        self._confirmed_at = 0.0
        self._ticked_at = 0.0
        self._tick_asked = False
        self._thread: threading.Thread | None = None
        self._main: asyncio.AbstractEventLoop | None = None
        self._main_thread = 0
        self._connection: Connection | None = None
        self._next_beat = 0.0
        self._is_failing = self._is_named = False
        self._first, self._stop = threading.Event(), threading.Event()

    @property
    def confirmed_at(self) -> float:
        """When the last renewal that was answered was asked for, by `time.monotonic`; 0 = never."""
        return self._confirmed_at

    @property
    def remaining_s(self) -> float:
        """For how many seconds nobody else can own our shards; below 2 start nothing outside."""
        return self._confirmed_at + self._settings.lease_s - time.monotonic()

    async def __aenter__(self) -> Self:
        """Start the thread and return after its first heartbeat, or its first failure."""
        self._main = asyncio.get_running_loop()
        self._main_thread = threading.get_ident()
        self._ticked_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()
        while not self._first.is_set():
            await asyncio.to_thread(self._first.wait, self._settings.lease_s)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Stop the thread. The lease runs out by itself; give the shards up before."""
        self._stop.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    # --- in the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            while not self._stop.is_set():
                blocked_s = self._look_at_main()
                if time.monotonic() >= self._next_beat and blocked_s < GIVE_UP_S:
                    self._beat(runner)
                    self._first.set()
                self._stop.wait(LOOK_EVERY_S)
            self._forget()

    def _beat(self, runner: asyncio.Runner) -> None:
        """Renew once; after a failure of any kind it is tried again soon, on a new connection."""
        asked_at = time.monotonic()
        try:
            report = runner.run(self._renew())
        except Exception as exc:  # noqa: BLE001 - whatever it is, a host without heartbeat is dead
            self._next_beat = time.monotonic() + LOOK_EVERY_S
            self._forget()
            if not self._is_failing:
                _log.warning(
                    "heartbeat failed; trying again",
                    extra={"problem": f"{type(exc).__name__}: {exc}", "owner": self._owner},
                )
            self._is_failing = True
            return
        self._confirmed_at, self._next_beat = asked_at, asked_at + self._settings.heartbeat_s
        if self._is_failing:
            _log.warning("heartbeat is back", extra={"owner": self._owner})
        self._is_failing = False
        self._on_main(lambda: self._on_report(report))

    async def _renew(self) -> HostReport:
        known = self._known()
        async with asyncio.timeout(max(self._settings.lease_s / 2, LOOK_EVERY_S)):
            if self._connection is None or self._connection.is_closed():
                self._connection = await connect(self._settings)
            ahead_s = (self._machine.now() - self._clock.now()).total_seconds()
            asked = self._clock.monotonic()
            rows = await self._connection.fetch(
                SQL_HEARTBEAT, self._owner, self._settings.lease, ahead_s
            )
            answered = self._clock.monotonic()
        report = host_report(rows, known)
        self._clock.hear(Reading(report.now, asked, answered))
        return report

    def _forget(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    def _look_at_main(self) -> float:
        """For how long the main loop has not answered; ask it again when it has, else say so once."""
        if not self._tick_asked:
            self._tick_asked = True
            self._ticked_at = time.monotonic()
            self._on_main(self._tick)
        blocked_s = time.monotonic() - self._ticked_at
        if blocked_s >= BLOCKED_S and not self._is_named:
            self._name_what_blocks(blocked_s)
        self._is_named = blocked_s >= BLOCKED_S
        return blocked_s

    def _tick(self) -> None:
        self._ticked_at = time.monotonic()
        self._tick_asked = False

    def _on_main(self, call: Callable[[], None]) -> None:
        assert self._main is not None
        try:
            self._main.call_soon_threadsafe(call)
        except RuntimeError:
            # The main loop was closed without leaving our block: nobody is left to act.
            self._stop.set()

    def _name_what_blocks(self, blocked_s: float) -> None:
        frame = sys._current_frames().get(self._main_thread)  # noqa: SLF001 - the documented way
        stack = "".join(traceback.format_stack(frame)) if frame is not None else "(no stack)"
        _log.warning(
            "the event loop is blocked; this host stops renewing its lease after %d s:\n%s",
            int(GIVE_UP_S),
            stack,
            extra={"blocked_s": round(blocked_s, 2), "owner": self._owner},
        )
