"""A runtime on real servers, and external clients that know only a URL and the subjects."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections import Counter, defaultdict
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import asyncpg

from actors._kernel.runtime.ids import AgentId, RunId, run_id_of_mail
from actors.errors import TerminalError
from compose import Settings
from compose._assembly.runtime import build_runtime
from tests.harness import servers
from tests.harness.rawnats import raw_nats

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from actors._kernel.agent.message import Message
    from actors._kernel.json import JsonValue
    from actors._kernel.runtime.rows import DeadLetter, RunRow
    from actors._runtime import RunContext, Runtime
    from tests.harness.rawnats import RawNats
    from tests.harness.servers import TestNats, TestPostgres, TestRedis

PATIENCE_S: Final = 30.0
FENCE: Final = "fence"
_UNSAFE: Final = re.compile(rb"[^A-Za-z0-9_-]")


class Handled(NamedTuple):
    """A message as the agent received it."""

    sender: str | None
    payload: JsonValue
    id: str
    metadata: Mapping[str, str]


class Notes:
    """Messages received by agents of this process; survives runtimes."""

    def __init__(self) -> None:
        self.handled: dict[AgentId, list[Handled]] = defaultdict(list)
        self.is_repaired = False
        self._changed = asyncio.Event()

    def add(self, agent: AgentId, message: Message) -> None:
        """Record a message."""
        handled_message = Handled(message.sender, message.payload, message.id, message.metadata)
        self.handled[agent].append(handled_message)
        self._changed.set()

    async def until(self, agent: AgentId, payload: JsonValue) -> None:
        """Return once the agent has received this payload."""
        async with asyncio.timeout(PATIENCE_S):
            while all(message.payload != payload for message in self.handled[agent]):
                self._changed.clear()
                await self._changed.wait()


class Desk:
    """Records its messages. Fails, or forwards, if the payload requests it."""

    def __init__(self, agent_id: AgentId, notes: Notes) -> None:
        self.id, self._notes = agent_id, notes

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        """Record all messages."""
        for message in inbox:
            payload: Any = message.payload
            if payload.get("fail") and not self._notes.is_repaired:
                raise TerminalError("told to fail")
            if to := payload.get("forward"):
                await ctx.send(AgentId.parse(to), {"forwarded": True})
            self._notes.add(self.id, message)


class Waiter:
    """Waits for as many signals `go` as the payload says, and returns their payloads."""

    def __init__(self, agent_id: AgentId, notes: Notes) -> None:
        self.id, self._notes = agent_id, notes

    async def run(self, ctx: RunContext, inbox: list[Message]) -> list[Any]:
        """Record the start, then wait."""
        payload: Any = inbox[0].payload

        async def note() -> None:  # once, however often this is replayed
            for message in inbox:
                self._notes.add(self.id, message)

        await ctx.step("note", note)
        await ctx.sleep(payload.get("late_s", 0))
        return [await ctx.sleep_until_signal("go") for _ in range(payload.get("count", 0))]


@dataclass(slots=True)
class Bed:
    """The runtime, an external client's connection, and access to the stored rows."""

    nats_url: str
    postgres_url: str
    redis_url: str
    schema: str
    namespace: str
    notes: Notes
    host_url: str = ""
    """How hosts connect, if external clients may not connect like them."""
    _runtime: Runtime | None = None
    _outsider: RawNats | None = None

    @property
    def runtime(self) -> Runtime:
        """The current runtime."""
        assert self._runtime is not None
        return self._runtime

    @property
    def outsider(self) -> RawNats:
        """The connection of the external clients."""
        assert self._outsider is not None
        return self._outsider

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run a host inside the block."""
        settings = Settings(
            db_schema=self.schema, namespace=self.namespace, lease_s=10, suspend_after=0.05
        )
        url = self.host_url or self.nats_url
        building = build_runtime(url, self.postgres_url, self.redis_url, settings=settings)
        async with building as self._runtime:
            await self._runtime.register_type("desk", lambda id_: Desk(id_, self.notes))
            await self._runtime.register_type("waiter", lambda id_: Waiter(id_, self.notes))
            yield
        self._runtime = None

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[None]:
        """Connect an external client inside the block."""
        async with raw_nats(self.nats_url) as self._outsider:
            yield
        self._outsider = None

    def subject(self, agent: AgentId, tail: str) -> str:
        """Return the subject of an agent, with this suffix after the key."""
        address = f"{escaped(agent.tenant)}.{escaped(agent.type)}.{escaped(agent.key)}"
        prefix = f"{self.namespace}." if self.namespace else ""
        return f"{prefix}agent.v1.{address}.{tail}"

    async def publish(
        self,
        agent: AgentId,
        body: object,
        *,
        publisher: str = "crm",
        message_id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Publish JSON, or unchanged bytes, as an external client; return the PubAck."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = dict(headers or {})
        if message_id is not None:
            head["Nats-Msg-Id"] = message_id
        return await self.outsider.publish(self.subject(agent, f"ext.{publisher}"), data, head)

    async def signal(
        self,
        run_id: RunId,
        body: object,
        *,
        agent: AgentId,
        name: str = "go",
        message_id: str | None = None,
        publisher: str = "crm",
    ) -> dict[str, Any]:
        """Publish a signal as an external client; return the PubAck."""
        subject = self.subject(agent, f"sig.{publisher}.{run_id}.{escaped(name)}")
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = {} if message_id is None else {"Nats-Msg-Id": message_id}
        return await self.outsider.publish(subject, data, head)

    async def handled(self, agent: AgentId, headers: Mapping[str, str] | None = None) -> list[Any]:
        """Return all messages that the agent got before one that is published now."""
        fence: JsonValue = {FENCE: secrets.token_hex(8)}
        ack = await self.publish(agent, fence, publisher=FENCE, headers=headers)
        assert "error" not in ack, ack
        await self.notes.until(agent, fence)
        return [
            message for message in self.notes.handled[agent] if message.sender != f"ext:{FENCE}"
        ]

    async def payloads(self, agent: AgentId) -> list[JsonValue]:
        """Return the payloads of `handled`."""
        return [message.payload for message in await self.handled(agent)]

    async def letters(self, agent: AgentId) -> list[DeadLetter]:
        """Return the agent's dead letters."""
        return await self.runtime.store.lists.dead_letters(agent=agent, limit=1000)

    async def started(self, agent: AgentId, message_id: str, payload: dict[str, Any]) -> RunId:
        """Start a run of a `Waiter` by a message, and return the run's id once it has started."""
        await self.publish(agent, payload, message_id=message_id)
        await self.notes.until(agent, payload)
        return run_id_of_mail(agent, "ext:crm", message_id)

    async def ended(self, run_id: RunId) -> RunRow:
        """Return the run's row when it has ended."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.runtime.wait(run_id)

    async def api(self, what: str, body: object = None) -> dict[str, Any]:
        """Ask JetStream."""
        reply = await self.outsider.request(f"$JS.API.{what}", json.dumps(body or {}).encode())
        answer: dict[str, Any] = json.loads(reply.body)
        return answer

    async def execute(self, sql: str) -> None:
        """Change the tables directly."""
        connection = await asyncpg.connect(self.postgres_url)
        try:
            await connection.execute(f'set search_path to "{self.schema}"')
            await connection.execute(sql)
        finally:
            await connection.close()

    def twice(self) -> list[object]:
        """Return messages that were delivered twice; expected is an empty list."""
        seen = Counter(
            (str(agent), message.sender, message.id)
            for agent, messages in self.notes.handled.items()
            for message in messages
        )
        return [key for key, count in seen.items() if count > 1]


def escaped(name: str) -> str:
    """Return a name as a token of a subject, escaped as documented."""
    return _UNSAFE.sub(lambda match: b"%%%02X" % match.group()[0], name.encode()).decode()


@asynccontextmanager
async def make_bed(postgres: TestPostgres, nats: TestNats, redis: TestRedis) -> AsyncIterator[Bed]:
    """Yield a bed with an external client, without a host.

    Its names are its own, and dropped at the end.
    """
    name = f"t-{secrets.token_hex(6)}"
    schema = name.replace("-", "_")
    bed = Bed(nats.url, postgres.url, redis.url, schema, name, Notes())
    async with AsyncExitStack() as stack:
        stack.push_async_callback(servers.drop_schema, postgres, schema)
        stack.push_async_callback(servers.drop_namespace, nats, name)
        await stack.enter_async_context(bed.connected())
        yield bed
    assert bed.twice() == []
