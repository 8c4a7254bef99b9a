"""Streams of events, without a server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from actors._runtime.loop.tasks import TaskScope
from broker._gateway.responses import GatewayRequest
from broker._gateway.streams import EventStreams
from broker._wire.subjects import ApiOrigin

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from types import TracebackType

    from broker._gateway.responses import GatewayAnswer


class Silence:
    """A front of runs in which nothing happens and which end at once."""

    async def status(self, _caller: object, _run_id: str) -> None:
        """There is such a run."""

    async def events(self, _caller: object, _run_id: str, *, from_seq: int) -> AsyncGenerator[Any]:
        """Yield nothing."""
        del from_seq
        nothing: tuple[Any, ...] = ()
        for event in nothing:
            yield event


async def test_a_reader_that_leaves_while_its_stream_ends_harms_nobody() -> None:
    """Its unanswered beat comes when the time limit can be set no more; the sink must not raise."""
    exits: list[str] = []

    class Leaving(TaskScope):
        """A scope in whose end the reader goes away."""

        @override
        async def __aexit__(
            self,
            kind: type[BaseException] | None,
            exc: BaseException | None,
            trace: TracebackType | None,
        ) -> None:
            """See `TaskScope`."""
            streams.end("1")
            exits.append("1")
            await super().__aexit__(kind, exc, trace)

    async def publish(_request: GatewayRequest, _answer: GatewayAnswer, _reply: str) -> None:
        await asyncio.sleep(0)

    front: Any = Silence()
    streams = EventStreams(front, Leaving, publish, "_INBOX.name.renew")
    request = GatewayRequest(subject="s", reply="r", headers={}, data=b'{"run": "r1"}')
    await streams.serve(request, ApiOrigin(tenant="default", publisher="crm", verb="events"))

    assert exits == ["1"]
    assert len(streams) == 0
