"""Faults of sessions that random programs and crashes at store calls have found, each by itself."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from actors.sessions import AgentRuntime
from tests.behaviour.bed import LIMIT_S
from tests.behaviour.talks import Echo, past_of, path_texts, sessions_on, types_of

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from actors.sessions import SessionEvent
    from tests.behaviour.bed import Bed


class Waiter:
    """Waits for a signal that never comes."""

    def __init__(self, bed: Bed) -> None:
        self.id = bed.name()

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        """Wait."""
        del inbox
        await ctx.sleep_until_signal("never")


async def nothing(ctx: RunContext, inbox: list[Message]) -> None:
    """Do nothing. The host needs an agent to serve."""


@pytest.mark.item(368, 377)
async def test_a_run_cancelled_without_a_live_host_has_all_its_end_events(
    bed: Bed, app: str
) -> None:
    """The next host ends it before the app's agents are registered: the end is a fact of the session, too."""
    async with sessions_on(bed, {"normal": Waiter(bed)}, app=app) as talks:
        run = await talks.start("1", session_id="s")
        await bed.seen(run.run_id, "msg.received")
        await bed.crash()
    async with bed.client() as client:
        await client.cancel(run.run_id, reason="enough")
    await bed.start()
    await bed.play(nothing)
    async with sessions_on(bed, {"normal": Waiter(bed)}, app=app) as talks:
        assert (await bed.ended(run.run_id)).status == "CANCELLED"
        facts = await bed.runtime.store.data.sessions.facts(talks.agent_id("s"))
        assert [fact.kind for fact in facts] == ["queued", "started", "cancelling", "ended"]
        assert types_of(await past_of(talks, "s"))[-3:] == [
            "cancel_requested",
            "message",
            "run_cancelled",
        ]
        assert await path_texts(talks, "s") == ["1"]


@pytest.mark.item(374, 382)
async def test_a_reader_survives_the_deletion_of_its_session(bed: Bed, app: str) -> None:
    """It was slow, and had read a part. It then reads the new session of that id, from its start."""
    async with sessions_on(bed, Echo().agent(), app=app) as talks:
        await (await talks.start("1", session_id="s")).result()
        read_events: list[SessionEvent] = []
        async with asyncio.timeout(LIMIT_S), aclosing(talks.tail_session("s")) as events:
            read_events.append(await anext(events))
            await talks.delete_session("s")
            run = await talks.start("2", session_id="s")
            async for event in events:
                read_events.append(event)
                if (event.type, event.run_id) == ("run_completed", run.run_id):
                    break
        own = [event for event in read_events if event.run_id == run.run_id]
        assert types_of(own) == ["loop_started", "message", "message", "run_completed"]


@pytest.mark.item(365)
async def test_a_joining_message_of_another_process_is_read_at_once(bed: Bed, app: str) -> None:
    """The host is notified as of any message, and starts its run when the current one has ended."""
    echo = Echo()
    gate = echo.hold("1")
    async with sessions_on(bed, echo.agent(), app=app) as talks, bed.client() as client:
        first = await talks.start("1", session_id="s")
        await bed.until(lambda: echo.asked)
        async with AgentRuntime(runtime=client, app=app) as theirs:
            joined = await theirs.start("2", session_id="s", on_conflict="join")
        assert joined.run_id == first.run_id
        gate.set()
        await first.result()
        async with asyncio.timeout(LIMIT_S):
            while len(await path_texts(talks, "s")) < 4:  # noqa: ASYNC110 - of a run that nobody holds
                await asyncio.sleep(0.01)
        assert await path_texts(talks, "s") == ["1", "echo: 1", "2", "echo: 2"]
