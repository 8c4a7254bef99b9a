"""What a stream of events sends at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from pydantic import JsonValue, ValidationError

from compose._web.endpoint import StrictModel
from compose._web.requests import parse_body
from compose._web.streams import EventLine, EventStream

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


def test_no_line_separator_of_unicode_is_within_a_line() -> None:
    """Clients split a stream there. In JSON its escape means the same."""
    line = EventLine("text_delta", '"a\u2028b\u2029c\u0085é"'.encode())

    assert line.encoded == 'event: text_delta\ndata: "a\\u2028b\\u2029c\\u0085é"\n\n'.encode()


def test_a_byte_order_mark_of_a_body_is_skipped() -> None:
    """Tools of Windows write one."""
    assert parse_body(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}
    assert parse_body(b"\xef\xbb\xbf") == {}


class _Body(StrictModel):
    text: str
    mode: str = "normal"
    title: str | None = "none"
    data: JsonValue = 1


def test_a_null_of_an_optional_field_is_no_value() -> None:
    """Unless null is one, or the field is needed."""
    body = _Body.model_validate({"text": "a", "mode": None, "title": None, "data": None})

    assert body == _Body(text="a", title=None, data=None)
    for wrong in ({"text": None}, {"text": "a", "odd": None}):
        with pytest.raises(ValidationError):
            _Body.model_validate(wrong)


async def test_a_stored_event_is_sent_in_its_turn_with_the_pieces_before_it() -> None:
    """It waits for nothing."""
    lines = [EventLine("message", b"%d" % n, f"1:{n}") for n in range(10)]

    chunks = await _chunks_of(lines)

    assert [chunk.count(b"event: message") for chunk in chunks if b"event" in chunk] == [1] * 10
