"""Readers of logs: commits of this process, and hints of others, wake them and hand them the new entries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Generic, LiteralString, TypeVar

from pydantic_core import from_json, to_json

from actors.errors import PersistenceError
from actors.kernel.runtime.hints import FOLLOWED_S, FollowedLogs, LogHints
from actors.kernel.runtime.ids import RunId
from actors.kernel.runtime.log_entry import RunLogEntry
from actors.kernel.stores.runs import Handed
from persistence.postgres.connection.batch import Batched, Batcher
from persistence.postgres.connection.link import Links
from persistence.postgres.connection.listener import Listener
from persistence.postgres.connection.settings import StoreSettings

K = TypeVar("K")
T = TypeVar("T")

MOST_HANDED: Final = 64
"""Number of entries that are kept for a slow reader of a log; it reads the log instead."""
BEGUN_S: Final = 5.0
"""Seconds for which a reader is kept for the caller who has submitted a run and begins to read it."""

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
        self._readers: dict[RunId, Callable[[Sequence[RunLogEntry]], None]] = {}
        self._said: Batcher[tuple[str, RunId], None] = Batcher(
            self._flush, limit=settings.group_limit
        )
        self.batchers = (self._said,)
        listener.follow(self._of_followed, partial(self._hear, self._followed.note))

    def say_followed(self, run_id: RunId) -> None:
        """See `LogHints.say_followed`."""
        self._say(self._of_followed, run_id)

    def follow(
        self, run_id: RunId, on_growth: Callable[[Sequence[RunLogEntry]], None]
    ) -> Callable[[], None]:
        """See `LogHints.follow`; one for each log."""
        if not self._readers:
            self._listener.follow(self._of_growth, partial(self._hear, self._grew))
        self._readers[run_id] = on_growth

        def forget() -> None:
            del self._readers[run_id]
            if not self._readers:
                self._listener.leave(self._of_growth)

        return forget

    def takes_entries(self, run_id: RunId) -> bool:
        """See `LogHints.takes_entries`: the payload of NOTIFY is too small."""
        del run_id
        return False

    def announce_growth(self, run_id: RunId, entries: Sequence[RunLogEntry] = ()) -> None:
        """See `LogHints.announce_growth`."""
        del entries
        if self._followed.includes(run_id):
            self._say(self._of_growth, run_id)

    def _say(self, channel: str, run_id: RunId) -> None:
        try:
            _ = self._said.call((channel, run_id))  # nobody waits for a hint
        except PersistenceError:
            return  # the store is closed

    def _hear(self, take: Callable[[RunId], None], payload: str, _pid: int) -> None:
        """Take a hint of another process. A hint that cannot be parsed is ignored: another version sent it."""
        try:
            owner, run_id = from_json(payload)
        except ValueError:
            return
        if owner != self._owner:
            take(run_id)

    def _grew(self, run_id: RunId) -> None:
        if (on_growth := self._readers.get(run_id)) is not None:
            on_growth(())

    async def _flush(self, calls: list[Batched[tuple[str, RunId], None]]) -> None:
        said = {call.args for call in calls}
        for call in calls:
            call.answer(None)
        channels = [channel for channel, _ in said]
        payloads = [to_json([self._owner, run_id]).decode() for _, run_id in said]
        await self._links.fetch("hinting that logs grew", SQL_SAY, channels, payloads)


class Begun(Generic[K, T]):
    """Readers that exist since a submit, each for the caller that will read. After `BEGUN_S` they are dropped.

    Args:
        drop: Function that ends a reader that nobody has taken.
    """

    def __init__(self, drop: Callable[[K, T], None]) -> None:
        self._drop = drop
        self._readers: dict[K, tuple[T, asyncio.TimerHandle]] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._readers

    def put(self, key: K, reader: T) -> None:
        """Keep a reader. It takes the place of an earlier one."""
        self._forget(key)
        timer = asyncio.get_running_loop().call_later(BEGUN_S, self._forget, key)
        self._readers[key] = reader, timer

    def get(self, key: K) -> T | None:
        """Return a reader, and leave it there."""
        found = self._readers.get(key)
        return None if found is None else found[0]

    def take(self, key: K) -> T | None:
        """Return a reader, which is then the caller's."""
        if (found := self._readers.pop(key, None)) is None:
            return None
        found[1].cancel()
        return found[0]

    def _forget(self, key: K) -> None:
        if (reader := self.take(key)) is not None:
            self._drop(key, reader)


@dataclass(slots=True)
class _Log:
    """A log that has readers here.

    Attributes:
        readers: The readers here.
        hints: The hints by which other processes know of the readers and notify of new entries; None: not yet.
        told_at: The instant of the last notification to the other processes.
    """

    readers: set[Handed[RunLogEntry]] = field(default_factory=set)
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
        self._begun = Begun(self._remove)

    def prefer(self, hints: LogHints) -> None:
        """Exchange hints by these as long as they are connected."""
        self._hints = (hints, *self._hints)

    def takes_entries(self, run_id: RunId) -> bool:
        """Return True if somebody reads a log and need not read entries that `grew` is given."""
        return run_id in self._logs or any(hints.takes_entries(run_id) for hints in self._hints)

    def grew(self, run_id: RunId, entries: Sequence[RunLogEntry] = ()) -> None:
        """Wake the readers of a log to which this process has written, here and elsewhere.

        They read the new entries if none are given.
        """
        self._hand(run_id, entries)
        for hints in self._hints:
            hints.announce_growth(run_id, entries)

    def _hand(self, run_id: RunId, entries: Sequence[RunLogEntry]) -> None:
        if (log := self._logs.get(run_id)) is not None:
            for reader in log.readers:
                reader.hand(entries)

    def begin(self, run_id: RunId) -> None:
        """Keep the entries of a run for its first reader.

        The run was submitted just now, and this process executes it: no entry was written before.
        """
        reader = self._add(run_id, 0)
        reader.has_to_read = False
        self._begun.put(run_id, reader)

    @contextmanager
    def begun(self, run_id: RunId) -> Iterator[Handed[RunLogEntry] | None]:
        """Yield the reader that `begin` has kept, if there is one."""
        reader = self._begun.take(run_id)
        try:
            yield reader
        finally:
            if reader is not None:
                self._remove(run_id, reader)

    @contextmanager
    def reading(self, run_id: RunId, begin: int) -> Iterator[Handed[RunLogEntry]]:
        """Yield a reader of a log from a seq on, which is woken when the log has grown."""
        reader = self._add(run_id, begin)
        try:
            yield reader
        finally:
            self._remove(run_id, reader)

    def _add(self, run_id: RunId, begin: int) -> Handed[RunLogEntry]:
        reader = Handed[RunLogEntry](_seq_of, begin, MOST_HANDED)
        self._logs.setdefault(run_id, _Log()).readers.add(reader)
        return reader

    def _remove(self, run_id: RunId, reader: Handed[RunLogEntry]) -> None:
        log = self._logs[run_id]
        log.readers.discard(reader)
        if not log.readers:
            del self._logs[run_id]
            log.leave()

    def tell(self, run_id: RunId) -> bool:
        """Tell other processes now and then that a log is read here; return True the first time."""
        log, now = self._logs[run_id], asyncio.get_running_loop().time()
        chosen = next(hints for hints in self._hints if hints.is_connected)
        is_new = log.hints is not chosen
        if is_new:
            log.leave()
            log.hints, log.leave = chosen, chosen.follow(run_id, partial(self._hand, run_id))
        if is_new or now - log.told_at > FOLLOWED_S / 3:
            chosen.say_followed(run_id)
            log.told_at = now
        return is_new


def _seq_of(entry: RunLogEntry) -> int:
    return entry.seq
