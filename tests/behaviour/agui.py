"""An AG-UI client for tests: a thread, its messages, and a refund agent with tools of all kinds."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from actors import Risk, Tool, ToolCall
from actors.agents import ReActAgent
from actors.testing import FunctionModel, ModelReply

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from actors import ChatMessage, GenerationOptions
    from tests.behaviour.web import Stream, WebClient

PICK: Final = {
    "name": "pick_color",
    "description": "Ask for a color.",
    "parameters": {"type": "object"},
}
"""A tool of the client."""


@dataclass
class Counter:
    """A refund agent. A word in the user's last message selects what it does.

    Attributes: paid: Orders whose refund was paid. asked: The windows that were sent to its model,
    and the names of the tools offered.
    """

    paid: list[str] = field(default_factory=list)
    asked: list[tuple[list[str], list[str]]] = field(default_factory=list)

    def __call__(self, messages: Sequence[ChatMessage], options: GenerationOptions) -> ModelReply:
        """Answer the last message."""
        self.asked.append(
            ([message.text for message in messages], [tool.name for tool in options.tools or ()])
        )
        last, n = messages[-1], len(self.asked)
        if last.role == "tool":
            done = [message.content[0].text for message in messages if message.role == "tool"]
            return ModelReply(text=f"Done: {done[-1]}.")
        calls = [
            ToolCall(
                id=f"{name}-{n}",
                name=name,
                arguments={"order": "7"} if name != "pick_color" else {},
            )
            for name in ("refund", "look_up", "pick_color")
            if name in last.text
        ]
        if calls:
            return ModelReply(text="Let me see.", calls=calls)
        return ModelReply(text=f"You said {last.text}.")

    def agent(self, **options: Any) -> ReActAgent:
        """Return the refund agent."""
        tools = [
            Tool("refund", "Give money back.", self._refund, risk=Risk.HIGH),
            Tool("look_up", "Find an order.", self._look_up),
        ]
        return ReActAgent("desk", model=FunctionModel(self), tools=tools, **options)

    async def _refund(self, order: str) -> str:
        """Pay a refund."""
        self.paid.append(order)
        return f"refunded {order}"

    async def _look_up(self, order: str) -> str:
        """Find an order."""
        return f"order {order} was delivered"


@dataclass
class Thread:
    """A thread as a client holds it.

    Attributes: web: The API. path: The endpoint's path. id: The thread's id. messages: The messages
    that the client shows. tools: The tools that the client executes.
    """

    web: WebClient
    path: str
    id: str = "t"
    messages: list[dict[str, Any]] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=lambda: [PICK])

    def body(self, run: str, **more: Any) -> dict[str, Any]:
        """Return the input of a run."""
        run_input = {
            "threadId": self.id,
            "runId": run,
            "messages": self.messages,
            "tools": self.tools,
        }
        return {**run_input, **more}

    def say(self, text: str) -> None:
        """Add a user message."""
        self.messages.append({"id": f"u{len(self.messages)}", "role": "user", "content": text})

    def give(self, call: str, content: str = "red") -> None:
        """Add the result of a tool."""
        self.messages.append(
            {"id": f"r-{call}", "role": "tool", "toolCallId": call, "content": content}
        )

    @asynccontextmanager
    async def stream(self, run: str, query: str = "", **more: Any) -> AsyncIterator[Stream]:
        """Yield the stream of a run; the client disconnects at the end of the block."""
        headers = more.pop("headers", {})
        async with self.web.stream(self.path + query, self.body(run, **more), **headers) as stream:
            yield stream

    async def run(self, run: str, query: str = "", **more: Any) -> list[dict[str, Any]]:
        """Return the events of a run, and apply them to the messages."""
        async with self.stream(run, query, **more) as stream:
            events = [event["data"] for event in await stream.until_end()]
        assert stream.answer.status == 200, stream.answer
        assert stream.answer.headers["content-type"].startswith("text/event-stream")
        for event in events:
            self.show(event)
        return events

    async def ask(self, run: str, text: str, query: str = "", **more: Any) -> list[dict[str, Any]]:
        """Add a user message, and return the events of its run."""
        self.say(text)
        return await self.run(run, query, **more)

    def show(self, event: dict[str, Any]) -> None:
        """Apply an event to the messages, as the real client does."""
        messages_by_id = {message["id"]: message for message in self.messages}
        match event["type"]:
            case "TEXT_MESSAGE_START" if event["messageId"] not in messages_by_id:
                self.messages.append({"id": event["messageId"], "role": "assistant", "content": ""})
            case "TEXT_MESSAGE_CONTENT":
                messages_by_id[event["messageId"]]["content"] += event["delta"]
            case "TOOL_CALL_START":
                call = {"name": event["toolCallName"], "arguments": ""}
                if event["parentMessageId"] not in messages_by_id:
                    self.messages.append({"id": event["parentMessageId"], "role": "assistant"})
                calls = self.messages[-1].setdefault("toolCalls", [])
                calls.append({"id": event["toolCallId"], "type": "function", "function": call})
            case "TOOL_CALL_RESULT":
                message = {key: event[key] for key in ("toolCallId", "content")}
                self.messages.append({"id": event["messageId"], "role": "tool", **message})
            case "MESSAGES_SNAPSHOT":
                self.messages = [{**message} for message in event["messages"]]

    @property
    def texts(self) -> list[str]:
        """Return the texts that the client shows."""
        return [message.get("content", "") for message in self.messages]


def approve(event: dict[str, Any], *, approved: bool = True) -> list[dict[str, Any]]:
    """Return answers to the interrupts with which a stream ended."""
    payload = {"approved": approved, "comment": "fine"}
    return [
        {"interruptId": interrupt["id"], "status": "resolved", "payload": payload}
        for interrupt in event["outcome"]["interrupts"]
    ]


def types(events: list[dict[str, Any]]) -> list[str]:
    """Return the types of the events; consecutive equal types count once."""
    event_types = [event["type"] for event in events]
    return [
        type_
        for type_, before in zip(event_types, [None, *event_types], strict=False)
        if type_ != before
    ]
