"""The end of a stream of events."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from compose._web import streams
from compose._web.problems import ProblemError
from compose._web.requests import LOCAL
from compose._web.streams import EventLine, EventStream, Streams

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


async def _nothing() -> AsyncGenerator[EventLine, None]:
    none: tuple[EventLine, ...] = ()
    for line in none:
        yield line


async def test_a_stream_does_not_count_once_its_client_has_its_end() -> None:
    """The client may open the next one at once, also at the limit of streams."""
    open_ones = Streams()
    for _ in range(streams.MAX_STREAMS_OF_ONE - 1):
        open_ones.add(EventStream(), LOCAL)
    response = streams.StreamResponse(open_ones, LOCAL, _nothing())
    more_bodies = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            more_bodies.append(message["more_body"])
            if message["more_body"]:
                with pytest.raises(ProblemError):
                    open_ones.check(LOCAL)
            else:
                open_ones.check(LOCAL)

    await response({"type": "http"}, asyncio.Event().wait, send)  # type: ignore[arg-type]
    assert more_bodies == [True, False]
    open_ones.check(LOCAL)
