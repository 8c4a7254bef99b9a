"""InMemoryEventLog: the logs of all runs in a dict."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

from pydantic_core import to_json

from actors.errors import ConcurrentAppendError
from actors.kernel.runtime.log_entry import check_entry
from actors.runtime.backends._records import LogLine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors.kernel.clock import Clock
    from actors.kernel.runtime.ids import RunId
    from actors.kernel.runtime.log_entry import NewEntry, RunLogEntry


class InMemoryEventLog:
    """See `EventLog`. Nothing survives the process."""

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._logs: defaultdict[RunId, list[LogLine]] = defaultdict(list)
        self._readers: defaultdict[RunId, set[asyncio.Event]] = defaultdict(set)

    async def append(self, run_id: RunId, entry: NewEntry, *, expected_seq: int) -> int:
        """See `EventLog.append`."""
        check_entry(entry)
        log = self._logs[run_id]
        if len(log) - 1 != expected_seq:
            raise ConcurrentAppendError(run_id, expected_seq, len(log) - 1)
        payload = to_json(entry.payload)
        line = LogLine(len(log), str(entry.kind), entry.position, payload, self._clock.now())
        log.append(line)
        for news in self._readers.get(run_id, ()):
            news.set()
        return line.seq

    async def read(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        """See `EventLog.read`."""
        for line in self._logs.get(run_id, [])[from_seq:]:
            yield line.entry(run_id)

    async def tail(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        """See `EventLog.tail`. May begin before the first entry."""
        news = asyncio.Event()
        self._readers[run_id].add(news)
        try:
            while True:
                news.clear()
                lines = self._logs.get(run_id, [])
                for line in lines[from_seq:]:
                    yield line.entry(run_id)
                    from_seq = line.seq + 1
                if lines and from_seq >= len(lines) and lines[-1].entry(run_id).is_terminal:
                    return
                await news.wait()
        finally:
            self._readers[run_id].discard(news)
            if not self._readers[run_id]:
                del self._readers[run_id]

    async def last_seq(self, run_id: RunId) -> int:
        """See `EventLog.last_seq`."""
        return len(self._logs.get(run_id, ())) - 1
