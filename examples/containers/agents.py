"""Agents that the containers serve until you name your own: one works slowly, one answers, one holds sessions.

docker compose -f compose/docker-compose.yml up -d --build --wait
docker compose -f compose/docker-compose.yml exec host-1 callboard send clerk/a '{"items": ["tea"]}' --wait
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

from actors import AgentId
from actors.agents import ReActAgent
from actors.sessions import SessionAgent
from actors.testing import FunctionModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors import ChatMessage, GenerationOptions, Message, RunContext


class Clerk:
    """Works on items one after the other; every key is a clerk of its own."""

    def __init__(self, id: AgentId) -> None:  # noqa: A002
        self.id = id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> dict[str, Any]:
        """Return what was done, and on which machines: two of them when the first one died."""
        job: dict[str, Any] = inbox[0].payload  # type: ignore[assignment]
        pace_s = float(job.get("pace_s", 0))
        done = [await ctx.step("work", work, item, pace_s) for item in job["items"]]
        before = await ctx.state.get("done") or 0
        await ctx.state.set("done", before + len(done))
        machines = sorted({one["machine"] for one in done})
        return {
            "done": [one["item"] for one in done],
            "machines": machines,
            "ever": before + len(done),
        }


class Greeter:
    """Answers at once."""

    def __init__(self, id: AgentId) -> None:  # noqa: A002
        self.id = id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> dict[str, Any]:
        """Return a greeting."""
        who: Any = inbox[0].payload
        name = who.get("name", "stranger") if isinstance(who, dict) else str(who)
        return {"text": f"Good morning, {name}.", "by": self.id.key}


async def work(item: str, pace_s: float) -> dict[str, str]:
    """Stand in for a model or a service; recorded, so done once whatever crashes afterwards."""
    await asyncio.sleep(pace_s)
    return {"item": item, "machine": socket.gethostname()}


def echo(messages: Sequence[ChatMessage], options: GenerationOptions) -> str:
    """Stand in for a model."""
    del options
    return f"You said {messages[-1].text}"


SESSIONS = SessionAgent(
    AgentId("session", "main"), {"normal": ReActAgent("echo", model=FunctionModel(echo))}
)
"""The sessions that the API of the containers is about."""
AGENTS = {"clerk": Clerk, "greeter": Greeter, "session": SESSIONS.of_id}
