"""Watchers of sessions while the servers restart: each gets every stored event once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest

from actors._kernel.agent.tools import Tool, ToolCall
from actors.agents import ReActAgent
from actors.sessions import AgentRuntime, SessionEvent
from actors.testing import FunctionModel, ModelReply
from compose._assembly.runtime import build_runtime
from compose._assembly.settings import Settings
from tests.behaviour.talks import past_of
from tests.harness.slow import IS_SLOW
from tests.system.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from actors._kernel.agent.message import ChatMessage
    from actors._kernel.agent.models import GenerationOptions
    from compose.embedded import NatsServer, PostgresServer

WATCHERS: Final = 200 if IS_SLOW else 20
SESSIONS: Final = 10 if IS_SLOW else 4
WORDS: Final = 12
APP: Final = "watched"


def reply(messages: Sequence[ChatMessage], options: GenerationOptions) -> ModelReply:
    """Count, and make a tool call."""
    del options

    async def between() -> None:
        await asyncio.sleep(0.02)

    pieces = [f"{n} " for n in range(WORDS)]
    calls = [ToolCall(id=f"c{len(messages)}", name="look", arguments={})]
    is_first = messages[-1].role == "user"
    return ModelReply(
        text="".join(pieces), pieces=pieces, between=between, calls=calls if is_first else []
    )


async def look() -> str:
    """Return a text."""
    await asyncio.sleep(0.05)
    return "found"


@dataclass
class Stage:
    """A host that executes the runs, and a second process that watches them.

    Attributes: host_sessions: The sessions on the host. client_sessions: The sessions in the other
    process. done: How many runs of each session have ended. last: The last run of each session.
    is_over: Each session has one run more.
    """

    host_sessions: AgentRuntime
    client_sessions: AgentRuntime
    done: Counter[str] = field(default_factory=Counter)
    last: dict[str, str] = field(default_factory=dict)
    is_over: bool = False

    async def talk(self, session: str) -> None:
        """Start one run after the other."""
        while session not in self.last:
            run = await self.host_sessions.start("count", session_id=session)
            if self.is_over:
                self.last[session] = run.run_id
            assert await run.wait() == "completed"
            self.done[session] += 1

    async def watch(self, session: str, seed: int) -> list[SessionEvent]:
        """Read the session to its end with random reconnects, and return the events."""
        rng, cursor, seen = random.Random(seed), None, list[SessionEvent]()
        while True:
            remaining = rng.randrange(10, 200)
            async with aclosing(
                self.client_sessions.tail_session(session, cursor=cursor)
            ) as events:
                async for event in events:
                    seen.append(event)
                    cursor, remaining = event.event_id or cursor, remaining - 1
                    if event.type == "run_completed" and event.run_id == self.last.get(session):
                        return seen
                    if remaining <= 0 and event.event_id:
                        break

    async def go_on(self) -> None:
        """Return when each session has had one complete run and a part of another since."""
        goals = {session: self.done[session] + 1 + IS_SLOW for session in sessions()}
        await until(
            lambda: all(self.done[session] >= count for session, count in goals.items()),
            "all sessions go on",
        )


def sessions() -> list[str]:
    """Return the names of the sessions."""
    return [f"s{n}" for n in range(SESSIONS)]


@asynccontextmanager
async def staged(postgres: PostgresServer, nats: NatsServer) -> AsyncIterator[Stage]:
    """Yield the two processes."""
    agent = ReActAgent("counter", model=FunctionModel(reply), tools=[Tool("look", "Look.", look)])
    settings = Settings(lease_s=20)
    async with (
        build_runtime(nats.url, postgres.url, settings=settings) as host,
        build_runtime(nats.url, postgres.url, settings=settings, serve=False) as client,
        AgentRuntime(agents=agent, runtime=host, app=APP) as host_sessions,
        AgentRuntime(runtime=client, app=APP) as client_sessions,
    ):
        yield Stage(host_sessions, client_sessions)


def contents_of(events: list[SessionEvent]) -> list[str]:
    """Return the stored events, without their cursors."""
    return [
        event.model_copy(update={"event_id": None}).model_dump_json()
        for event in events
        if event.event_id
    ]


def check_texts(seen: list[SessionEvent]) -> None:
    """Check that a reader shows no piece of an answer twice: its pieces are numbered without gaps."""
    texts: dict[tuple[str, str], str] = {}
    for event in seen:
        payload: Any = event.payload
        if event.type in ("text_snapshot", "text_delta"):
            key = (event.run_id, payload["position"])
            before = "" if event.type == "text_snapshot" else texts.get(key, "")
            texts[key] = before + payload["text"]
    for text in texts.values():
        numbers = [int(word) for word in text.split()]
        assert numbers == sorted({*numbers}), text


@pytest.mark.costly
@pytest.mark.item(374)
@pytest.mark.timeout(600)
async def test_watchers_have_every_event_once_over_restarts_of_both_servers(
    postgres: PostgresServer, nats: NatsServer
) -> None:
    """Stopped or killed, one after the other and both at once, while watchers are disconnected, too."""
    async with staged(postgres, nats) as stage, asyncio.TaskGroup() as group:
        for session in sessions():
            group.create_task(stage.talk(session))
        watching = [
            group.create_task(stage.watch(sessions()[seed % SESSIONS], seed))
            for seed in range(WATCHERS)
        ]
        for ends in (
            [postgres.stop],
            [nats.stop],
            [postgres.kill],
            [nats.kill],
            [postgres.kill, nats.kill],
        ):
            await stage.go_on()
            await asyncio.gather(*(asyncio.to_thread(end) for end in ends))
            await asyncio.gather(*(asyncio.to_thread(server.start) for server in (postgres, nats)))
        await stage.go_on()
        stage.is_over = True
        seen = await asyncio.gather(*watching)
        stored = {s: await past_of(stage.host_sessions, s) for s in sessions()}
    for seed, events in enumerate(seen):
        assert contents_of(events) == contents_of(stored[sessions()[seed % SESSIONS]])
        check_texts(events)
    assert any(event.type == "text_delta" for events in seen for event in events)
