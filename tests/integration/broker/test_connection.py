"""One connection to a real NATS: sending, the stream's state, purging, nudges, and its loss."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import nats
import pytest

from actors._kernel.agent.message import Message
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId, HostIncarnation, RunId
from actors._kernel.stores.transport import Cursor
from actors.errors import BrokerError
from broker import ConnectionLostError, NoAnswerError, RefusedError
from broker._nats import requests as api
from broker._nats.requests import PUBLISH_LIMIT_S
from tests.harness import servers
from tests.harness.slow import BUSY_S
from tests.integration.broker.lines import (
    DEPLOYMENT,
    START,
    connect,
    lease_of,
    numbers,
    reading,
    row,
    send_all,
    shard_of,
    take,
)

if TYPE_CHECKING:
    from tests.harness.servers import OwnNats, TestNats

ALICE = AgentId("greeter", "alice")
BOB = AgentId("clerk", "bob", "acme")


async def test_a_message_sent_is_read_with_all_it_had(
    nats_server: TestNats, namespace: str
) -> None:
    """Id, sender, target and payload of a row come out as they went in."""
    outbox_row = row(7, BOB, text="hi")

    async with connect(nats_server.url, namespace) as connection:
        sequence = await connection.send(outbox_row)
        async with reading(connection, shard_of(BOB)) as batches:
            batch = await anext(batches)

    (received,) = batch.received
    assert isinstance(received.content, Message)
    assert replace(received.content, created_at=outbox_row.message.created_at) == outbox_row.message
    assert (received.sequence, received.agent_id, received.sender, received.message_id) == (
        sequence,
        BOB,
        "agent:desk/1",
        "m-7",
    )
    assert not received.sourced
    assert batch.upto.sequence == sequence
    assert batch.upto.stream_epoch == START.stream_epoch


async def test_two_thousand_sends_at_once_get_their_own_acknowledgements(
    nats_server: TestNats, namespace: str
) -> None:
    """Each send returns the sequence of its message, and no two the same."""
    rows = [row(n, AgentId("greeter", f"k{n % 50}")) for n in range(2000)]

    async with connect(nats_server.url, namespace) as connection:
        sequences = await send_all(connection, rows)
        client = await nats.connect(nats_server.url)
        try:
            stream = client.jetstream()
            for n in (0, 999, 1999):
                stored_message = await stream.get_msg(f"{namespace}_MAIL", sequences[n])
                assert (stored_message.headers or {})["Nats-Msg-Id"] == f"m-{n}"
        finally:
            await client.close()

    assert sorted(sequences) == list(range(1, 2001))


async def test_a_dead_letter_goes_to_the_stream_of_dead_letters(
    nats_server: TestNats, namespace: str
) -> None:
    """A row that was given up is stored in DEAD under its agent, and not in a mailbox."""
    async with connect(nats_server.url, namespace) as connection:
        await connection.send(row(1, BOB, dead_letter="gave up"))
        state = await connection.stream_state()
        client = await nats.connect(nats_server.url)
        try:
            dead = await client.jetstream().get_msg(f"{namespace}_DEAD", 1)
        finally:
            await client.close()

    assert state.last_sequence == 0
    assert dead.subject == f"{namespace}.dead.v1.acme.clerk.bob"


async def test_a_full_stream_refuses_with_the_servers_words(own_nats: OwnNats) -> None:
    """What JetStream answers to a publish that it does not store is in the error, with its code."""
    server = own_nats()
    async with connect(server.url) as connection:
        client = await nats.connect(server.url)
        try:
            stream = client.jetstream()
            config = (await stream.stream_info("MAIL")).config
            config.max_msgs = 2
            await stream.update_stream(config)
        finally:
            await client.close()
        await send_all(connection, [row(1, ALICE), row(2, ALICE)])

        with pytest.raises(RefusedError, match="maximum messages exceeded") as exc_info:
            await connection.send(row(3, ALICE))

    assert exc_info.value.code == 10077
    assert str(pickle.loads(pickle.dumps(exc_info.value))) == str(exc_info.value)


async def test_the_state_of_the_stream_names_its_epoch(
    nats_server: TestNats, namespace: str
) -> None:
    """Name, deployment, sequences and creation time are told; the time does not change."""
    async with connect(nats_server.url, namespace) as connection:
        before = await connection.stream_state()
        await send_all(connection, [row(n, ALICE) for n in range(3)])
        await connection.purge(2)
        after = await connection.stream_state()

    assert before.name == f"{namespace}_MAIL"
    assert before.deployment == DEPLOYMENT
    assert (after.first_sequence, after.last_sequence) == (2, 3)
    assert after.created == before.created


async def test_the_time_of_a_message_is_the_one_its_cursor_has(
    nats_server: TestNats, namespace: str
) -> None:
    """`stored_at` and the cursor of a batch agree to the microsecond, for each of 50 messages."""
    async with connect(nats_server.url, namespace) as connection:
        async with reading(connection, shard_of(ALICE)) as batches:
            for n in range(50):
                await connection.send(row(n, ALICE))
                (batch,) = await take(connection, batches, 1)
                assert await connection.stored_at(batch.upto.sequence) == batch.upto.at
        missing = await connection.stored_at(51)

    assert missing is None


async def test_a_purge_takes_what_is_strictly_below(nats_server: TestNats, namespace: str) -> None:
    """The message at the given sequence stays; 0 and 1 remove nothing."""
    async with connect(nats_server.url, namespace) as connection:
        await send_all(connection, [row(n, ALICE) for n in range(10)])

        assert [await connection.purge(below) for below in (0, 1, 4, 4)] == [0, 0, 3, 0]
        assert await connection.stored_at(3) is None
        assert await connection.stored_at(4) is not None


async def test_agents_with_waiting_messages_are_listed(
    nats_server: TestNats, namespace: str
) -> None:
    """Each agent that has a message in the stream is told once; foreign subjects are passed over."""
    agents = {AgentId("greeter", f"k.{n} *>", f"tenant{n % 3}") for n in range(300)}

    async with connect(nats_server.url, namespace) as connection:
        await send_all(connection, [row(n, a) for n, a in enumerate(sorted(agents) * 2)])
        client = await nats.connect(nats_server.url)
        await client.jetstream().publish(f"{namespace}.mail.greeter.99.x.y", b"")
        await client.close()
        waiting = await connection.waiting()

    assert len(waiting) == 300
    assert set(waiting) == agents


async def test_a_nudge_reaches_the_host_it_is_for(nats_server: TestNats, namespace: str) -> None:
    """Kind, agent and run arrive at the owner, at nobody else; what is no nudge is passed over."""
    received_nudges: list[Nudge] = []
    others: list[Nudge] = []
    nudges = [
        Nudge("signal", BOB, RunId("r1")),
        Nudge("shards"),
        Nudge("run", AgentId("a", "ü/ x")),
    ]

    async with (
        connect(nats_server.url, namespace, owner="me", nudge_list=received_nudges),
        connect(nats_server.url, namespace, owner="you", nudge_list=others) as you,
    ):
        client = await nats.connect(nats_server.url)
        for junk in (b"", b"\xff", b"[1]", b'["what", null, null]', b'["run", 5, null]', b"{}"):
            await client.publish(f"{namespace}.host.v1.me", junk)
        await client.flush()
        await client.close()
        for nudge in nudges:
            await you.nudge(HostIncarnation("me"), nudge)
        async with asyncio.timeout(20):
            while len(received_nudges) < 3:
                await you.stream_state()

    assert received_nudges == nudges
    assert others == []


async def test_a_killed_server_is_noticed_by_everybody(own_nats: OwnNats) -> None:
    """`lost` returns, and reads and sends raise, within a second of kill -9."""
    server = own_nats()
    async with connect(server.url) as connection:
        await connection.send(row(1, ALICE))
        async with reading(connection, shard_of(ALICE)) as batches:
            await anext(batches)
            next_one = asyncio.create_task(anext(batches))
            loss = asyncio.create_task(connection.lost())
            await connection.stream_state()
            await asyncio.to_thread(server.kill)
            killed_at = time.monotonic()

            await loss
            with pytest.raises(ConnectionLostError, match="Connect again"):
                await next_one
            with pytest.raises(ConnectionLostError):
                await connection.send(row(2, ALICE))
            with pytest.raises(ConnectionLostError):
                await connection.stream_state()
            with pytest.raises(ConnectionLostError):
                async with reading(connection, shard_of(BOB)) as others:
                    await anext(others)
            assert time.monotonic() - killed_at < 1 + BUSY_S


async def test_sends_under_way_fail_when_the_server_is_killed(own_nats: OwnNats) -> None:
    """Nobody waits for an acknowledgement that cannot come any more."""
    server = own_nats()
    async with connect(server.url) as connection:
        servers.freeze(server)
        sending = [asyncio.create_task(connection.send(row(n, ALICE))) for n in range(100)]
        await asyncio.sleep(0)  # each has published by now
        await asyncio.to_thread(server.kill)
        results = await asyncio.gather(*sending, return_exceptions=True)

    assert {type(result) for result in results} == {ConnectionLostError}


async def test_a_server_paused_for_three_seconds_costs_nothing_but_time(
    own_nats: OwnNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sends fail after two seconds, the connection stays, and reading goes on without a gap."""
    server = own_nats()
    async with connect(server.url) as connection:
        await connection.send(row(0, ALICE))
        async with reading(connection, shard_of(ALICE)) as batches:
            await take(connection, batches, 1)
            monkeypatch.setattr(api, "PUBLISH_LIMIT_S", PUBLISH_LIMIT_S)
            servers.freeze(server)
            try:
                start_s = time.monotonic()
                with pytest.raises(NoAnswerError, match="within 2 s"):
                    await connection.send(row(1, ALICE))
                assert time.monotonic() - start_s > 1.9
                await asyncio.sleep(1)
            finally:
                os.kill(server.pid, signal.SIGCONT)
            monkeypatch.setattr(api, "PUBLISH_LIMIT_S", 20.0)
            await connection.send(row(2, ALICE))
            received_numbers = numbers(await take(connection, batches, 2))

    assert received_numbers == [1, 2]


async def test_a_stream_made_anew_under_the_connection_ends_it(
    nats_server: TestNats, namespace: str
) -> None:
    """A reader does not go on in another life of the stream: that has to be guarded first."""
    async with connect(nats_server.url, namespace) as connection:
        await connection.send(row(1, ALICE))
        async with reading(connection, shard_of(ALICE)) as batches:
            await anext(batches)
            next_one = asyncio.create_task(anext(batches))
            await connection.stream_state()
            client = await nats.connect(nats_server.url)
            await client.jetstream().delete_stream(f"{namespace}_MAIL")
            await client.close()

            with pytest.raises(ConnectionLostError, match="deleted or made anew"):
                await next_one
            async with asyncio.timeout(20):
                await connection.lost()


async def test_acknowledging_after_the_reader_is_gone_is_harmless(
    nats_server: TestNats, namespace: str
) -> None:
    """An ack for a shard that was given up, or for a proof of idleness, does nothing."""
    async with connect(nats_server.url, namespace) as connection:
        await connection.send(row(1, ALICE))
        async with reading(connection, shard_of(ALICE)) as batches:
            batch = await anext(batches)
        connection.ack(batch)
        with contextlib.suppress(BrokerError):
            await connection.send(row(2, ALICE))
        resumed = Cursor(1, batch.upto.sequence, batch.upto.at)
        async with reading(connection, shard_of(ALICE), resumed, epoch=2) as batches:
            received_numbers = numbers(await take(connection, batches, 1))

    assert received_numbers == [2]
    assert lease_of(shard_of(ALICE)) == batch.lease
