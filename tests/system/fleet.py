"""Agents that write to each other, on several hosts; and what the rows say of them afterwards."""

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

from actors.kernel.runtime.ids import AgentId
from compose.demo.ledger import append_line, lines_of
from tests.system.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from actors.kernel.agent.agent import Agent
    from actors.kernel.agent.message import Message
    from actors.runtime import RunContext, Runtime
    from tests.harness.rawnats import RawNats


def volley(*targets: AgentId, count: int = 2) -> dict[str, Any] | None:
    """Have the first target written to so many times; it then writes to the second, and so on."""
    then: dict[str, Any] | None = None
    for target in reversed(targets):
        then = {"to": str(target), "count": count, "then": then}
    return then


class Node:
    """Keeps the senders and numbers of what it was given, in order, and writes on as it is told."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        """Handle everything in the inbox."""
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
    """A step that does not end where it begins, and ends at once where it is executed again."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        """The payload is a ledger: each execution leaves its process there."""
        ledger = str(inbox[0].payload)

        async def hang() -> str:
            append_line(ledger, str(os.getpid()))
            await asyncio.sleep(600 if len(lines_of(ledger)) == 1 else 0)
            return "done"

        return await ctx.step("hang", hang)


class Blocking:
    """Does not let the event loop go for as many seconds as the payload says."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> int:
        """Return the process that did it."""
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
    """Serve an agent only when this host owns its shard, because nobody else serves it."""
    await runtime.register_type("node", Node)
    while all(lease.shard != "i:default:right/a" for lease in runtime._host.worker.held.leases):
        await asyncio.sleep(0.1)
        await runtime._host.claim()
    await runtime.register(RIGHT_NODE)


@dataclass(frozen=True, slots=True)
class Rows:
    """Looks into the tables of one schema."""

    connection: asyncpg.Connection[asyncpg.Record]

    @classmethod
    @asynccontextmanager
    async def of(cls, url: str, schema: str) -> AsyncIterator[Rows]:
        """Rows of this schema, which hosts may still have to make."""
        connection = await asyncpg.connect(url, server_settings={"search_path": schema})
        try:
            yield cls(connection)
        finally:
            await connection.close()

    async def seen(self, agent: AgentId) -> list[tuple[str, int]]:
        """Sender and number of all that the agent was given, in order."""
        text = await self.connection.fetchval(
            "select value from agent_state where agent = $1 and key = 'seen'", str(agent)
        )
        return [(sender, n) for sender, n in json.loads(text or "[]")]

    async def until_seen(self, agent: AgentId, count: int) -> list[tuple[str, int]]:
        """Return `seen` once it is so much."""

        async def is_enough() -> bool:
            return len(await self.seen(agent)) >= count

        await until(is_enough, f"{count} messages at {agent}")
        return await self.seen(agent)

    async def owner(self, shard: str) -> str | None:
        """The incarnation that owns a shard."""
        found: str | None = await self.connection.fetchval(
            "select owner from shards where shard = $1", shard
        )
        return found

    async def owned(self, prefix: str = "") -> Counter[str]:
        """How many of the shards whose names begin so each incarnation owns."""
        rows = await self.connection.fetch(
            "select owner, count(*) as n from shards where starts_with(shard, $1) group by owner",
            prefix,
        )
        return Counter({row["owner"] or "": row["n"] for row in rows})

    async def until_owned(self, prefix: str, want: dict[str, int]) -> None:
        """Return once they are owned so."""

        async def is_so() -> bool:
            return await self.owned(prefix) == want

        await until(is_so, f"{prefix} owned {want}")

    async def until_unable(self, count: int, why: str | None = None) -> None:
        """Return once so many hosts say of themselves that they cannot serve, for this reason."""

        async def is_so() -> bool:
            found = await self.connection.fetchval(
                "select count(*) from hosts where unable = coalesce($1, unable)", why
            )
            return bool(found == count)

        await until(is_so, f"{count} hosts are unable")

    async def count(self, table: str) -> int:
        """How many rows there are."""
        found: int = await self.connection.fetchval(f"select count(*) from {table}")
        return found


def numbers_of(seen: list[tuple[str, int]]) -> dict[str, list[int]]:
    """What was given by sender, in order."""
    found: dict[str, list[int]] = {}
    for sender, n in seen:
        found.setdefault(sender, []).append(n)
    return found


async def publish(outsider: RawNats, namespace: str, agent: AgentId, order: object) -> None:
    """Publish as the outsider `crm`, and have it acknowledged."""
    subject = f"{namespace}.agent.v1.{agent.tenant}.{agent.type}.{agent.key}.ext.crm"
    ack = await outsider.publish(subject, json.dumps(order).encode(), {})
    assert "error" not in ack, ack
