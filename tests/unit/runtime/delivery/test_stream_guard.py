"""The stream guard's decisions, without a broker."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, cast

import pytest

from actors._kernel.stores.transport import StreamRecord, StreamState
from actors._runtime.delivery.stream_guard import StreamRolledBackError, guard_stream

if TYPE_CHECKING:
    from actors._kernel.stores.transport import MailConnection, MailStore

MADE = datetime(2026, 1, 1, tzinfo=UTC)
STATE = StreamState("MAIL", MADE, first_sequence=5, last_sequence=9, deployment="d")
KNOWN = StreamRecord("MAIL", epoch=1, created=MADE, highest=None, purged=5)


class Stream:
    """A connection to one stream, and the rows that know it."""

    def __init__(self, state: StreamState, record: StreamRecord) -> None:
        self.state, self.known = state, record
        self.forgotten: list[str] = []

    async def stream_state(self) -> StreamState:
        """See `MailConnection.stream_state`."""
        return self.state

    async def forget_stream(self, state: StreamState) -> None:
        """See `MailConnection.forget_stream`."""
        self.forgotten.append(state.name)

    async def stream(self, _state: StreamState) -> StreamRecord:
        """See `MailStore.stream`."""
        return self.known

    async def next_stream_epoch(self, known: StreamRecord, created: datetime) -> StreamRecord:
        """See `MailStore.next_stream_epoch`."""
        return replace(known, epoch=known.epoch + 1, created=created)

    async def guarded(self) -> StreamRecord:
        """Return what the guard returns."""
        return await guard_stream(cast("MailConnection", self), cast("MailStore", self))


async def test_the_stream_that_was_read_is_read_on() -> None:
    """Its record is returned as it is, and nothing is deleted."""
    stream = Stream(STATE, KNOWN)

    assert await stream.guarded() == KNOWN
    assert stream.forgotten == []


async def test_a_stream_from_which_more_was_purged_than_allowed_is_made_anew() -> None:
    """The store is behind the stream and does not have the purged messages."""
    stream = Stream(STATE, replace(KNOWN, purged=4))

    with pytest.raises(StreamRolledBackError):
        await stream.guarded()
    assert stream.forgotten == ["MAIL"]


async def test_a_whole_new_stream_begins_another_epoch() -> None:
    """It is read from its first message; it is not deleted."""
    created = MADE + timedelta(days=1)
    stream = Stream(replace(STATE, created=created, first_sequence=1), KNOWN)

    assert await stream.guarded() == replace(KNOWN, epoch=2, created=created)
    assert stream.forgotten == []
