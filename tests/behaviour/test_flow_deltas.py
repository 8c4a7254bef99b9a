"""Answers of models of flows in the streams of ledgers: while they are said, on any host, never stored."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.log_entry import EntryKind as K
from actors._workflow.integrations import local_llm
from actors.testing import ModelReply, ScriptedModel
from actors.workflow import EffectType
from compose.web import app
from tests.behaviour.flow_stage import single, staged
from tests.behaviour.web import WebClient
from tests.harness.live_bus import LiveBus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.behaviour.bed import Bed
    from tests.behaviour.flow_stage import Stage

PIECES = ("one ", "two ", "three")


class Voice:
    """A model that says a piece when it may."""

    def __init__(self) -> None:
        self._steps = asyncio.Semaphore(0)
        reply = ModelReply(
            text="".join(PIECES),
            reasoning="hm",
            pieces=PIECES,
            before=self._steps.acquire,
            between=self._steps.acquire,
        )
        self.model = ScriptedModel(otherwise=reply)

    def say(self, pieces: int = 1) -> None:
        """Let it say so many more; one more lets it end."""
        for _ in range(pieces):
            self._steps.release()


@asynccontextmanager
async def speaking(bed: Bed, voice: Voice) -> AsyncIterator[tuple[Stage, WebClient, WebClient]]:
    """A stage whose flow asks the model, and clients of its host and of one that executes nothing."""
    bus = LiveBus()
    bed.runtime._host.attach(bus=bus)
    handlers = local_llm(voice.model).effect_handlers
    stage = await staged(
        bed, single(EffectType.LLM_CALL, {"prompt": "?"}), effect_handlers=handlers
    )
    async with bed.client() as client:
        client._host.attach(bus=bus.peer)
        await stage.flows.register(client)
        yield stage, WebClient(app(bed.runtime)), WebClient(app(client))


def text_of(events: list[dict[str, Any]]) -> str:
    """The text that a reader shows."""
    text = ""
    for event in events:
        if event["event"] == "text_snapshot":
            text = event["data"]["text"]
        elif event["event"] == "text_delta":
            text += event["data"]["text"]
    return text


@pytest.mark.item(431)
async def test_an_answer_is_shown_while_it_is_said(bed: Bed) -> None:
    """On its host and on others; who comes in its middle has all of it. None of it is kept."""
    voice = Voice()
    async with speaking(bed, voice) as (stage, web, other_web):
        run_id = await stage.runs.start("flow")
        path = f"/v1/graph-runs/{run_id}/ledger"
        async with (
            web.stream(path) as near,
            other_web.stream(path) as far,
            web.stream(f"{path}?live=false") as plain,
        ):
            steps = [await stream.until("step") for stream in (near, far, plain)]  # each listens
            voice.say()
            # The other process may begin to listen behind the first piece; it has that all the same.
            event_lists = [
                await stream.until("text_delta", "text_snapshot") for stream in (near, far)
            ]
            async with other_web.stream(path) as late:
                event_lists.append(await late.until("text_snapshot"))
                voice.say(2)
                event_lists[0] += await near.until("text_delta") + await near.until("text_delta")
                event_lists[1] += await far.until("text_delta") + await far.until("text_delta")
                event_lists[2] += await late.until("text_delta") + await late.until("text_delta")
                voice.say()
                for n, stream in enumerate((near, far, late)):
                    event_lists[n] += await stream.until_end()
            steps[2] += await plain.until_end()
        for events in event_lists:
            assert text_of(events) == "".join(PIECES)
            assert events[-1]["event"] == "end"
            pieces = [event for event in events if event["event"] not in {"step", "end"}]
            assert not any("id" in event for event in pieces)
            (begun,) = (event for event in steps[2] if event["data"].get("status") == "started")
            step_ids = {name: begun["data"][name] for name in ("node_id", "step_id")}
            assert all(step_ids.items() <= event["data"].items() for event in pieces)
        reasoning = [
            event["data"]["text"] for event in event_lists[0] if event["event"] == "reasoning_delta"
        ]
        assert reasoning == ["hm"]
        assert {event["event"] for event in steps[2]} == {"step", "end"}
        kinds = {entry.kind for entry in await bed.log(run_id)}
        assert kinds.isdisjoint({K.TEXT_DELTA, K.REASONING_DELTA})
        async with other_web.stream(path) as again:
            assert {event["event"] for event in await again.until_end()} == {"step", "end"}
    state = await stage.ended(run_id)
    assert state.output["out"]["content"] == "".join(PIECES)
