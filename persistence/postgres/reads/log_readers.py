"""Readers of logs: woken by commits of this process, and by hints of others that write to the same log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, LiteralString

from pydantic_core import from_json, to_json

from actors.errors import PersistenceError
from actors.kernel.runtime.hints import FOLLOWED_S, FollowedLogs, LogHints
from actors.kernel.runtime.ids import RunId
from persistence.postgres.connection.batch import Batched, Batcher
from persistence.postgres.connection.link import Links
from persistence.postgres.connection.listener import Listener
from persistence.postgres.connection.settings import StoreSettings

SQL_SAY: Final[LiteralString] = """
select pg_notify(s.channel, s.payload) from unnest($1::text[], $2::text[]) s(channel, payload)
"""


class NotifiedLogs:
    """The `LogHints` of PostgreSQL: NOTIFY on two channels, with the name of the process and of the run.

    Args:
        settings: Name the channels and this process.
        links: Connections for the statements that notify.
        listener: The listener to other processes: always to readers of logs, to growth while readers are here.
    """

    is_connected = True

    def __init__(self, settings: StoreSettings, links: Links, listener: Listener) -> None:
        self._owner, self._links, self._listener = settings.owner, links, listener
        self._of_followed, self._of_growth = settings.followed_channel, settings.growth_channel
        self._followed = FollowedLogs(asyncio.get_running_loop().time)
        self._readers: dict[RunId, Callable[[], None]] = {}
        self._said: Batcher[tuple[str, RunId], None] = Batcher(
            self._flush, limit=settings.group_limit
        )
        self.batchers = (self._said,)
        listener.follow(self._of_followed, partial(self._hear, self._followed.note))

    def say_followed(self, run_id: RunId) -> None:
        """See `LogHints.say_followed`."""
        self._say(self._of_followed, run_id)

    def follow(self, run_id: RunId, on_growth: Callable[[], None]) -> Callable[[], None]:
        """See `LogHints.follow`; one for each log."""
        if not self._readers:
            self._listener.follow(self._of_growth, partial(self._hear, self._grew))
        self._readers[run_id] = on_growth

        def forget() -> None:
            del self._readers[run_id]
            if not self._readers:
                self._listener.leave(self._of_growth)

        return forget

    def announce_growth(self, run_id: RunId) -> None:
        """See `LogHints.announce_growth`."""
        if self._followed.includes(run_id):
            self._say(self._of_growth, run_id)

    def _say(self, channel: str, run_id: RunId) -> None:
        try:
            _ = self._said.call((channel, run_id))  # nobody waits for a hint
        except PersistenceError:
            return  # the store is closed

    def _hear(self, take: Callable[[RunId], None], payload: str) -> None:
        """Take a hint of another process. A hint that cannot be parsed is ignored: another version sent it."""
        try:
            owner, run_id = from_json(payload)
        except ValueError:
            return
        if owner != self._owner:
            take(run_id)

    def _grew(self, run_id: RunId) -> None:
        if (on_growth := self._readers.get(run_id)) is not None:
            on_growth()

    async def _flush(self, calls: list[Batched[tuple[str, RunId], None]]) -> None:
        said = {call.args for call in calls}
        for call in calls:
            call.answer(None)
        channels = [channel for channel, _ in said]
        payloads = [to_json([self._owner, run_id]).decode() for _, run_id in said]
        await self._links.fetch("hinting that logs grew", SQL_SAY, channels, payloads)


@dataclass(slots=True)
class _Log:
    """A log that has readers here.

    Attributes:
        news: Events that wake the readers.
        hints: The hints by which other processes know of the readers and notify of new entries; None: not yet.
        told_at: The instant of the last notification to the other processes.
    """

    news: set[asyncio.Event] = field(default_factory=set)
    hints: LogHints | None = None
    told_at: float = 0.0
    leave: Callable[[], None] = lambda: None


class LogReaders:
    """The logs that are read in this process.

    Args:
        hints: To and from other processes.
    """

    def __init__(self, hints: LogHints) -> None:
        self._hints: tuple[LogHints, ...] = (hints,)
        self._logs: dict[RunId, _Log] = {}

    def prefer(self, hints: LogHints) -> None:
        """Exchange hints by these as long as they are connected."""
        self._hints = (hints, *self._hints)

    def grew(self, run_id: RunId) -> None:
        """Wake who reads a log to which this process has written, and hint those elsewhere."""
        if run_id in self._logs:
            self._wake(run_id)
        for hints in self._hints:
            hints.announce_growth(run_id)

    def _wake(self, run_id: RunId) -> None:
        if (log := self._logs.get(run_id)) is not None:
            for news in log.news:
                news.set()

    @contextmanager
    def reading(self, run_id: RunId) -> Iterator[asyncio.Event]:
        """Yield an event that is set when the log has grown."""
        log, news = self._logs.setdefault(run_id, _Log()), asyncio.Event()
        log.news.add(news)
        try:
            yield news
        finally:
            log.news.discard(news)
            if not log.news:
                del self._logs[run_id]
                log.leave()

    def tell(self, run_id: RunId) -> bool:
        """Tell other processes now and then that a log is read here; return True the first time."""
        log, now = self._logs[run_id], asyncio.get_running_loop().time()
        chosen = next(hints for hints in self._hints if hints.is_connected)
        is_new = log.hints is not chosen
        if is_new:
            log.leave()
            log.hints, log.leave = chosen, chosen.follow(run_id, partial(self._wake, run_id))
        if is_new or now - log.told_at > FOLLOWED_S / 3:
            chosen.say_followed(run_id)
            log.told_at = now
        return is_new
