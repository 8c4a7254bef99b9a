"""Live text of a session for readers on another host than the one that executes its run."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.ids import AgentId
from actors.sessions import AgentRuntime, SessionEvent
from tests.behaviour.bed import FAST, LIMIT_S
from tests.behaviour.talks import Echo, parent_on, payload_of, sessions_on
from tests.harness.live_bus import LiveBus, LiveReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.behaviour.bed import Bed

WORDS = "one two three four five six"
WHOLE = f"echo: {WORDS}"


class Paced:
    """Lets a model emit one piece at a time.

    Attributes: pieces: How many pieces it has emitted, or is about to emit.
    """

    def __init__(self) -> None:
        self.pieces = 0
        self._steps = asyncio.Semaphore(0)
        self._is_free = False

    async def between(self) -> None:
        """Wait for a step."""
        self.pieces += 1
        if not self._is_free:
            await self._steps.acquire()

    def step(self) -> None:
        """Let the model emit one more piece."""
        self._steps.release()

    async def to_the_end(
        self, bed: Bed, read_events: list[SessionEvent], whole: str = WHOLE
    ) -> None:
        """Let the model emit the rest, each piece after a reader has the one before; then end the answer."""
        while reader_text(read_events) != whole:
            so_far = reader_text(read_events)
            self._steps.release()
            await bed.until(lambda so_far=so_far: reader_text(read_events) != so_far)  # type: ignore[misc]
        self._is_free = True
        self._steps.release()


@asynccontextmanager
async def elsewhere(
    bed: Bed, bus: LiveBus, app: str, **options: Any
) -> AsyncIterator[AgentRuntime]:
    """Yield the sessions of a second process, which executes nothing."""
    async with bed.client() as client:
        client._host.attach(bus=bus.peer)
        async with AgentRuntime(runtime=client, app=app, **options) as talks:
            yield talks


async def read(talks: AgentRuntime, read_events: list[SessionEvent]) -> None:
    """Follow the session until its first run has ended."""
    async with aclosing(talks.tail_session("s")) as events:
        async for event in events:
            read_events.append(event)
            if event.type in ("run_completed", "run_failed"):
                return


def texts_of(read_events: list[SessionEvent]) -> list[tuple[str, str]]:
    """Return the events whose text a reader shows."""
    return [
        (event.type, payload_of(event)["text"])
        for event in read_events
        if event.type in ("text_snapshot", "text_delta")
    ]


def reader_text(read_events: list[SessionEvent]) -> str:
    """Return the text that a reader shows: a snapshot replaces the text before it."""
    text = ""
    for type_, said_now in texts_of(read_events):
        text = said_now if type_ == "text_snapshot" else text + said_now
    return text


@pytest.mark.item(354)
async def test_a_reader_of_a_child_on_another_host_gets_its_text_so_far(bed: Bed, app: str) -> None:
    """Once, then the rest, as for a run of the session itself."""
    paced, bus, read_events = Paced(), LiveBus(), list[SessionEvent]()
    parent = await parent_on(bed, Echo("child", between=paced.between), WORDS)
    hosted = sessions_on(bed, {"normal": parent}, app=app)
    async with hosted as talks, elsewhere(bed, bus, app) as other_talks:
        bed.runtime._host.attach(bus=bus)
        run = await talks.start("go", session_id="s")
        for n in range(1, 3):
            await bed.until(lambda n=n: paced.pieces == n)  # type: ignore[misc]
            paced.step()
        await bed.until(lambda: paced.pieces == 3)
        abroad = await other_talks.run(run.run_id)
        [child] = await abroad.children()

        async def follow() -> None:
            async for event in abroad.child_events(child):
                read_events.append(event)

        reading = asyncio.create_task(follow())
        await bed.until(lambda: texts_of(read_events))
        async with asyncio.timeout(LIMIT_S):
            await paced.to_the_end(bed, read_events, whole=f"child: {WORDS}")
            await reading
            assert await run.result() == f"child: {WORDS}"
    texts = texts_of(read_events)
    assert texts[0] == ("text_snapshot", "child: one two")
    assert {type_ for type_, _ in texts[1:]} == {"text_delta"}
    assert reader_text(read_events) == f"child: {WORDS}"


@pytest.mark.parametrize("behind", [0, 1, 3])
async def test_a_late_reader_on_another_host_gets_the_text_so_far_once(
    bed: Bed, app: str, behind: int
) -> None:
    """Then the rest. Pieces that come before the snapshot wait for it, and none is shown twice."""
    paced, bus, read_events = Paced(), LiveBus(held=[]), list[SessionEvent]()
    bus.peer.held = readers = list[LiveReader]()
    echo = Echo(between=paced.between)
    async with (
        sessions_on(bed, echo.agent(), app=app) as talks,
        elsewhere(bed, bus, app) as other_talks,
    ):
        bed.runtime._host.attach(bus=bus)
        run = await talks.start(WORDS, session_id="s")
        for n in range(1, 3):
            await bed.until(lambda n=n: paced.pieces == n)  # type: ignore[misc]
            paced.step()
        await bed.until(lambda: paced.pieces == 3)
        reading = asyncio.create_task(read(other_talks, read_events))
        await bed.until(lambda: readers)
        for n in range(behind):
            paced.step()
            await bed.until(lambda n=n: paced.pieces == 4 + n)  # type: ignore[misc]
        assert not texts_of(read_events)
        bus.peer.ask(readers.pop())
        await bed.until(lambda: texts_of(read_events))
        async with asyncio.timeout(LIMIT_S):
            await paced.to_the_end(bed, read_events)
            await reading
            assert await run.result() == WHOLE
        texts = texts_of(read_events)
        assert texts[0][0] == "text_snapshot"
        assert {type_ for type_, _ in texts[1:]} == {"text_delta"}
        assert "".join(text for _, text in texts) == WHOLE
        assert not len(bed.runtime.live.open_answers)


async def test_an_answer_repeated_by_another_host_starts_with_an_empty_snapshot(
    bed: Bed, app: str
) -> None:
    """The reader got the first attempt, and afterwards shows the second one."""
    paced, bus, read_events = Paced(), LiveBus(), list[SessionEvent]()
    echo, tries = Echo(between=paced.between), 0

    async def fails() -> None:
        nonlocal tries
        await paced.between()
        if paced.pieces == 2:
            tries += 1
            raise ValueError("cut off")

    echo.between = fails
    hosted = sessions_on(bed, echo.agent(), app=app, retry=FAST)
    async with hosted as talks, elsewhere(bed, bus, app) as other_talks:
        bed.runtime._host.attach(bus=bus)
        run = await talks.start(WORDS, session_id="s")
        await bed.until(lambda: paced.pieces == 1)
        reading = asyncio.create_task(read(other_talks, read_events))
        await bed.until(lambda: texts_of(read_events))
        paced.step()
        await bed.until(lambda: len(texts_of(read_events)) > 1)
        paced.step()
        await bed.until(lambda: ("text_snapshot", "") in texts_of(read_events))
        async with asyncio.timeout(LIMIT_S):
            await paced.to_the_end(bed, read_events)
            await reading
        await run.result()
    texts = texts_of(read_events)
    begin = texts.index(("text_snapshot", ""))
    assert tries == 1
    assert texts[:begin] == [("text_snapshot", "echo:"), ("text_delta", " one")]
    assert "".join(text for _, text in texts[begin:]) == WHOLE


async def test_a_reader_of_another_tenant_gets_no_text(bed: Bed, app: str) -> None:
    """Neither by the name of the session nor by that of the run."""
    paced, bus, read_events = Paced(), LiveBus(), list[SessionEvent]()
    echo = Echo(between=paced.between)
    hosted = sessions_on(bed, echo.agent(), app=app, tenant="acme")
    async with hosted as talks, elsewhere(bed, bus, app, tenant="other") as other_talks:
        bed.runtime._host.attach(bus=bus)
        run = await talks.start(WORDS, session_id="s")
        await bed.until(lambda: paced.pieces == 1)
        paced.step()
        await bed.until(lambda: paced.pieces == 2)
        reading = asyncio.create_task(read(other_talks, read_events))
        assert bus.open_answers(AgentId(app, "s", "acme"), run.run_id)
        assert not bus.open_answers(AgentId(app, "s", "other"), run.run_id)
        for _ in range(10):
            paced.step()
        await run.result()
        reading.cancel()
        await asyncio.wait([reading])
    assert not read_events
