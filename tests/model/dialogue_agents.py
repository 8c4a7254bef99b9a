"""The agents of dialogues: their model's answers follow from its window."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from actors._kernel.agent.tools import Risk, Tool, ToolCall
from actors._kernel.runtime.ids import AgentId
from actors.agents import ReActAgent
from actors.context import ContextConfig, SlidingWindowCompaction, StoreHistory
from actors.testing import FunctionModel, ModelReply
from tests.model.dialogue import ASKING, WINDOW

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors._kernel.agent.agent import Agent
    from actors._kernel.agent.message import ChatMessage, Message
    from actors._runtime import RunContext

CALL: Final = "c1"


@dataclass
class Speaker:
    """The model of all of them.

    Attributes: gates: By text: the event that an answer waits for. windows: By the user's last
    text: the model's last window. asked: Number of model calls, by that text.
    """

    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    windows: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    request_counts: Counter[str] = field(default_factory=Counter)

    def __call__(self, messages: Sequence[ChatMessage], options: Any) -> ModelReply:
        """Return the answer."""
        del options
        user_text = next(message.text for message in reversed(messages) if message.role == "user")
        kind, is_back = user_text.split()[0], messages[-1].role == "tool"
        if not is_back:
            self.request_counts[user_text] += 1
            self.windows[user_text] = [(str(message.role), message.text) for message in messages]
        if kind == "fail" or (kind == "crack" and is_back):
            return ModelReply(text="half", error=ValueError("no"))
        if is_back:
            return ModelReply(text=f"done {user_text}")
        if kind in ASKING:
            call = ToolCall(id=CALL, name="pay", arguments={"amount": 1})
            return ModelReply(text="let me" if kind == "tell" else "", calls=[call])
        gate = self.gate(user_text) if kind == "hold" else None
        return ModelReply(text=f"re {user_text}", before=None if gate is None else gate.wait)

    def gate(self, text: str) -> asyncio.Event:
        """Return the event that the answer to a text waits for."""
        return self.gates.setdefault(text, asyncio.Event())


class _Boss:
    """Delegates to a child."""

    def __init__(self, kids: str) -> None:
        self.id, self._kids = AgentId(kids, "boss"), kids

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        handle = await ctx.spawn(AgentId(self._kids, ctx.run_id), inbox[0].payload)
        return (await ctx.join(handle)).output


class _Waiter:
    """Waits for a signal."""

    def __init__(self, kids: str) -> None:
        self.id = AgentId(kids, "waiter")

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        await ctx.sleep_until_signal("go")
        return "woke"


class Kid:
    """A child, which waits for a signal."""

    def __init__(self, id_: AgentId) -> None:
        self.id = id_

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        """Return its payload."""
        await ctx.sleep_until_signal("go")
        payload: Any = inbox[0].payload
        return f"kid {payload['text']}"


async def _pay(amount: int) -> str:
    return f"paid {amount}"


def modes_of(speaker: Speaker, kids: str) -> dict[str, Agent]:
    """Return the agents of a session by mode; `kids` is the type of their children."""
    main = ReActAgent(
        AgentId(kids, "main"),
        model=FunctionModel(speaker),
        tools=[Tool("pay", "Pays.", _pay, risk=Risk.CRITICAL, idempotent=True)],
        context=ContextConfig(StoreHistory(), SlidingWindowCompaction(WINDOW)),
    )
    return {"normal": main, "boss": _Boss(kids), "wait": _Waiter(kids)}
