"""The cancel request of a session's run: each reader gets an event before the run has stopped."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from actors.sessions import AgentRuntime
from tests.behaviour.bed import LIMIT_S
from tests.behaviour.talks import all_of, past_of, payload_of, sessions_on, types_of

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from actors.sessions import SessionEvent
    from tests.behaviour.bed import Bed


class Slow:
    """Waits for a signal; its reaction to a cancel takes as long as a test needs."""

    def __init__(self, bed: Bed) -> None:
        self.id = bed.name()
        self.begun, self.may_stop = asyncio.Event(), asyncio.Event()

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        """Wait."""
        del inbox
        try:
            await ctx.step("begin", self._begin)
        finally:
            await self.may_stop.wait()

    async def _begin(self) -> None:
        self.begun.set()
        await asyncio.Event().wait()


async def read(talks: AgentRuntime, cancel_seen: asyncio.Event) -> list[SessionEvent]:
    """Read a session until a run of it was cancelled; set the event when a cancel is requested."""
    read_events: list[SessionEvent] = []
    async with aclosing(talks.tail_session("s")) as events:
        async for event in events:
            read_events.append(event)
            if event.type == "cancel_requested":
                cancel_seen.set()
            if event.type == "run_cancelled":
                return read_events
    raise AssertionError("the tail ended")


@pytest.mark.item(352, 374, 379)
async def test_every_reader_gets_the_cancel_request_of_a_run(bed: Bed) -> None:
    """Also in another process, while the run executes; once, with the first reason; and in a replay."""
    slow = Slow(bed)
    async with (
        sessions_on(bed, slow, app=bed.name().type) as talks,
        bed.client() as client,
        AgentRuntime(runtime=client, app=talks.app) as theirs,
    ):
        run = await talks.start("1", session_id="s")
        cancels_seen = [asyncio.Event(), asyncio.Event()]
        readers = [
            asyncio.ensure_future(read(*pair))
            for pair in zip((talks, theirs), cancels_seen, strict=True)
        ]
        async with asyncio.timeout(LIMIT_S):
            await slow.begun.wait()
            done = await (await theirs.run(run.run_id)).cancel(reason="enough", timeout_s=0.01)
            await run.cancel(reason="really", timeout_s=0.01)
            assert (done.status, done.has_ended) == ("running", False)
            for event in cancels_seen:
                await event.wait()
            slow.may_stop.set()
            event_lists = [await reader for reader in readers]
        own = await all_of(run)
        replayed = await past_of(talks, "s")
        types = ["loop_started", "cancel_requested", "message", "run_cancelled"]
        assert [types_of(some) for some in (*event_lists, replayed)] == [types] * 3
        assert sorted(types_of(own)) == sorted([*types, "cancel_timeout"])
        assert [payload_of(some[1]) for some in (*event_lists, replayed)] == [
            {"reason": "enough"}
        ] * 3
        assert own[-1].type == "run_cancelled"
        rest = await past_of(talks, "s", replayed[1].event_id)
        assert types_of(rest) == ["message", "run_cancelled"]


@pytest.mark.item(365, 379)
async def test_an_interrupting_message_requests_a_cancel_of_the_run(bed: Bed) -> None:
    """The event comes before the message is queued, and is in each page of a replay."""
    slow = Slow(bed)
    slow.may_stop.set()
    async with sessions_on(bed, slow, app=bed.name().type) as talks:
        first = await talks.start("1", session_id="s")
        async with asyncio.timeout(LIMIT_S):
            await slow.begun.wait()
        second = await talks.start("2", session_id="s", on_conflict="interrupt")
        await first.wait()
        events = await past_of(talks, "s")
        own = [event for event in events if event.run_id == first.run_id]
        assert types_of(own) == ["loop_started", "cancel_requested", "message", "run_cancelled"]
        order = types_of(events)
        assert order.index("cancel_requested") < order.index("run_queued")
        for n, event in enumerate(events):
            rest = types_of(await past_of(talks, "s", event.event_id))
            assert rest[: len(order) - n - 1] == order[n + 1 :]
        await second.cancel()
