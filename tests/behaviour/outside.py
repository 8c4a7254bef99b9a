"""External clients at the broker, and observers of the rows."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import nats

from actors._kernel.agent.message import Message
from broker import Subjects
from tests.harness import checks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from nats.aio.client import Client

    from actors._kernel.runtime.ids import AgentId, RunId, TopicId
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


@dataclass
class Outsider:
    """A service that publishes to agents with a NATS client of its own, and none of our code.

    Attributes: name: Its name in subjects.
    """

    client: Client
    subjects: Subjects
    name: str = "crm"

    def with_name(self, name: str) -> Outsider:
        """Return the same client with another name."""
        return Outsider(self.client, self.subjects, name)

    async def send(self, agent: AgentId, payload: Any, *, id: str | None = None) -> None:  # noqa: A002
        """Publish a message; return when the broker has stored it."""
        await self._publish(self.subjects.external(agent, self.name), payload, id)

    async def send_all(self, agent: AgentId, payloads: Sequence[Any]) -> None:
        """Publish messages in order, without waiting for each."""
        subject = self.subjects.external(agent, self.name)
        for payload in payloads[:-1]:
            await self.client.publish(subject, json.dumps(payload).encode())
        await self.send(agent, payloads[-1])

    async def post(self, topic: TopicId, payload: Any, *, id: str | None = None) -> None:  # noqa: A002
        """Publish to a topic; return when the broker has stored it."""
        await self._publish(self.subjects.external_post(topic, self.name), payload, id)

    async def signal(
        self,
        agent: AgentId,
        run_id: RunId,
        name: str,
        payload: Any,
        *,
        id: str | None = None,  # noqa: A002
    ) -> None:
        """Publish a signal for a run."""
        await self._publish(self.subjects.signal(agent, self.name, run_id, name), payload, id)

    async def _publish(self, subject: str, payload: Any, id: str | None) -> None:  # noqa: A002
        headers = None if id is None else {"Nats-Msg-Id": id}
        data = json.dumps(payload).encode()
        answer = await self.client.request(subject, data, timeout=5, headers=headers)
        assert "seq" in json.loads(answer.data), answer.data

    async def newest(self, stream: str, subject: str) -> Any:
        """Return the newest message of a subject: its number in the stream, and its headers."""
        body = {"last_by_subj": subject}
        while True:
            answer = await self.ask(f"STREAM.MSG.GET.{stream}", body)
            if "message" in answer:
                return answer["message"]
            await asyncio.sleep(0.01)

    async def count(self, stream: str, subject: str) -> int:
        """Return how many messages a stream holds under this subject or pattern."""
        answer = await self.ask(f"STREAM.INFO.{stream}", {"subjects_filter": subject})
        counts: dict[str, int] = answer["state"].get("subjects") or {}
        return sum(counts.values())

    async def ask(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return JetStream's answer to a request."""
        answer = await self.client.request(f"$JS.API.{what}", json.dumps(body).encode(), timeout=5)
        parsed: dict[str, Any] = json.loads(answer.data)
        return parsed


@asynccontextmanager
async def outsider(bed: Bed) -> AsyncIterator[Outsider]:
    """Yield an external client at the bed's broker."""
    assert bed.broker_at is not None
    url, namespace = bed.broker_at
    client = await nats.connect(url, allow_reconnect=False, connect_timeout=20)
    try:
        yield Outsider(client, Subjects(namespace))
    finally:
        await client.close()


async def received(bed: Bed, agent: AgentId) -> list[Message]:
    """Return every message that runs of the agent received, as their logs record it, by arrival."""
    rows = await bed.runtime.store.lists.runs(agent=agent, limit=10_000)
    messages: list[Message] = []
    for row in sorted(rows, key=lambda row: row.arrival):
        entries = checks.received(await bed.log(row.run_id))
        messages += [Message.from_json(entry.payload["message"]) for entry in entries]  # type: ignore[arg-type]
    return messages


async def eventually(holds: Callable[[], Awaitable[object]]) -> None:
    """Return once `holds()` is true. For conditions that only the store knows."""
    async with asyncio.timeout(60):
        while not await holds():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)


async def all_done(bed: Bed, agent: AgentId) -> None:
    """Return when the agent has handled all its messages."""
    await pending(bed, agent, 0)


async def pending(bed: Bed, agent: AgentId, count: int) -> None:
    """Return when this many messages of the agent are rows and not done."""

    async def is_so() -> bool:
        return await bed.runtime.store.lists.pending_count(agent) == count

    await eventually(is_so)


async def nothing_leaves(bed: Bed) -> bool:
    """Return whether this host has no message in flight."""
    mail = bed.runtime._host.mail
    assert mail is not None
    return await mail._outbox.page(bed.runtime._host.worker.held.leases) == []


def noting(got: list[object]) -> Callable[[RunContext, list[Message]], Awaitable[None]]:
    """Return an agent function that records the payloads it receives."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del ctx
        got.extend(m.payload for m in inbox)

    return act


async def brought(bed: Bed) -> None:
    """Return when all posts are in the inboxes of their followers on this host."""

    async def is_so() -> bool:
        shards = [lease.shard for lease in bed.runtime._host.worker.held.leases]
        return not await bed.runtime.store.posts.behind(shards)

    await eventually(is_so)
