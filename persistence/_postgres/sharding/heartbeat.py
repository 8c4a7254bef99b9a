"""The heartbeat: a thread that keeps this host's shards while the main event loop is busy.

It has its own event loop and connection, so that a slow main loop does not cost the lease. It names
what blocks the main loop, and acts for it when it stays blocked: other hosts get the shards,
first those whose agents only wait for the loop, then that of the agent that blocks it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import FrameType, TracebackType
from typing import Final, Literal, Self, TypeAlias

from actors._kernel.basics import Clock
from actors._kernel.runtime.ids import HostIncarnation
from actors._kernel.runtime.rows import HostReport
from actors._kernel.runtime.scheduler import ShardLease
from actors._kernel.stores.runs import Blocker
from persistence._postgres.commits.encode import lease_columns
from persistence._postgres.connection.link import Connection, StoreSettings, connect
from persistence._postgres.connection.listener import PostgresClock, Reading
from persistence._postgres.sharding.ownership import (
    SQL_GIVE_UP_BLOCKED,
    SQL_HEARTBEAT,
    SQL_RELEASE_SHARDS,
    host_report,
    unread_leases,
)

_log = logging.getLogger("callboard.postgres")

Unable: TypeAlias = Literal["blocked", "broker", "returning", "unsure"]
"""The reason why a live host does not serve as others do; `schema/baseline/hosts.sql` says what follows."""

BLOCKED_S: Final = 1.0
HAND_OVER_S: Final = 3.0
"""Least seconds of a blocked event loop, if the lease is shorter, after which the host gives up its shards."""

POLL_S: Final = 0.25
FROZEN_S: Final = 4 * POLL_S
"""Maximum seconds that count between two checks of this thread: longer ones mean a frozen process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The callbacks by which the heartbeat asks and notifies its host.

    Attributes:
        known: Returns the shards this host thinks it holds; called in the heartbeat's thread, so it
            returns an immutable value.
        on_report: Called with every answer on the event loop that entered the block; with the last one
            when it was blocked meanwhile.
        blocker: Says who executes in a frame of the loop's thread; called in the heartbeat's thread.
        is_connected: Whether the host has its broker, or needs none; called in the heartbeat's thread.
        machine: The wall clock of this machine; how wrong it is can be seen, and decides nothing.
    """

    known: Callable[[], Sequence[ShardLease]]
    on_report: Callable[[HostReport], None]
    blocker: Callable[[FrameType | None], Blocker]
    machine: Clock
    is_connected: Callable[[], bool] = lambda: True


class Heartbeat:
    """Renews the lease of `owner` every `heartbeat_s` while the block lasts.

    Args:
        settings: Lease, interval, and how long the loop may be blocked.
        owner: The host's incarnation.
        host: The host.
        clock: The clock, which gets the database's time with every answer.
    """

    def __init__(
        self, settings: StoreSettings, owner: HostIncarnation, host: Host, clock: PostgresClock
    ) -> None:
        self._settings, self._owner, self._host, self._clock = settings, owner, host, clock
        self._confirmed_at = 0.0
        self._thread: threading.Thread | None = None
        self._main: asyncio.AbstractEventLoop | None = None
        self._main_thread = 0
        self._checked_at = self._blocked_s = 0.0
        self._is_tick_pending = False
        self._connection: Connection | None = None
        self._next_beat = 0.0
        self._reported_unable: Unable | None = None
        self._broker = Contact(settings.lease_s)
        self._is_failing = self._is_blocker_logged = self._is_reporting = False
        self._report: HostReport | None = None
        self._first_beat, self._stop = threading.Event(), threading.Event()

    @property
    def confirmed_at(self) -> float:
        """The instant at which the last answered renewal was sent, by `time.monotonic`; 0: none was."""
        return self._confirmed_at

    @property
    def remaining_s(self) -> float:
        """The seconds for which no other host can own our shards; below 2 start nothing outside."""
        return self._confirmed_at + self._settings.lease_s - time.monotonic()

    async def __aenter__(self) -> Self:
        """Start the thread and return after its first heartbeat, or its first failure."""
        await self.start()
        return self

    async def start(self) -> None:
        """Start the thread and return after its first heartbeat, or its first failure."""
        self._main = asyncio.get_running_loop()
        self._main_thread = threading.get_ident()
        self._checked_at = time.monotonic()
        # A daemon, so that it does not keep a process alive whose main thread ended within the block.
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()
        while not self._first_beat.is_set():
            await asyncio.to_thread(self._first_beat.wait, self._settings.lease_s)

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

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            while not self._stop.is_set():
                self._check_main_loop()
                unable = self._reason_unable()
                if time.monotonic() >= self._next_beat or unable != self._reported_unable:
                    self._beat(runner, unable)
                    self._first_beat.set()
                self._stop.wait(POLL_S)
            self._forget()

    def _reason_unable(self) -> Unable | None:
        """Return why this host cannot serve now, if it cannot."""
        patience_s = max(self._settings.lease_s, HAND_OVER_S)
        if self._blocked_s >= min(patience_s, self._settings.blocked_s):
            return "blocked"
        return self._broker.seen(self._host.is_connected(), time.monotonic())

    def _beat(self, runner: asyncio.Runner, unable: Unable | None) -> None:
        """Renew once; after a failure of any kind it is tried again soon, on a new connection."""
        asked_at = time.monotonic()
        try:
            report = runner.run(self._renew(unable))
        except Exception as exc:  # noqa: BLE001 - whatever it is, a host without heartbeat is dead
            self._next_beat = time.monotonic() + POLL_S
            self._forget()
            # One line for an outage, not one for each retry.
            if not self._is_failing:
                _log.warning(
                    "heartbeat failed; trying again",
                    extra={"problem": f"{type(exc).__name__}: {exc}", "owner": self._owner},
                )
            self._is_failing = True
            return
        # The time before it was sent: the lease then ends on the server no earlier than this host believes.
        self._confirmed_at, self._next_beat = asked_at, asked_at + self._settings.heartbeat_s
        self._reported_unable = unable
        if self._is_failing:
            _log.warning("heartbeat is back", extra={"owner": self._owner})
        self._is_failing = False
        self._report = report
        # One callback at a time: a blocked loop would get a queue of reports, of which only the last counts.
        if not self._is_reporting:
            self._is_reporting = True
            self._on_main(self._deliver)

    async def _renew(self, unable: Unable | None) -> HostReport:
        host_leases = self._host.known()
        # A server that hangs must not use up the lease: there is time for another try on a new connection.
        async with asyncio.timeout(max(self._settings.lease_s / 2, POLL_S)):
            if self._connection is None or self._connection.is_closed():
                self._connection = await connect(self._settings)
            ahead_s = (self._host.machine.now() - self._clock.now()).total_seconds()
            asked_at = self._clock.monotonic()
            rows = await self._connection.fetch(
                SQL_HEARTBEAT, self._owner, self._settings.lease, ahead_s, unable
            )
            answered_at = self._clock.monotonic()
            report = host_report(rows, host_leases)
            self._clock.observe(Reading(report.now, asked_at, answered_at))
            if unable == "blocked":
                unread_shards = unread_leases(rows, host_leases, self._owner, self._settings.lease)
                return await self._act_for_main(
                    self._connection, [*host_leases, *unread_shards], report
                )
            return report

    def _forget(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    def _check_main_loop(self) -> None:
        """Note for how long the main loop has not answered; ask it again when it has, else say so once."""
        now = time.monotonic()
        self._blocked_s += min(now - self._checked_at, FROZEN_S)
        self._checked_at = now
        if not self._is_tick_pending:
            self._blocked_s = 0.0
            self._is_tick_pending = True
            self._on_main(self._tick)
        is_blocked = self._blocked_s >= BLOCKED_S
        if is_blocked and not self._is_blocker_logged:
            self._name_what_blocks()
        self._is_blocker_logged = is_blocked

    def _tick(self) -> None:
        self._is_tick_pending = False

    def _deliver(self) -> None:
        self._is_reporting = False  # first: what comes from now on is reported again
        if self._report is not None:
            self._host.on_report(self._report)

    def _on_main(self, call: Callable[[], None]) -> None:
        assert self._main is not None
        try:
            self._main.call_soon_threadsafe(call)
        except RuntimeError:
            # The main loop was closed without leaving our block: nobody is left to act.
            self._stop.set()

    def _main_frame(self) -> FrameType | None:
        return sys._current_frames().get(self._main_thread)  # noqa: SLF001 - the documented way

    def _blocker(self, frame: FrameType | None) -> Blocker:
        try:
            return self._host.blocker(frame)
        except Exception as exc:  # noqa: BLE001 - the frame goes on; a host without heartbeat is dead
            _log.warning("it cannot be seen who blocks the event loop", exc_info=exc)
            return Blocker(place="unknown")

    def _name_what_blocks(self) -> None:
        frame = self._main_frame()
        blocker = self._blocker(frame)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else "(no stack)"
        _log.warning(
            "the event loop is blocked by %s, in %s; its agent goes to another host after %g s:\n%s",
            blocker.who,
            blocker.place,
            self._settings.blocked_s,
            stack,
            extra={"blocked_s": round(self._blocked_s, 2), **self._facts(blocker)},
        )

    def _facts(self, blocker: Blocker) -> dict[str, str | None]:
        agent = None if blocker.agent_id is None else str(blocker.agent_id)
        return {"agent": agent, "run": blocker.run_id, "place": blocker.place, "owner": self._owner}

    async def _act_for_main(
        self, connection: Connection, owned_leases: Sequence[ShardLease], report: HostReport
    ) -> HostReport:
        """Give up what other hosts can serve; return what the main loop is to know when it is back.

        That includes shards which were claimed shortly before: the main loop has not read the answer.

        Until `blocked_s` the shard of the agent that blocks is kept, so that what it does is not begun
        elsewhere meanwhile, and those in which effects would be in doubt.
        """
        blocker = self._blocker(self._main_frame())
        if not self._is_tick_pending:
            return replace(report, surplus=())  # it is back
        surplus_shards = {shard for group in report.surplus for shard in group.shards}
        given_leases = [
            lease
            for lease in owned_leases
            if lease.shard in surplus_shards and lease not in report.lost
        ]
        is_over = self._blocked_s >= self._settings.blocked_s
        if not is_over:
            kept_shards = {blocker.shard, *blocker.in_doubt}
            given_leases = [lease for lease in given_leases if lease.shard not in kept_shards]
        if not given_leases:
            return replace(report, surplus=())
        _log.warning(
            "the event loop stays blocked; other hosts get what they can serve",
            extra={"shards": [lease.shard for lease in given_leases], **self._facts(blocker)},
        )
        for lease in given_leases:
            if is_over and lease.shard == blocker.shard:
                await connection.fetch(
                    SQL_GIVE_UP_BLOCKED,
                    self._owner,
                    lease.shard,
                    lease.epoch,
                    blocker.run_id,
                    blocker.place,
                )
        await connection.fetch(SQL_RELEASE_SHARDS, self._owner, *lease_columns(given_leases))
        return replace(report, lost=(*report.lost, *given_leases), surplus=())


class Contact:
    """The state of a host's contact to its broker. A change counts once it has lasted for `lease_s`."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._has_broker = True
        self._changed_since: float | None = None

    def seen(self, is_connected: bool, now: float) -> Unable | None:
        """Note how it is at this time of a monotonic clock; return what follows."""
        if is_connected == self._has_broker:
            self._changed_since = None
        elif self._changed_since is None:
            self._changed_since = now
        elif now - self._changed_since >= self._lease_s:
            self._has_broker, self._changed_since = is_connected, None
        if self._has_broker:
            return None if is_connected else "unsure"
        return "returning" if is_connected else "broker"
