"""A load of numbered messages while servers fail, and a check of the rows afterwards.

Every node sends number 0, 1, 2, … to every other node, some runs being retried, and external
clients publish numbers to every node until each is acknowledged. Afterwards the messages that a
node got of one sender must be exactly 0, 1, 2, …, whatever happened to the servers meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import nats

from actors._kernel.runtime.ids import PARTITIONS, AgentId, RunId
from actors._kernel.runtime.scheduler import RetryPolicy
from actors.errors import RetryAfter
from broker import Subjects
from compose import Settings
from compose._assembly.runtime import build_runtime
from tests.harness.rawnats import RawNatsError, raw_nats

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext, Runtime

PATIENCE_S: Final = 30.0
POLL_S: Final = 0.05
SUBJECTS: Final = Subjects()
_NOT_YET: Final = (OSError, RawNatsError, TimeoutError, EOFError, ValueError)


class Node:
    """Sends a round of numbers on request, and receives those of others. Every fifth round fails once."""

    retry = RetryPolicy(max_retries=5, backoff_s=0.02, jitter=0)

    def __init__(self, agent_id: AgentId, peers: Sequence[AgentId], gate: asyncio.Event) -> None:
        self.id, self._gate = agent_id, gate
        self._peers = [peer for peer in peers if peer != agent_id]

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        """Handle all messages of the inbox."""
        await self._gate.wait()
        for message in inbox:
            payload: Any = message.payload
            for _ in range(payload.get("rounds", 0)):
                await self._round(ctx)
                await ctx.sleep(payload["pace_s"])

    async def _round(self, ctx: RunContext) -> None:
        n = await ctx.state.get("rounds") or 0
        for peer in self._peers:
            await ctx.send(peer, {"n": n})
        await ctx.state.set("rounds", n + 1)
        if n % 5 == 3 and ctx.meta.attempt <= 1:
            raise RetryAfter(0.02)


@dataclass(slots=True)
class Load:
    """Nodes on real servers, external clients beside them, and the rows of both.

    Attributes: nodes: All send to all. acked: How many numbers of each (publisher, node) the broker
    has acknowledged. gate: No node handles anything while it is clear.
    """

    nats_url: str
    postgres_url: str
    schema: str
    redis_url: str | None = None
    nodes: tuple[AgentId, ...] = tuple(AgentId("node", f"n{i}") for i in range(5))
    rounds: int = 0
    acked: dict[tuple[str, AgentId], int] = field(default_factory=dict)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    _runs: list[RunId] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate.set()

    @asynccontextmanager
    async def host(
        self, *, nats_url: str = "", postgres_url: str = "", **settings: Any
    ) -> AsyncIterator[Runtime]:
        """Run a host of the nodes inside the block; all messages between them go by the broker."""
        values: dict[str, Any] = {"local_delivery": False, "suspend_after": 0.05, **settings}
        host_settings = Settings(db_schema=self.schema, **values)
        urls = (nats_url or self.nats_url, postgres_url or self.postgres_url, self.redis_url)
        async with build_runtime(*urls, settings=host_settings) as runtime:
            await runtime.register_type("node", lambda id_: Node(id_, self.nodes, self.gate))
            yield runtime

    async def pump(
        self, runtime: Runtime, rounds: int, *, runs: int = 1, pace_s: float = 0.0
    ) -> None:
        """Let every node send this many numbers to every other one, in each of this many runs."""
        self.rounds += rounds * runs
        order = {"rounds": rounds, "pace_s": pace_s}
        for _ in range(runs):
            self._runs += [await runtime.submit(node, order) for node in self.nodes]

    @asynccontextmanager
    async def outsiders(self, count: int, numbers: int) -> AsyncIterator[None]:
        """Let publishers send numbers to every node, from the block's start to its end."""
        async with asyncio.TaskGroup() as tasks:
            for i in range(count):
                tasks.create_task(self.publish(f"crm{i}", numbers))
            yield

    async def publish(self, publisher: str, numbers: int, *, padding: int = 0) -> None:
        """Publish the next numbers to every node; repeat each until the broker has it."""
        todo = [(node, n) for n in range(numbers) for node in self.nodes]
        first = {node: self.acked.get((publisher, node), 0) for node in self.nodes}
        done = 0
        while done < len(todo):
            try:
                # It has an inbox of its own: another publisher's acknowledgement does not count.
                inbox = f"_INBOX_{secrets.token_hex(8)}"
                async with raw_nats(self.nats_url, inbox=inbox) as client:
                    while done < len(todo):
                        node, n = todo[done]
                        n += first[node]
                        body = json.dumps({"n": n, "padding": " " * padding}).encode()
                        head = {"Nats-Msg-Id": f"{publisher}-{n}"}
                        ack = await client.publish(SUBJECTS.external(node, publisher), body, head)
                        if "error" in ack:
                            raise RawNatsError(str(ack))
                        self.acked[publisher, node] = n + 1
                        done += 1
            except _NOT_YET:
                await asyncio.sleep(POLL_S)

    @property
    def expected(self) -> dict[tuple[str, str], int]:
        """Return how many numbers each (sender, node) has sent."""
        between = {
            (f"agent:{sender}", str(other)): self.rounds
            for sender in self.nodes
            for other in self.nodes
            if sender != other and self.rounds
        }
        return between | {(f"ext:{name}", str(node)): n for (name, node), n in self.acked.items()}

    async def fetch(self, sql: str, *args: object) -> list[Any]:
        """Read rows of this deployment."""
        connection = await asyncpg.connect(
            self.postgres_url, server_settings={"search_path": self.schema}
        )
        try:
            return list(await connection.fetch(sql, *args))
        finally:
            await connection.close()

    async def handled(self) -> int:
        """Return how many numbers were handled to the end."""
        where = "state = 'd' and (sender like 'agent:%' or sender like 'ext:%')"
        return int((await self.fetch(f"select count(*) from inbox where {where}"))[0][0])

    async def is_read(self, count: int) -> bool:
        """Return whether this many numbers are rows."""
        where = "sender like 'agent:%' or sender like 'ext:%'"
        return int((await self.fetch(f"select count(*) from inbox where {where}"))[0][0]) >= count

    async def until_connected(self, *hosts: Runtime) -> None:
        """Return once these hosts get and send messages."""
        async with asyncio.timeout(PATIENCE_S):
            for host in hosts:
                assert host._host.mail is not None
                await host._host.mail.connected.wait()

    async def until_handled(self, count: int) -> None:
        """Return once this many numbers were handled."""
        await until(lambda: self._has_handled(count), f"{count} numbers handled")

    async def _has_handled(self, count: int) -> bool:
        return await self.handled() >= count

    async def until_sent(self) -> None:
        """Return once all requested numbers are in the outbox."""
        count = self.rounds * len(self.nodes) * (len(self.nodes) - 1)
        await until(lambda: self._has_sent(count), f"{count} numbers in the outbox")

    async def _has_sent(self, count: int) -> bool:
        return int((await self.fetch("select count(*) from outbox"))[0][0]) >= count

    async def settle(self, runtime: Runtime, *, lost: int = 0, patience_s: float = 60.0) -> None:
        """Return when all sent numbers were handled, except this many."""
        deadline = asyncio.get_running_loop().time() + patience_s
        async with asyncio.timeout(patience_s):
            for run_id in self._runs:
                await runtime.wait(run_id)
        self._runs.clear()
        total = sum(self.expected.values()) - lost
        while (handled_count := await self.handled()) < total:
            late = asyncio.get_running_loop().time() > deadline
            assert not late, f"{handled_count} of {total}: {await self.problems()}"
            await asyncio.sleep(POLL_S)

    async def fetch_numbers(self) -> dict[tuple[str, str], list[int]]:
        """Return the numbers that each node got of each sender, in order."""
        rows = await self.fetch("""
            select r.agent, e.payload #>> '{message,sender}' as sender,
                (e.payload #>> '{message,payload,n}')::int as n
              from event_log e join runs r on r.run_id = e.run_id
              where e.kind = 'msg.received' and e.payload #>> '{message,payload,n}' is not null
              order by r.agent, e.ts, e.run_id, e.seq""")
        numbers: dict[tuple[str, str], list[int]] = {}
        for agent, sender, n in rows:
            numbers.setdefault((sender, agent), []).append(n)
        return numbers

    async def problems(self) -> list[str]:
        """Return what was lost, doubled, reordered, failed or left over; expected is an empty list."""
        numbers, expected = await self.fetch_numbers(), self.expected
        findings = [
            words
            for pair in sorted(numbers.keys() | expected.keys())
            for words in _wrong(pair, numbers.get(pair, []), expected.get(pair, 0))
        ]
        for table, where in (
            ("outbox", "true"),
            ("dead_letters", "true"),
            ("runs", "status <> 'COMPLETED'"),
            ("inbox", "state <> 'd'"),
        ):
            [(row_count,)] = await self.fetch(f"select count(*) from {table} where {where}")
            if row_count:
                findings.append(f"{row_count} rows of {table}")
        return findings

    async def lives(self) -> int:
        """Return how often the mail stream was found to be a new one."""
        return int((await self.fetch("select max(epoch) from streams"))[0][0]) - 1

    async def api(self, what: str, body: object = None) -> dict[str, Any]:
        """Ask JetStream."""
        async with raw_nats(self.nats_url, inbox=f"_INBOX_{secrets.token_hex(8)}") as client:
            reply = await client.request(f"$JS.API.{what}", json.dumps(body or {}).encode())
        answer: dict[str, Any] = json.loads(reply.body)
        return answer

    async def consumers(self) -> list[dict[str, Any]]:
        """Return the durable consumers of the mail stream, as the server describes them."""
        answer = await self.api("CONSUMER.LIST.MAIL")
        return list(answer.get("consumers") or ())

    async def has_consumers(self) -> bool:
        """Return whether each shard of the agents and of topics has a consumer."""
        return len(await self.consumers()) == 2 * PARTITIONS

    async def edge(self) -> str:
        """Return the name of the stream for messages of external clients."""
        subject = SUBJECTS.external(self.nodes[0], "crm")
        [name] = (await self.api("STREAM.NAMES", {"subject": subject}))["streams"]
        return str(name)


def _wrong(pair: tuple[str, str], numbers: list[int], expected: int) -> list[str]:
    if numbers == list(range(expected)):
        return []
    name = f"{pair[0]} to {pair[1]}"
    lost = sorted(set(range(expected)) - set(numbers))
    twice = sorted(n for n in set(numbers) if numbers.count(n) > 1)
    behind = [(a, b) for a, b in pairwise(numbers) if b <= a]
    strange = sorted(set(numbers) - set(range(expected)))
    return [
        f"{name}: {words} {what}"
        for words, what in (
            ("lost", lost),
            ("twice", twice),
            ("out of order", behind),
            ("never sent", strange),
        )
        if what
    ]


async def publish_all(load: Load, agents: Sequence[AgentId]) -> int:
    """Publish the next number to each of these in turn as one external client; return how many."""
    client = await nats.connect(load.nats_url, pending_size=256 << 20)
    try:
        for i, agent in enumerate(agents):
            n = load.acked.get(("bulk", agent), 0)
            load.acked["bulk", agent] = n + 1
            await client.publish(SUBJECTS.external(agent, "bulk"), b'{"n":%d}' % n)
            if i % 1000 == 999:  # acknowledged by the request after it
                await client.flush(60)
    finally:
        await client.drain()
    await until(lambda: _are_stored(load, len(agents)), "all is stored", patience_s=300)
    return len(agents)


async def _are_stored(load: Load, count: int) -> bool:
    answer = await load.api("STREAM.INFO.MAIL")
    return int(answer["state"]["messages"]) >= count


async def until(
    holds: Callable[[], Awaitable[bool]], what: str, *, patience_s: float = PATIENCE_S
) -> None:
    """Return once it holds; fail after `patience_s`."""
    deadline = asyncio.get_running_loop().time() + patience_s
    while not await holds():
        assert asyncio.get_running_loop().time() < deadline, f"it did not come to this: {what}"
        await asyncio.sleep(POLL_S)
