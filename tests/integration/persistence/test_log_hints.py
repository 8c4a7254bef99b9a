"""Hints that a log has grown on another host: while somebody follows it there, and else not at all."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.ids import AgentId, RunId
from actors._runtime.loop.tasks import TaskScope
from broker._gateway.log_hints import NatsLogHints
from broker._nats.client import ConnectOptions, ReconnectingConnection
from broker._wire.subjects import Subjects
from persistence._postgres.reads import reads
from tests.conformance.bed import result
from tests.harness.rawnats import raw_nats
from tests.integration.persistence.hosts import connected, host, sql, store_of
from tests.system.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors._kernel.runtime.log_entry import RunLogEntry
    from persistence._postgres.reads.reads import LogReaders
    from tests.conformance.bed import Bed
    from tests.harness.servers import TestNats

OTHER, MARK = AgentId("desk", "2"), RunId("mark")
SQL_LISTENERS = """
select count(*) as n from pg_stat_activity where query like 'LISTEN "' || $1 || ':growth"%'
"""


@dataclass
class Ears:
    """Everything that hosts say about logs, by whatever way.

    Attributes:
        notified: Channel and payload of each NOTIFY.
        published: Subject and payload of each message.
    """

    notified: list[tuple[str, str]] = field(default_factory=list)
    published: list[tuple[str, str]] = field(default_factory=list)

    def all_notices(self) -> list[tuple[str, str]]:
        """Return all of it; the channels are named as the subjects are."""
        return [
            (channel.replace("followed", "follow"), text) for channel, text in self.notified
        ] + self.published

    def forget(self) -> None:
        """Begin anew."""
        self.notified, self.published = [], []

    async def have_all(self, bed: Bed) -> None:
        """Return when everything is there that a host has said before, and forget the mark of that."""
        notify, nats = readers_of(bed)._hints[1], readers_of(bed)._hints[0]
        for hints in (notify, nats):
            hints.say_followed(MARK)
        await until(lambda: MARK in str(self.notified), "notified")
        if nats.is_connected:
            await until(lambda: MARK in str(self.published), "published")
        self.notified = [entry for entry in self.notified if MARK not in str(entry)]
        self.published = [entry for entry in self.published if MARK not in str(entry)]


@asynccontextmanager
async def hearing(url: str, schema: str, nats: str, namespace: str) -> AsyncIterator[Ears]:
    """Listen to what hosts of the schema and the namespace say."""
    ears = Ears()
    async with connected(url, schema) as ear, raw_nats(nats) as line, TaskScope() as tasks:
        for channel in ("followed", "growth"):
            await ear.add_listener(
                f"{schema}:{channel}",
                lambda *arguments, channel=channel: ears.notified.append(
                    (channel, str(arguments[-1]))
                ),
            )

        async def hear() -> None:
            while True:
                frame = await line.frame()
                subject = frame.subject.removeprefix(f"{namespace}.host.v1.~")
                ears.published.append((subject, frame.body.decode()))

        await line.send(b"SUB %b.host.v1.> 1\r\n" % namespace.encode())
        await line.settled()
        tasks.start(hear(), name="ear")
        yield ears


@dataclass
class Pair:
    """A host that writes, one that reads, and what they say by which way."""

    writer: Bed
    reader: Bed
    ears: Ears
    way: str


def readers_of(bed: Bed) -> LogReaders:
    """The host's readers of logs."""
    return store_of(bed)._log_readers


def is_followed(bed: Bed, run_id: RunId) -> bool:
    """Whether the host was told that another one follows the log."""
    return any(hints._followed_logs.includes(run_id) for hints in readers_of(bed)._hints)  # type: ignore[attr-defined]


@asynccontextmanager
async def over_nats(bed: Bed, url: str, namespace: str) -> AsyncIterator[NatsLogHints]:
    """Let a host exchange hints over NATS."""
    hints = NatsLogHints(Subjects(namespace))
    line = ReconnectingConnection(
        ConnectOptions(urls=(url,)), [hints], scope=TaskScope, inbox_prefix="_INBOX_host"
    )
    bed.store.prefer_log_hints(hints)
    async with TaskScope() as tasks:
        tasks.start(line.run(), name="line")
        await line.connected.wait()
        yield hints


async def next_seq(tail: AsyncIterator[RunLogEntry]) -> int:
    """The seq of the next entry."""
    async with asyncio.timeout(20):
        return (await anext(tail)).seq


async def heard_there(url: str, schema: str) -> None:
    """Return when the reader listens for growth."""
    while not (await sql(url, schema, SQL_LISTENERS, schema))[0]["n"]:  # noqa: ASYNC110 - nobody announces it
        await asyncio.sleep(0.01)


@pytest.fixture(params=["notify", "nats"])
async def pair(  # noqa: PLR0917 - fixtures
    request: pytest.FixtureRequest,
    postgres_dsn: str,
    schema: str,
    nats_server: TestNats,
    namespace: str,
) -> AsyncIterator[Pair]:
    """Hosts whose readers never look by themselves. With `notify` the reader's line to NATS is lost."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reads, "TAIL_POLL_S", 3_600)
        patch.setattr(reads, "FIRST_POLL_S", 3_600)
        async with (
            host(postgres_dsn, schema) as writer,
            writer.rival() as reader,
            hearing(postgres_dsn, schema, nats_server.url, namespace) as ears,
            over_nats(writer, nats_server.url, namespace),
            over_nats(reader, nats_server.url, namespace) as hints,
        ):
            if request.param == "notify":
                hints.detach()
            yield Pair(writer, reader, ears, request.param)


async def test_of_logs_that_nobody_follows_elsewhere_nothing_is_said(pair: Pair) -> None:
    """Neither before the first reader, nor for readers in the same process, nor behind the last one."""
    if pair.way == "notify":
        readers_of(pair.writer)._hints[0].detach()  # type: ignore[attr-defined]
    run = await pair.writer.begin()
    await run.append(result("1"))
    await pair.ears.have_all(pair.writer)
    assert not pair.ears.all_notices()
    async with aclosing(pair.writer.store.reads.tail(run.run_id)) as own:  # type: ignore[type-var]
        assert [await next_seq(own), await next_seq(own)] == [0, 1]
        waiting = asyncio.ensure_future(next_seq(own))
        await until(lambda: is_followed(pair.reader, run.run_id), "told")
        await run.append(result("2"))
        assert await waiting == 2
    await pair.ears.have_all(pair.writer)
    assert {channel for channel, _ in pair.ears.all_notices()} == {"follow"}
    pair.ears.forget()
    await run.append(result("3"))
    await pair.ears.have_all(pair.writer)
    assert not pair.ears.all_notices()
    assert not readers_of(pair.writer)._logs


async def test_hosts_tell_of_a_log_that_another_one_follows(
    pair: Pair, postgres_dsn: str, schema: str
) -> None:
    """At once, without a look, and of no other; over NATS where both have it, and else by NOTIFY."""
    run, other = await pair.writer.begin(), await pair.writer.begin(agent=OTHER)
    async with aclosing(pair.reader.store.reads.tail(run.run_id)) as tail:  # type: ignore[type-var]
        assert await next_seq(tail) == 0
        waiting = asyncio.ensure_future(next_seq(tail))
        await until(lambda: is_followed(pair.writer, run.run_id), "told")
        if pair.way == "notify":
            await heard_there(postgres_dsn, schema)
        for seq in range(1, 5):
            await other.append(result(f"{seq}"))
            await run.append(result(f"{seq}"))
            assert await waiting == seq
            waiting = asyncio.ensure_future(next_seq(tail))
        waiting.cancel()
        await asyncio.wait([waiting])
    await pair.ears.have_all(pair.writer)
    assert other.run_id not in str(pair.ears.all_notices())
    assert bool(pair.ears.notified) == (pair.way == "notify")
    for hints in readers_of(pair.writer)._hints:
        hints._followed_logs._until.clear()  # type: ignore[attr-defined] # as a minute later
    pair.ears.forget()
    await run.append(result("9"))
    await pair.ears.have_all(pair.writer)
    assert not pair.ears.all_notices()


async def test_a_log_whose_hints_are_lost_is_polled(
    postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever was told nothing sees the entry all the same."""
    monkeypatch.setattr("persistence._postgres.reads.reads.NotifiedLogs._say", lambda *_: None)
    async with host(postgres_dsn, schema) as writer, writer.rival() as reader:
        run = await writer.begin()
        async with aclosing(reader.store.reads.tail(run.run_id)) as tail:  # type: ignore[type-var]
            assert await next_seq(tail) == 0
            await run.append(result("1"))
            assert await next_seq(tail) == 1
