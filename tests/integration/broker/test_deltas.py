"""Deltas and ends between processes, over a real server."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from typing_extensions import override

from actors._inmemory.runs.store import MemoryStore
from actors._kernel.runtime.hints import Delta
from actors._kernel.runtime.ids import AgentId, RunId
from actors._runtime.client.live_events import CatchUp, LiveEvents, OpenAnswers
from actors._runtime.loop.clock import SystemClock
from actors._runtime.loop.tasks import TaskScope
from broker._gateway import streams
from broker._gateway.streams import NatsDeltaBus
from broker._nats.client import ConnectOptions, ReconnectingConnection
from broker._wire.subjects import Subjects
from tests.harness.rawnats import raw_nats
from tests.system.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import pytest

    from broker._nats.client import NatsConnection, Tasks
    from tests.harness.servers import TestNats

AGENT, RUN = AgentId("teller", "a b"), RunId("0" * 32)
POISON = (
    b"",
    b"[]",
    b'{"kind": "x"}',
    b'{"kind": "text.delta"}',
    b"\xff",
    b"[" * 100_000,
    b'{"kind": "text.delta", "position": "1", "attempt": Infinity, "n": 1, "text": ""}',
    b'{"kind": "custom.delta", "position": "", "attempt": 1, "n": 1, "text": "", "data": NaN}',
)


def delta(n: int) -> Delta:
    """The n-th piece; every tenth is something that the agent shows, and no text."""
    piece = Delta(
        run_id=RUN, agent_id=AGENT, attempt=1, position="1", n=n, kind="text.delta", text=f"é{n}"
    )
    return replace(piece, kind="custom.delta", text="", data={"n": [n]}) if n % 10 == 9 else piece


@asynccontextmanager
async def bus(url: str, namespace: str) -> AsyncGenerator[NatsDeltaBus, None]:
    """A process's bus."""
    new_bus = NatsDeltaBus(Subjects(namespace))
    line = ReconnectingConnection(
        ConnectOptions(urls=(url,)), [new_bus], scope=TaskScope, inbox_prefix="_INBOX_host"
    )
    async with TaskScope() as tasks:
        tasks.start(line.run(), name="line")
        await line.connected.wait()
        yield new_bus


async def subscribed(*buses: NatsDeltaBus) -> None:
    """Return once the server knows what they want to hear."""
    for bus in buses:
        await until(lambda bus=bus: bus._subscriptions.keys() == bus._handlers.keys(), "subscribed")  # type: ignore[misc]
        assert bus._client is not None
        await bus._client.flush()


async def test_pieces_reach_remote_listeners_in_order_and_not_their_sender(
    nats_server: TestNats, namespace: str
) -> None:
    """What cannot be read is left out; who has stopped to listen costs nothing any more."""
    async with (
        bus(nats_server.url, namespace) as local_bus,
        bus(nats_server.url, namespace) as remote_bus,
    ):
        async with (
            aclosing(local_bus.subscribe(AGENT, RUN)) as mine,
            aclosing(remote_bus.subscribe(AGENT, RUN)) as theirs,
        ):
            waiting = [asyncio.ensure_future(anext(reader)) for reader in (mine, theirs)]
            await asyncio.sleep(0)
            await subscribed(local_bus, remote_bus)
            async with raw_nats(nats_server.url) as onlooker:
                subject = f"{namespace}.run.v1.default.teller.a%20b.{RUN}"
                for bad in POISON:
                    await onlooker.send(b"PUB %b %d\r\n%b\r\n" % (subject.encode(), len(bad), bad))
                await onlooker.settled()
            for n in range(100):
                local_bus.publish(delta(n))
            first = await waiting[1]
            rest = [await anext(theirs) for _ in range(99)]
            assert not waiting[0].done()
            waiting[0].cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        await until(
            lambda: not remote_bus._subscriptions and not local_bus._subscriptions, "nobody listens"
        )

    assert [first, *rest] == [delta(n) for n in range(100)]


async def joined_text(reader: NatsDeltaBus, upto: int) -> str:
    """The text that somebody shows who begins to read now, when the last piece has come."""
    text, last, over = "", -1, asyncio.Event()

    def show(piece: Delta) -> None:
        nonlocal text, last
        text, last = piece.text if piece.is_whole else text + piece.text, piece.n
        if last == upto:
            over.set()

    pieces = reader.subscribe(AGENT, RUN, whole=True)
    async with aclosing(pieces), CatchUp(show) as catch_up, TaskScope() as tasks:

        async def read() -> None:
            async for piece in pieces:
                catch_up.take(piece)

        tasks.start(read(), name="reader")
        await over.wait()
    return text


async def test_who_joins_while_an_answer_streams_has_all_of_it_once(
    nats_server: TestNats, namespace: str
) -> None:
    """At whatever moment: the text so far, and then the pieces behind it, none twice and none missing."""
    count, readers = 600, 40
    texts = [f"{n}é " for n in range(count)]
    async with (
        bus(nats_server.url, namespace) as local_bus,
        bus(nats_server.url, namespace) as remote_bus,
    ):
        answers, joining = OpenAnswers(), list[asyncio.Task[str]]()
        local_bus.answer_by(lambda _, run: answers.of(run))
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            for n, text in enumerate(texts):
                piece = replace(delta(0), n=n, text=text)
                answers.add(piece)
                local_bus.publish(piece)
                if n % (count // readers) == 1:
                    joining.append(tasks.create_task(joined_text(remote_bus, count - 1)))
                await asyncio.sleep(0.002 if n % 7 == 0 else 0)
        await until(lambda: not remote_bus._subscriptions, "nobody listens")

    assert [task.result() for task in joining] == ["".join(texts)] * readers
    assert not remote_bus._questions


async def test_text_is_for_readers_of_its_agent_and_asked_for_again_after_a_loss(
    nats_server: TestNats, namespace: str
) -> None:
    """Who names the run with the session of another tenant is told nothing, as by hosts that do not run it."""
    async with (
        bus(nats_server.url, namespace) as local_bus,
        bus(nats_server.url, namespace) as idle,
        bus(nats_server.url, namespace) as remote_bus,
    ):
        clock, other = SystemClock(), replace(AGENT, tenant="other")
        events = LiveEvents(clock, MemoryStore(clock=clock))
        events.join(local_bus)
        events.open_answers.add(delta(0))
        async with (
            aclosing(remote_bus.subscribe(AGENT, RUN, whole=True)) as theirs,
            aclosing(remote_bus.subscribe(other, RUN, whole=True)) as others,
        ):
            stranger = asyncio.ensure_future(anext(others))
            whole = replace(delta(0), is_whole=True)
            async with asyncio.timeout(10):
                assert [await anext(theirs), await anext(theirs)] == [whole, None]
                events.open_answers.add(delta(1))
                assert remote_bus._client is not None
                remote_bus._client.give_up("lost")
                again = await anext(theirs)
            assert again == replace(whole, n=1, text="é0é1")
            assert not stranger.done()
            stranger.cancel()
            await asyncio.wait([stranger])
        assert not idle._outgoing


async def test_an_end_is_notified_to_its_watchers(nats_server: TestNats, namespace: str) -> None:
    """And to nobody after that."""
    notified_sides: list[str] = []
    async with (
        bus(nats_server.url, namespace) as local_bus,
        bus(nats_server.url, namespace) as remote_bus,
    ):
        stop = remote_bus.watch_end(AGENT, RUN, lambda: notified_sides.append("there"))
        local_bus.watch_end(AGENT, RUN, lambda: notified_sides.append("here"))
        await subscribed(local_bus, remote_bus)
        local_bus.announce_end(AGENT, RUN)
        await until(lambda: notified_sides == ["there"], "told")
        stop()
        await until(lambda: not remote_bus._subscriptions, "no subscription is left")
        local_bus.announce_end(AGENT, RUN)
        await subscribed(local_bus)

    assert notified_sides == ["there"]


async def test_a_piece_that_the_server_does_not_take_holds_up_no_other(
    nats_server: TestNats, namespace: str
) -> None:
    """It is lost, as pieces may be; those after it come."""
    async with (
        bus(nats_server.url, namespace) as local_bus,
        bus(nats_server.url, namespace) as remote_bus,
        aclosing(remote_bus.subscribe(AGENT, RUN)) as theirs,
    ):
        waiting = asyncio.ensure_future(anext(theirs))
        await asyncio.sleep(0)
        await subscribed(remote_bus)
        local_bus.publish(replace(delta(1), text="x" * 2_000_000))
        local_bus.publish(delta(2))
        async with asyncio.timeout(10):
            first = await waiting

    assert first == delta(2)


async def test_a_line_outlives_whatever_its_users_raise(
    nats_server: TestNats, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so and begins anew: a host without it can be asked by nobody."""

    class Clumsy(NatsDeltaBus):
        """Fails at first."""

        attached = 0

        @override
        async def attach(self, client: NatsConnection, inbox: str, tasks: Tasks) -> None:
            """See `ConnectionUser`."""
            self.attached += 1
            if self.attached == 1:
                raise RuntimeError("not expected")
            await super().attach(client, inbox, tasks)

    user = Clumsy(Subjects(""))
    line = ReconnectingConnection(
        ConnectOptions(urls=(nats_server.url,)), [user], scope=TaskScope, inbox_prefix="_INBOX_host"
    )
    async with TaskScope() as tasks, asyncio.timeout(10):
        tasks.start(line.run(), name="line")
        await line.connected.wait()

    assert user.attached == 2
    assert "not expected" in caplog.text


async def test_a_slow_reader_misses_the_oldest(
    nats_server: TestNats, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory stays bounded on both sides, and without a connection nothing is kept at all."""
    monkeypatch.setattr(streams, "MAX_BEHIND", 10)
    async with (
        bus(nats_server.url, namespace) as local_bus,
        bus(nats_server.url, namespace) as remote_bus,
        aclosing(remote_bus.subscribe(AGENT, RUN)) as theirs,
    ):
        waiting = asyncio.ensure_future(anext(theirs))
        await asyncio.sleep(0)
        await subscribed(remote_bus)
        local_bus.publish(delta(0))
        first = await waiting
        texts: list[str] = []
        remote_bus._subscribe_local(
            remote_bus._subjects.live(AGENT, RUN), lambda data: texts.append(data.decode())
        )
        for n in range(1, 51):
            local_bus.publish(delta(n))
        await until(lambda: len(texts) == 50, "all have come")
        rest = [await anext(theirs) for _ in range(10)]
    local_bus.publish(delta(1))

    assert [piece and piece.n for piece in (first, *rest)] == [0, *range(41, 51)]
    assert not local_bus._outgoing
