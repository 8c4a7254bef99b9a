"""Mail from the broker to rows: what is acknowledged when, and in which order it is offered."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from actors._kernel.agent.message import Message
from actors._kernel.runtime.commit import LeaseLost
from actors._kernel.runtime.ids import AgentId, HostIncarnation, RunId, ShardId
from actors._kernel.runtime.rows import Arrived
from actors._kernel.runtime.scheduler import ShardLease
from actors._kernel.stores.transport import (
    Cursor,
    Ingested,
    MailBatch,
    Received,
    StaleStream,
    Undecodable,
)
from actors._runtime.delivery.mail_service import INGEST_AGAIN_S, Inbound
from actors._runtime.loop.tasks import TaskScope
from actors._runtime.worker.intake import Intake
from actors.errors import BrokerError, PersistenceError
from tests.harness.simloop import SimLoop, simulate

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

    from actors._kernel.stores.transport import IngestOutcome, MailConnection, MailStore
    from actors._runtime.worker.worker import Worker

SHARD = ShardId("s")
LEASE = ShardLease(SHARD, HostIncarnation("h"), 3, datetime(2030, 1, 1, tzinfo=UTC))
AGENT = AgentId("desk", "a")


def arrived(n: int, agent: AgentId = AGENT) -> Arrived:
    """A message in rows."""
    return Arrived(Message.of(agent, n, id=f"m{n}").sent_by("ext:x"), "ext:x", agent, n)


def batch(upto: int) -> MailBatch:
    """One batch: a message up to this place of the stream; one that is no message if it is 13."""
    content = Undecodable("bad", b"x") if upto == 13 else Message.of(AGENT, upto).sent_by("ext:x")
    received = Received(upto, AGENT, "ext:x", f"m{upto}", content)
    return MailBatch(LEASE, Cursor(1, upto), (received,))


class Place:
    """A worker, a store and a connection that write down what happens, in order."""

    def __init__(self, *outcomes: IngestOutcome | Exception) -> None:
        self.done: list[str] = []
        self._outcomes = list(outcomes)
        self.env = SimpleNamespace(counters=SimpleNamespace(received=0, undecodable=0))
        self.intake = self.adoption = self._store = self.shards = self
        self.held_back: dict[ShardId, list[Arrived]] = {}

    async def ingest(self, batch: MailBatch) -> IngestOutcome:
        """A write takes two seconds."""
        await asyncio.sleep(2)
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Exception):
            self.done.append("failed")
            raise outcome
        self.done.append(f"written {batch.upto.sequence}")
        return outcome

    async def read(self, lease: ShardLease, cursor: Cursor) -> AsyncGenerator[MailBatch, None]:
        """What is behind the cursor, then nothing; below 0 the line breaks."""
        del lease
        try:
            for upto in range(cursor.sequence + 1, cursor.sequence + 1 + len(self._outcomes)):
                yield batch(upto)
            if cursor.sequence < 0:
                raise BrokerError("the line is cut")
        finally:
            self.done.append("closed")

    def ack(self, batch: MailBatch) -> None:
        """The broker need not send it again."""
        self.done.append(f"ack {batch.upto.sequence}")

    def offer(self, item: Arrived) -> None:
        """The worker has it."""
        self.done.append(f"offer {item.arrival}")

    def routed(self, arrived: list[Arrived]) -> None:
        """A turn of this host wrote rows."""
        Intake.routed(cast("Intake", self), arrived)

    def signalled(self, run_id: RunId, agent_id: AgentId) -> None:
        """A run has a signal."""
        self.done.append(f"signal {run_id} {agent_id.key}")

    def lose(self, shard: ShardId, *, epoch: int) -> None:
        """Somebody else has the shard."""
        self.done.append(f"lose {shard} {epoch}")

    def shard_of(self, agent_id: AgentId) -> ShardId:
        """All agents of this type are in the shard that is read."""
        return SHARD if agent_id.type == AGENT.type else ShardId("other")


async def read(ingest: Inbound, host: Place, after: int = 0) -> None:
    """Read until there is nothing more."""
    await ingest.read(cast("MailConnection", host), LEASE, Cursor(1, after))


def played(act: Callable[[Inbound, Place], Coroutine[Any, Any, None]], host: Place) -> list[str]:
    """What happened, when `act` was done and all that it began."""

    async def main(_: SimLoop) -> None:
        async with TaskScope() as tasks:
            ingest = Inbound(
                cast("MailStore", host),
                cast("Worker", host),
                tasks=tasks,
                on_broken=lambda why: host.done.append(f"broken: {why}"),
                on_posted=lambda shard: host.done.append(f"posted {shard}"),
            )
            await act(ingest, host)
            await asyncio.sleep(30)

    simulate(main, seed=1)
    return host.done


def test_a_batch_is_acknowledged_when_it_is_written_and_offered() -> None:
    """Then the next one is taken; all that it brought is told of."""
    run = (RunId("r"), AGENT)
    host = Place(
        Ingested((arrived(1), arrived(2)), (run,), (ShardId("f"),)), Ingested((arrived(3),))
    )

    assert played(read, host) == [
        *("written 1", "offer 1", "offer 2", "signal r a", "posted f", "ack 1"),
        *("written 2", "offer 3", "ack 2", "closed"),
    ]
    assert host.env.counters.received == 3


def test_while_the_store_is_away_nothing_is_acknowledged_and_nothing_lost() -> None:
    """The same batch is written again, after a pause."""
    host = Place(PersistenceError("away"), PersistenceError("away"), Ingested((arrived(1),)))

    async def act(ingest: Inbound, host: Place) -> None:
        async with asyncio.timeout(3 * 2 + 2 * INGEST_AGAIN_S + 1):
            await ingest.read(cast("MailConnection", OneBatch(host)), LEASE, Cursor(1, 0))

    assert played(act, host) == ["failed", "failed", "written 1", "offer 1", "ack 1", "closed"]


class OneBatch:
    """A connection with a single batch."""

    def __init__(self, host: Place) -> None:
        self.ack, self._host = host.ack, host

    async def read(self, *_: object) -> AsyncGenerator[MailBatch, None]:
        """It."""
        try:
            yield batch(1)
        finally:
            self._host.done.append("closed")


def test_what_a_commit_wrote_meanwhile_is_offered_behind_what_came_before() -> None:
    """Of the shard that is being written; what is for another shard does not wait."""
    host = Place(Ingested((arrived(1),)))

    async def act(ingest: Inbound, host: Place) -> None:
        async with TaskScope() as tasks:
            tasks.start(read(ingest, host), name="read")
            await asyncio.sleep(1)
            host.routed([arrived(7), arrived(8, AgentId("clerk", "b"))])
            assert host.done == ["offer 8"]
            await tasks.settle(limit_s=20)
        host.routed([arrived(9)])

    done = played(act, host)
    assert done == ["offer 8", "written 1", "offer 1", "offer 7", "ack 1", "closed", "offer 9"]


@pytest.mark.parametrize(
    ("outcome", "event"),
    [(LeaseLost(), "lose s 3"), (StaleStream(), "broken: the stream MAIL has a new epoch")],
)
def test_what_is_refused_is_not_acknowledged_and_reading_ends(
    outcome: IngestOutcome, event: str
) -> None:
    """Whoever owns the shard now, or reads the new stream, reads it again."""
    done = played(read, Place(outcome, Ingested()))

    assert done == ["written 1", event, "closed"]


def test_what_was_routed_during_a_refused_write_is_offered() -> None:
    """It is in rows, whatever became of the batch."""

    async def act(ingest: Inbound, host: Place) -> None:
        async with TaskScope() as tasks:
            tasks.start(read(ingest, host), name="read")
            await asyncio.sleep(1)
            host.routed([arrived(7)])
            await tasks.settle(limit_s=20)

    assert "offer 7" in played(act, Place(LeaseLost()))


def test_a_cut_line_is_told_of_with_its_reason() -> None:
    """So that another connection is made."""
    assert played(_read_cut, Place())[-1] == "broken: the line is cut"


async def _read_cut(ingest: Inbound, host: Place) -> None:
    await read(ingest, host, -1)


def test_a_batch_that_is_written_when_its_line_goes_is_offered_before_the_next_reads() -> None:
    """The new connection reads the shard only when the old batch is in rows and offered."""
    host = Place(Ingested((arrived(1),)), Ingested((arrived(2),)))

    async def act(ingest: Inbound, host: Place) -> None:
        async with TaskScope() as first:
            first.start(read(ingest, host), name="read")
            await asyncio.sleep(1)
        await ingest.read(cast("MailConnection", OneBatch(host)), LEASE, Cursor(1, 0))

    done = played(act, host)
    assert done == ["closed", "written 1", "offer 1", "written 1", "offer 2", "ack 1", "closed"]


def test_a_cursor_that_moved_is_news_once() -> None:
    """Also a batch without messages; what is no message is counted."""
    host = Place(Ingested())

    async def act(ingest: Inbound, host: Place) -> None:
        assert not ingest.take_news()
        await read(ingest, host, 12)
        assert ingest.take_news()
        assert not ingest.take_news()

    played(act, host)
    assert (host.env.counters.received, host.env.counters.undecodable) == (0, 1)
