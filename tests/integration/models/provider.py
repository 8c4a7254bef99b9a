"""A provider of models on this machine: it answers with what a test scripts, and keeps each request."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


@dataclass(frozen=True)
class Answer:
    """One HTTP response.

    Attributes:
        events: Bodies of server-sent events, streamed one by one.
        body: Sent at once in place of events.
        cut: The connection is closed behind the events, without the end of the response.
        hold: Nothing is sent behind the events until the client has gone.
    """

    events: Sequence[str] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: object = None
    cut: bool = False
    hold: bool = False


@dataclass
class Provider:
    """The server: its address, the answers still to give, and the bodies of the requests so far."""

    url: str = ""
    script: list[Answer] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    client_gone: asyncio.Event = field(default_factory=asyncio.Event)
    connections: set[asyncio.Task[None]] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, until the provider is closed."""
        task = asyncio.current_task()
        assert task is not None
        self.connections.add(task)
        with suppress(asyncio.CancelledError, ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = int(head.partition("content-length: ")[2].split("\r\n")[0] or 0)
                self.requests.append(json.loads(await reader.readexactly(length) or b"{}"))
                answer = self.script.pop(0) if len(self.script) > 1 else self.script[0]
                if not await self._answer(answer, reader, writer):
                    break
        writer.close()

    async def _answer(
        self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        is_stream = answer.body is None
        kind = "text/event-stream" if is_stream else "application/json"
        body = b"" if is_stream else json.dumps(answer.body).encode()
        size = {"transfer-encoding": "chunked"} if is_stream else {"content-length": str(len(body))}
        lines = {"content-type": kind, **size, **answer.headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        writer.write(f"HTTP/1.1 {answer.status} X\r\n{head}\r\n".encode() + body)
        for event in answer.events:
            data = event.encode()
            writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await writer.drain()
        if answer.hold:
            await reader.read()
            self.client_gone.set()
        if answer.cut or answer.hold:
            return False
        if is_stream:
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


@asynccontextmanager
async def provider(*script: Answer) -> AsyncIterator[Provider]:
    """A server that gives these answers in order, the last one again and again."""
    serving = Provider(script=list(script))
    server = await asyncio.start_server(serving.serve, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    serving.url = f"http://127.0.0.1:{port}"
    try:
        yield serving
    finally:
        server.close()
        for task in serving.connections:
            task.cancel()
        await asyncio.wait(serving.connections or {asyncio.create_task(asyncio.sleep(0))})


def chat_chunk(
    text: str | None = None,
    *,
    finish: str | None = None,
    calls: object = None,
    refusal: str | None = None,
    **more: object,
) -> str:
    """One event of OpenAI's chat completions."""
    delta = {"content": text, "tool_calls": calls, "refusal": refusal}
    choice = {"index": 0, "finish_reason": finish, "delta": {k: v for k, v in delta.items() if v}}
    chunk = {
        "id": "c1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "gpt-test",
        "choices": [choice],
        **more,
    }
    return f"data: {json.dumps(chunk)}\n\n"


CHAT_USAGE: dict[str, Any] = {
    "choices": [],
    "usage": {
        "prompt_tokens": 20,
        "completion_tokens": 5,
        "total_tokens": 25,
        "prompt_tokens_details": {"cached_tokens": 8},
        "completion_tokens_details": {"reasoning_tokens": 2},
    },
}
DONE = "data: [DONE]\n\n"


def chat(*pieces: str, **more: Any) -> Answer:
    """A whole answer of OpenAI's chat completions."""
    events = [chat_chunk(piece) for piece in pieces]
    return Answer([*events, chat_chunk(finish="stop"), chat_chunk(**CHAT_USAGE), DONE], **more)


def event(kind: str, **data: object) -> str:
    """One event of Anthropic's messages."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n"


def anthropic(*blocks: tuple[dict[str, Any], Sequence[dict[str, Any]]]) -> Answer:
    """A whole answer of Anthropic's messages: content blocks with their deltas."""
    usage = {
        "input_tokens": 10,
        "output_tokens": 1,
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 40,
    }
    message: dict[str, Any] = {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "model": "claude-test",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    events = [event("message_start", message=message)]
    for index, (block, deltas) in enumerate(blocks):
        events.append(event("content_block_start", index=index, content_block=block))
        events += [event("content_block_delta", index=index, delta=delta) for delta in deltas]
        events.append(event("content_block_stop", index=index))
    ending = {"stop_reason": "end_turn", "stop_sequence": None}
    events.append(event("message_delta", delta=ending, usage={"output_tokens": 30}))
    events.append(event("message_stop"))
    return Answer(events)
