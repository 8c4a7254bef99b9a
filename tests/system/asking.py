"""External clients that send requests to hosts over NATS without our code; and agents that answer them."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import nats

from actors._kernel.agent.message import ContentBlock
from actors._kernel.agent.models import Completion, LLMResponse, TextDelta, Usage
from actors.errors import TerminalError
from tests.system.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence

    from nats.aio.client import Client
    from nats.aio.msg import Msg

    from actors._kernel.agent.agent import Agent
    from actors._kernel.agent.message import ChatMessage, Message
    from actors._kernel.agent.models import GenerationOptions, StreamEvent
    from actors._kernel.runtime.ids import AgentId
    from actors._runtime import RunContext

PATIENCE_S: Final = 15.0
PIECES: Final = ("Once ", "upon ", "a ", "time")


class Echo:
    """Returns its payload and the sender."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        """Return payload and sender."""
        del ctx
        message = inbox[0]
        return {"got": message.payload, "from": message.sender, "metadata": dict(message.metadata)}


class Sayer:
    """Returns a text with the requested number of letters, after a step that recorded half of it."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        """Return the text."""
        payload: Any = inbox[0].payload
        half = await ctx.step("half", lambda: "x" * (payload["letters"] // 2))
        return half + half


class Failing:
    """Fails without retry."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        """Raise."""
        del ctx
        raise TerminalError(f"no use for {inbox[0].payload}")


class Waiter:
    """Waits for the signal `go` and returns its payload."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        """Return the signal's payload."""
        del inbox
        return await ctx.sleep_until_signal("go")


class Model:
    """A model that streams its pieces; after the second one it waits for a file, if the question names one."""

    model = "slow-1"

    async def generate(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> LLMResponse:
        """See `LLMClient.generate`."""
        raise NotImplementedError

    async def generate_stream(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """See `LLMClient.generate_stream`."""
        del options
        gate = messages[-1].text
        for n, piece in enumerate(PIECES):
            if gate and n == 2:
                await until(lambda: is_open(gate), f"{gate} is there")
            yield TextDelta(text=piece)
        text = "".join(PIECES)
        blocks = [ContentBlock(type="text", text=text)]
        yield Completion(
            response=LLMResponse(
                content=blocks, usage=Usage(input=1, output=4), model=self.model, stop_reason="stop"
            )
        )


def is_open(gate: str) -> bool:
    """Return whether the test, or another process, has made the file."""
    return Path(gate).exists()


class Teller:
    """Answers by a model, after the signal `go`; the payload may name a file to wait for."""

    model = Model()

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        """Return the model's answer."""
        payload: Any = inbox[0].payload
        await ctx.sleep_until_signal("go")
        return (await ctx.llm(str(payload.get("gate", "")))).text


TYPES: Final[dict[str, Callable[[AgentId], Agent]]] = {
    "echo": Echo,
    "sayer": Sayer,
    "failing": Failing,
    "waiter": Waiter,
    "teller": Teller,
}


class Answered(NamedTuple):
    """A received answer."""

    body: Any
    headers: Mapping[str, str]

    @property
    def code(self) -> int:
        """The error's code, 0 without an error."""
        return int(self.headers.get("Nats-Service-Error-Code", 0))

    @property
    def run(self) -> str:
        """The run that answered."""
        return self.headers["Actor-Run"]


class Outside:
    """The connection of an external client."""

    def __init__(
        self, client: Client, namespace: str, *, tenant: str, publisher: str, tail: str = ""
    ) -> None:
        self.client, self._tail = client, tail
        self._prefix = f"{namespace}." if namespace else ""
        self._tenant, self._publisher = tenant, publisher

    async def request(
        self, subject: str, body: object = b"", headers: Mapping[str, str] | None = None
    ) -> Answered:
        """Send a request to a subject without escaping; the body is bytes or JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = await self.client.request(
            self._prefix + subject, data, timeout=PATIENCE_S, headers=dict(headers or {}) or None
        )
        head = answer.headers or {}
        is_json = head.get("Content-Type") == "application/json"
        return Answered(json.loads(answer.data) if is_json else answer.data, head)

    async def ask(self, agent: str, body: object = None, **headers: str) -> Answered:
        """Ask ``type/key``; names of headers with ``_`` for ``-``."""
        address = agent.replace("/", ".")
        subject = f"ask.v1.{self._tenant}.{address}.{self._publisher}{self._tail}"
        header_fields = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.request(subject, body, header_fields)

    async def api(self, verb: str, **fields: object) -> Answered:
        """Send a request to the hosts' API."""
        subject = f"api.v1.{self._tenant}.{self._publisher}.{verb}{self._tail}"
        return await self.request(subject, fields)

    @asynccontextmanager
    async def watching(self, **fields: object) -> AsyncGenerator[AsyncGenerator[Msg, None], None]:
        """Yield the messages of a stream of events. Heartbeats are answered, and not yielded."""
        inbox = self.client.new_inbox()
        came = await self.client.subscribe(inbox)

        async def read() -> AsyncGenerator[Msg, None]:
            while True:
                message = await came.next_msg(timeout=PATIENCE_S)
                if message.reply:
                    await self.client.publish(message.reply)
                elif message.headers is not None and "Actor-Event" in message.headers:
                    yield message
                else:
                    yield message
                    return  # an error is the last one

        subject = f"{self._prefix}api.v1.{self._tenant}.{self._publisher}.events{self._tail}"
        await self.client.publish(subject, json.dumps(fields).encode(), reply=inbox)
        messages = read()
        try:
            yield messages
        finally:
            await messages.aclose()
            await came.unsubscribe()

    async def events(self, **fields: object) -> list[dict[str, Any]]:
        """Return a run's events up to its end."""
        run_events = []
        async with self.watching(**fields) as messages:
            async for message in messages:
                run_events.append(json.loads(message.data))
                if run_events[-1].get("kind") == "end":
                    break
        return run_events


@asynccontextmanager
async def outside(
    url: str, namespace: str, *, tenant: str = "default", publisher: str = "crm", tail: str = ""
) -> AsyncGenerator[Outside, None]:
    """Yield the connection of an external client, which reconnects by itself."""
    client = await nats.connect(
        url,
        inbox_prefix=f"_INBOX_{publisher}",
        connect_timeout=15,
        reconnect_time_wait=0.05,
        max_reconnect_attempts=-1,
    )
    try:
        yield Outside(client, namespace, tenant=tenant, publisher=publisher, tail=tail)
    finally:
        await client.close()
