"""Hints from other processes by LISTEN, and the database's clock as this process knows it.

Hints may be lost; facts are read from the tables. The clock is the database's last answer, and monotonic time
since.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final, LiteralString, NamedTuple, cast

from pydantic_core import from_json

from actors._kernel.basics import Backoff
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId, RunId, ShardId
from actors.errors import ContractError
from persistence._postgres.connection.link import (
    Connection,
    Link,
    ServerOutage,
    StoreSettings,
    connect,
    shut,
)

_log = logging.getLogger("callboard.postgres")
_OLD_KINDS: Final = {"places": "slots"}
"""Kinds that functions of the database still send, since hosts of the release before know no others."""


def nudge_of(kind: str, agent: str | None, name: str | None) -> Nudge:
    """Return the hint that says this; `name` is a run, or a shard for `fanout`."""
    agent_id = None if agent is None else AgentId.parse(agent)
    if kind == "fanout":
        return Nudge("fanout", agent_id, shard=None if name is None else ShardId(name))
    kind = _OLD_KINDS.get(kind, kind)
    return Nudge(cast("Any", kind), agent_id, None if name is None else RunId(name))


class Listener:
    """Calls a hook for what other processes NOTIFY; listens again after every loss."""

    def __init__(self, settings: StoreSettings, outage: ServerOutage) -> None:
        self._settings, self._outage = settings, outage
        self.hook: Callable[[Nudge], None] | None = None
        self.listening = asyncio.Event()
        self._channels: dict[str, Callable[[str, int], None]] = {}
        self._changed = asyncio.Event()

    def follow(self, channel: str, hear: Callable[[str, int], None]) -> None:
        """Listen on one more channel: `hear(payload, pid)` is called for each notification, with its sender."""
        self._channels[channel] = hear
        self._changed.set()

    def leave(self, channel: str) -> None:
        """Hear nothing more of such a channel."""
        self._channels.pop(channel, None)
        self._changed.set()

    async def run(self) -> None:
        """Listen until cancelled; to be run as a task."""
        backoff = Backoff()
        while True:
            connection: Connection | None = None
            try:
                connection = await connect(self._settings)
                await self._listen(connection)
            except Exception as exc:  # noqa: BLE001 - a host that is deaf from now on would be a silent loss
                self._outage.begins(exc)
            finally:
                if connection is not None:
                    await shut(connection)
                if self.listening.is_set():
                    self.listening.clear()
                    backoff.reset()
            await asyncio.sleep(backoff.next_s())

    async def _listen(self, connection: Connection) -> None:
        connection_lost = asyncio.Event()

        def end(_: object) -> None:
            connection_lost.set()
            self._changed.set()

        connection.add_termination_listener(end)
        for channel in (self._settings.own_channel, self._settings.common_channel):
            await connection.add_listener(channel, self._on_notification)
        self._outage.ends()
        self.listening.set()
        # What was said while nobody listened is lost: let the host look for itself.
        self.publish(Nudge("shards"))
        followed_channels = set[str]()
        while True:
            self._changed.clear()
            if connection_lost.is_set():
                break
            for channel in sorted(self._channels.keys() - followed_channels):
                await connection.add_listener(channel, self._on_payload)
                followed_channels.add(channel)
            try:
                async with asyncio.timeout(self._settings.answer_s):
                    await self._changed.wait()
            except TimeoutError:
                # A route that drops everything looks like silence: ask now and then.
                await connection.execute("select 1", timeout=self._settings.answer_s)
                # Where there was no reader for a while, not before: readers come and go by the second.
                for channel in followed_channels - self._channels.keys():
                    await connection.remove_listener(channel, self._on_payload)
                    followed_channels.discard(channel)
        raise ConnectionError("the listening connection was closed")

    def _on_payload(self, _connection: object, pid: int, channel: str, payload: object) -> None:
        if (hear := self._channels.get(channel)) is not None:
            hear(str(payload), pid)

    def _on_notification(
        self, _connection: object, _pid: int, _channel: str, payload: object
    ) -> None:
        try:
            for kind, agent, name in from_json(str(payload)):
                self.publish(nudge_of(kind, agent, name))
        # Another version sent it: a hint that is lost costs time only.
        except (ValueError, TypeError, ContractError) as exc:
            _log.warning("a hint could not be read", extra={"problem": str(exc)})

    def publish(self, nudge: Nudge) -> None:
        """Pass a hint to its subscribers."""
        if self.hook is not None:
            self.hook(nudge)


SQL_READ_CLOCK: Final[LiteralString] = "select present() as now"

DRIFT_S: Final = 0.001
"""Seconds by which two good clocks differ after one heartbeat interval, at most."""

SLEWED_S: Final = 1.0
"""Seconds by which this clock may be ahead and then runs at half speed. More: the other one jumped."""


class Reading(NamedTuple):
    """A reading of the database's clock, and the times of `time.monotonic` before and after it."""

    now: datetime
    asked_at: float
    answered_at: float


async def read_clock(link: Link) -> Reading:
    """Ask the database what time it is."""
    asked_at = time.monotonic()
    [row] = await link.fetch("reading the clock", SQL_READ_CLOCK)
    return Reading(row["now"], asked_at, time.monotonic())


class PostgresClock:
    """The `Clock` of hosts on PostgreSQL. The machine's wall clock has no part in it.

    It shows a lower bound of the database's time: an instant that has passed here has passed there. An
    instant that a statement reported as passed has passed here, too. A new reading changes the clock only if
    it contradicts the time shown. The clock jumps back only by `SLEWED_S` or more. Any thread may use it.

    Args:
        first: The database was asked once already.
    """

    def __init__(self, first: Reading) -> None:
        self._shown_time = _ShownTime(first.now, first.answered_at)

    def now(self) -> datetime:
        """Return the current instant, in UTC.

        It jumps if the database's clock jumps, or if another server replaces it.
        """
        return self._shown_time.at(time.monotonic())

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start."""
        return time.monotonic()

    def observe(self, reading: Reading) -> None:
        """Adjust to a reading of the database's clock. A slow answer gives a lower bound, too."""
        self._shown_time = self._shown_time.adjust_to(reading)


class _ShownTime(NamedTuple):
    """`base` at the monotonic time `since`, and so much more, which it loses while time goes on."""

    base: datetime
    since: float
    ahead_s: float = 0.0

    def at(self, when: float) -> datetime:
        passed_s = when - self.since
        lost_s = min(max(passed_s / 2, 0.0), self.ahead_s)
        return self.base + timedelta(seconds=passed_s + self.ahead_s - lost_s)

    def adjust_to(self, reading: Reading) -> _ShownTime:
        """Return what is shown from now on.

        When the answer came the database's clock showed `reading.now` at least, and at most the
        round trip more.
        """
        over_s = (self.at(reading.answered_at) - reading.now).total_seconds()
        if 0 <= over_s <= reading.answered_at - reading.asked_at + DRIFT_S:
            return self
        return _ShownTime(
            reading.now, reading.answered_at, over_s if 0 < over_s < SLEWED_S else 0.0
        )
