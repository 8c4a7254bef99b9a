"""Agents that send messages to each other on several hosts, and checks of their rows."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from actors._kernel.runtime.ids import AgentId
from compose.demo.desk import append_line, lines_of
from tests.system.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from actors._kernel.agent.agent import Agent
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext, Runtime
    from tests.harness.rawnats import RawNats


def volley(*targets: AgentId, count: int = 2) -> dict[str, Any] | None:
    """Send the first target this many messages; it then sends to the second, and so on."""
    then: dict[str, Any] | None = None
    for target in reversed(targets):
        then = {"to": str(target), "count": count, "then": then}
    return then


class Node:
    """Keeps senders and numbers of its messages, in order, and forwards as they request."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        """Handle all messages of the inbox."""
        for message in inbox:
            order: Any = message.payload
            seen = await ctx.state.get("seen") or []
            await ctx.state.set("seen", [*seen, [message.sender, order["n"]]])
            if then := order.get("then"):
                await self._write(ctx, then)

    async def _write(self, ctx: RunContext, then: dict[str, Any]) -> None:
        sent, count = await ctx.state.get(then["to"]) or 0, then["count"]
        await ctx.state.set(then["to"], sent + count)
        for n in range(sent, sent + count):
            is_last = n == sent + count - 1
            order = {"n": n, "then": then["then"] if is_last else None}
            await ctx.send(AgentId.parse(then["to"]), order)


class Stuck:
    """Executes a step that does not end on its first host, and ends at once on another one."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        """The payload is a ledger: each execution appends its process."""
        ledger = str(inbox[0].payload)

        async def hang() -> str:
            append_line(ledger, str(os.getpid()))
            await asyncio.sleep(600 if len(lines_of(ledger)) == 1 else 0)
            return "done"

        return await ctx.step("hang", hang)


class Blocking:
    """Blocks the event loop for as many seconds as the payload says."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> int:
        """Return the process that executed it."""
        pause_s: Any = inbox[0].payload

        async def compute() -> int:
            time.sleep(pause_s)  # noqa: ASYNC251 - this is what it is about
            return os.getpid()

        return await ctx.step("compute", compute)


LEFT: Final = AgentId("left", "a")
RIGHT: Final = AgentId("right", "a")
LEFT_NODE, RIGHT_NODE = Node(LEFT), Node(RIGHT)
BOTH: Final = [LEFT_NODE, RIGHT_NODE]
STUCK: Final[dict[str, Callable[[AgentId], Agent]]] = {"stuck": Stuck}
NODES: Final[dict[str, Callable[[AgentId], Agent]]] = {"node": Node}
MORE: Final[dict[str, Callable[[AgentId], Agent]]] = {"more": Node}
MIXED: Final[dict[str, Callable[[AgentId], Agent]]] = {
    "node": Node,
    "stuck": Stuck,
    "blocking": Blocking,
}
HERE: Final = "tests.system.fleet"


async def late(runtime: Runtime) -> None:
    """Serve an agent only once this host owns its shard, while no other host serves it."""
    await runtime.register_type("node", Node)
    while all(lease.shard != "i:default:right/a" for lease in runtime._host.worker.held.leases):
        await asyncio.sleep(0.1)
        await runtime._host.claim()
    await runtime.register(RIGHT_NODE)


@dataclass(frozen=True, slots=True)
class Rows:
    """Reads the tables of one schema."""

    connection: asyncpg.Connection[asyncpg.Record]

    @classmethod
    @asynccontextmanager
    async def of(cls, url: str, schema: str) -> AsyncIterator[Rows]:
        """Return the rows of a schema whose tables hosts may still have to create."""
        connection = await asyncpg.connect(url, server_settings={"search_path": schema})
        try:
            yield cls(connection)
        finally:
            await connection.close()

    async def seen(self, agent: AgentId) -> list[tuple[str, int]]:
        """Return sender and number of all messages of the agent, in order."""
        text = await self.connection.fetchval(
            "select value from agent_state where agent = $1 and key = 'seen'", str(agent)
        )
        return [(sender, n) for sender, n in json.loads(text or "[]")]

    async def until_seen(self, agent: AgentId, count: int) -> list[tuple[str, int]]:
        """Return `seen` once it has this many."""

        async def is_enough() -> bool:
            return len(await self.seen(agent)) >= count

        await until(is_enough, f"{count} messages at {agent}")
        return await self.seen(agent)

    async def owner(self, shard: str) -> str | None:
        """Return the incarnation that owns a shard."""
        owner: str | None = await self.connection.fetchval(
            "select owner from shards where shard = $1", shard
        )
        return owner

    async def owned(self, prefix: str = "") -> Counter[str]:
        """Return how many shards with this prefix each incarnation owns."""
        rows = await self.connection.fetch(
            "select owner, count(*) as n from shards where starts_with(shard, $1) group by owner",
            prefix,
        )
        return Counter({row["owner"] or "": row["n"] for row in rows})

    async def until_owned(self, prefix: str, want: dict[str, int]) -> None:
        """Return once the shards are owned so."""

        async def is_so() -> bool:
            return await self.owned(prefix) == want

        await until(is_so, f"{prefix} owned {want}")

    async def until_unable(self, count: int, why: str | None = None) -> None:
        """Return once this many hosts report that they cannot serve, for this reason."""

        async def is_so() -> bool:
            unable_count = await self.connection.fetchval(
                "select count(*) from hosts where unable = coalesce($1, unable)", why
            )
            return bool(unable_count == count)

        await until(is_so, f"{count} hosts are unable")

    async def count(self, table: str) -> int:
        """Return the number of rows."""
        row_count: int = await self.connection.fetchval(f"select count(*) from {table}")
        return row_count


def numbers_of(seen: list[tuple[str, int]]) -> dict[str, list[int]]:
    """Return the received numbers by sender, in order."""
    numbers: dict[str, list[int]] = {}
    for sender, n in seen:
        numbers.setdefault(sender, []).append(n)
    return numbers


async def publish(outsider: RawNats, namespace: str, agent: AgentId, order: object) -> None:
    """Publish as the external client `crm`, and wait for the acknowledgement."""
    subject = f"{namespace}.agent.v1.{agent.tenant}.{agent.type}.{agent.key}.ext.crm"
    ack = await outsider.publish(subject, json.dumps(order).encode(), {})
    assert "error" not in ack, ack
