"""What a reader of live events gets when it is slow, and to which attempt events belong."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.ids import RunId
from actors._kernel.runtime.log_entry import EntryKind, RunLogEntry
from actors._runtime.client import live_events as live
from actors._runtime.client.gateway_api import Attempts
from actors._runtime.client.live_events import Feed
from actors._runtime.loop.tasks import TaskScope

if TYPE_CHECKING:
    from actors._kernel.json import JsonValue

RUN, AT = RunId("r"), datetime(2030, 1, 1, tzinfo=UTC)


def entry(seq: int, kind: EntryKind = EntryKind.STATE_SET, **payload: JsonValue) -> RunLogEntry:
    """An entry, or with -1 a piece."""
    return RunLogEntry(RUN, seq, kind, "", payload, AT)


async def test_a_slow_reader_misses_the_oldest_pieces_and_no_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not more of the log is read than it has room for."""
    monkeypatch.setattr(live, "MAX_DELTAS", 3)
    monkeypatch.setattr(live, "MAX_ENTRIES", 2)
    feed, read = Feed(), []

    async def log() -> None:
        for seq in range(5):
            await feed.add_entry(entry(seq))
            read.append(seq)
        feed.end(None)

    async with TaskScope() as tasks:
        tasks.start(log(), name="log")
        for _ in range(5):
            await asyncio.sleep(0)
        ahead = list(read)
        for n in range(6):
            feed.add_delta(entry(-1, EntryKind.TEXT_DELTA, n=n))
        items = []
        await feed.until_next()
        while (item := feed.take()) is not None:
            items.append(item)
            await feed.until_next()

    assert ahead == [0, 1]
    assert [e.seq for e in items if e.seq >= 0] == [0, 1, 2, 3, 4]
    assert [e.payload["n"] for e in items if e.seq < 0] == [3, 4, 5]


async def test_what_keeps_the_log_from_being_read_is_raised_to_the_reader() -> None:
    """Behind what was read before."""
    feed = Feed()
    await feed.add_entry(entry(0))
    feed.end(OSError("gone"))

    assert feed.take() is not None
    await feed.until_next()
    with pytest.raises(OSError, match="gone"):
        feed.take()


def test_every_retry_and_every_recovery_is_an_attempt() -> None:
    """A failed attempt's last entry is still its own; what an older one says is left out."""
    attempts = Attempts(1)
    log = [
        entry(0, EntryKind.RUN_STARTED),
        entry(1, EntryKind.RUN_ATTEMPT_FAILED),
        entry(2),
        entry(3, EntryKind.RUN_RESUMED, reason="woken"),
        entry(4, EntryKind.RUN_RESUMED, reason="recovered"),
        entry(5),
        entry(6, EntryKind.RUN_CONTINUED),
        entry(7),
    ]
    numbers = [attempts.entry(e).attempt for e in log[:6]]
    late = attempts.delta(entry(-1, EntryKind.TEXT_DELTA, text="x", n=0, attempt=2), 5)
    now = attempts.delta(entry(-1, EntryKind.TEXT_DELTA, text="x", n=0, attempt=3), 5)
    numbers += [attempts.entry(e).attempt for e in log[6:]]

    assert numbers == [1, 1, 2, 2, 3, 3, 1, 1]
    assert late is None
    assert now is not None
    assert (now.seq, now.attempt, now.data) == (5, 3, {"n": 0, "text": "x"})
