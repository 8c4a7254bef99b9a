"""What a stream of events sends at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from compose.web.streams import EventLine, EventStream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


async def _chunks_of(lines: list[EventLine]) -> list[bytes]:
    """Return what a stream sends if there is another line in each turn of the loop."""

    async def events() -> AsyncGenerator[EventLine, None]:
        for line in lines:
            yield line
            await asyncio.sleep(0)

    stream = EventStream()
    pumping = asyncio.ensure_future(stream.pump(events()))
    chunks = [chunk async for chunk in stream.chunks()]
    await pumping
    return chunks


async def test_pieces_of_an_answer_are_sent_together_and_each_once() -> None:
    """While other tasks keep the loop busy, one write sends the pieces of some turns."""
    lines = [EventLine("text_delta", b"%d" % n) for n in range(30)]

    chunks = await _chunks_of(lines)

    assert len(chunks) < 20
    assert b"".join(chunks).endswith(b"".join(line.encoded for line in lines))


async def test_a_stored_event_is_sent_in_its_turn_with_the_pieces_before_it() -> None:
    """It waits for nothing."""
    lines = [EventLine("message", b"%d" % n, f"1:{n}") for n in range(10)]

    chunks = await _chunks_of(lines)

    assert [chunk.count(b"event: message") for chunk in chunks if b"event" in chunk] == [1] * 10
