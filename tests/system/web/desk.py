"""An agent with all features of the chat page: long answers, tools, approvals, specialists, files, failures.

A test decides when it continues: `Desk.hold` names a word, and an answer with it is blocked there.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from actors import Risk, Runtime, Tool, ToolCall
from actors._kernel.runtime.ids import AgentId
from actors._sessions.artifacts import session_artifacts
from actors.agents import ReActAgent
from actors.sessions import AgentRuntime
from actors.testing import FunctionModel, ModelReply
from compose._web.process import serve_web
from compose.web import Authentication, app

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from actors import ChatMessage, GenerationOptions

APP_NAME: Final = "helpdesk"
ANSWER: Final = """Whales live in **every ocean**:

| whale | where |
|---|---|
| Blue whale | all oceans but the Arctic |
| Bowhead | the Arctic, all year |

1. They follow krill, see [IWC](https://iwc.int).
2. Many travel 8,000 km a year.

```python
print("thar she blows")
```
"""
SPECIALIST: Final = AgentId("specialist", "whales")


async def refund(order: str, amount: int) -> dict[str, Any]:
    """Pay a refund, and store a receipt."""
    receipt = f"order {order}: {amount} EUR\n".encode()
    await session_artifacts().put(f"receipt-{order}.txt", receipt, content_type="text/plain")
    return {"order": order, "paid": amount}


async def look_up(order: str) -> dict[str, Any]:
    """Find an order."""
    return {"order": order, "status": "delivered", "total": 40}


class Team(ReActAgent):
    """An agent that asks a specialist first, if the message requests it."""

    @override
    async def run(self, ctx: Any, inbox: Any) -> Any:
        """Answer, perhaps after a specialist."""
        text = inbox[0].payload["text"]
        if "specialist" in text:
            await ctx.join(await ctx.spawn(SPECIALIST, {"text": text}))
        return await super().run(ctx, inbox)


@dataclass
class Desk:
    """The model of all agents here.

    Attributes: gates: By a word: an answer to a message with it blocks in the middle, until the
    event is set.
    """

    gates: dict[str, asyncio.Event] = field(default_factory=dict)

    def hold(self, word: str) -> asyncio.Event:
        """Block answers to messages with a word in the middle of their second piece."""
        return self.gates.setdefault(word, asyncio.Event())

    def __call__(self, messages: Sequence[ChatMessage], options: GenerationOptions) -> ModelReply:
        """Answer the last message."""
        del options
        last = messages[-1]
        prompt = next(
            (message.text for message in reversed(messages) if message.role == "user"), ""
        )
        if last.role == "tool":
            return ModelReply(text="Done: **40 EUR** are on their way.")
        if "refund" in prompt:
            calls = [
                ToolCall(id="c1", name="look_up", arguments={"order": "7"}),
                ToolCall(id="c2", name="refund", arguments={"order": "7", "amount": 40}),
            ]
            return ModelReply(text="I look at the order first.", calls=calls)
        if "fail" in prompt:
            return ModelReply(text="", pieces=(), error=ValueError("the model is <b>broken</b>"))
        text = ANSWER if "whales" in prompt else f"You said {prompt}"
        pieces = [text[:12], text[12:15], text[15:]]
        return ModelReply(
            text=text, reasoning="They ask about it.", pieces=pieces, between=self._wait(prompt)
        )

    def _wait(self, prompt: str) -> Any:
        gates = [gate for word, gate in self.gates.items() if word in prompt]
        piece_count = 0

        async def wait() -> None:
            nonlocal piece_count
            piece_count += 1
            if piece_count == 2:  # in the middle
                for gate in gates:
                    await gate.wait()

        return wait

    def agents(self) -> tuple[Team, ReActAgent]:
        """Return the desk, and the specialist."""
        tools = [
            Tool("look_up", "Find an order.", look_up),
            Tool("refund", "Give money back.", refund, risk=Risk.HIGH),
        ]
        model = FunctionModel(self, model="whale-1")
        return Team("desk", model=model, tools=tools), ReActAgent(
            SPECIALIST, model=model, tools=tools
        )


@asynccontextmanager
async def served(
    desk: Desk, address: str = "127.0.0.1:0", *, is_guarded: bool = False
) -> AsyncIterator[tuple[str, AgentRuntime]]:
    """Yield the URL of the pages of this desk, in memory, and its sessions; guarded ones need a token."""
    main, specialist = desk.agents()
    async with Runtime() as runtime:
        await runtime.register(specialist)
        who = Authentication(runtime.store.data.tokens, runtime.clock) if is_guarded else None
        async with AgentRuntime(agents=main, runtime=runtime, app=APP_NAME) as talks:
            application = app(talks, modes=("normal",), authenticate=who, is_loopback=True)
            async with serve_web(address, application, before_stop=application.end_streams) as url:
                yield url, talks
