"""NATS loses data: all of it, a stream, or its last milliseconds. No message of a run is lost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from actors._runtime.delivery import mail_service as mail
from tests.harness import servers
from tests.harness.rawnats import raw_nats
from tests.system.mailing import Load, until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from compose.embedded import NatsServer
    from tests.harness.rawnats import RawNats

ANOTHER = "the stream MAIL is not the one that was read"
KILLS = int(os.environ.get("CALLBOARD_TEST_KILLS", "12"))
"""How often the server is killed right after a PubAck; 200 take five minutes."""


@pytest.fixture
def load(nats: NatsServer, postgres_dsn: str, schema: str) -> Load:
    """Nodes on that server."""
    return Load(nats.url, postgres_dsn, schema)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll the streams every few milliseconds instead of every 30 seconds."""
    monkeypatch.setattr(mail, "UPKEEP_S", 0.2)
    monkeypatch.setattr(mail, "GUARD_S", 0.2)


@pytest.mark.costly
async def test_a_deleted_data_folder_loses_no_message_of_a_run(
    load: Load, nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A live host finds an empty server, logs it, and sends undelivered messages again."""
    async with load.host() as runtime:
        await load.pump(runtime, 5, runs=6, pace_s=0.02)
        await load.until_handled(100)
        await asyncio.to_thread(nats.stop)
        await asyncio.to_thread(servers.wipe, nats)
        await asyncio.to_thread(nats.start)
        await load.settle(runtime)
        await load.publish("crm", 3)
        await load.settle(runtime)

    assert await load.problems() == []
    assert await load.lives() == 1
    assert [record.levelname for record in caplog.records if ANOTHER in record.message] == ["ERROR"]


async def test_the_loss_of_unread_external_messages_is_logged(
    load: Load, nats: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages of runs of that time arrive; external clients continue in a stream of another name."""
    async with load.host() as runtime:
        await load.publish("crm", 2)
        await load.settle(runtime)
        edge = await load.edge()
        await asyncio.to_thread(nats.stop)
        await load.pump(runtime, 3)
        await load.until_sent()
    await asyncio.to_thread(nats.start)
    read = dict(load.acked)
    await load.publish("crm", 4)
    load.acked = read
    await asyncio.to_thread(nats.stop)
    await asyncio.to_thread(servers.wipe, nats)
    await asyncio.to_thread(nats.start)
    async with load.host() as runtime:
        await load.settle(runtime)
        await load.publish("erp", 3)
        await load.settle(runtime)
        another = await load.edge()
    [record] = [r for r in caplog.records if ANOTHER in r.message]

    assert "what clients published and no host had read" in record.message
    assert await load.problems() == []
    assert another != edge


@pytest.mark.costly
@pytest.mark.item(482)
@pytest.mark.timeout(180 if KILLS <= 20 else 1800)
async def test_a_server_killed_right_after_it_acknowledged_loses_nothing(
    load: Load, nats: NatsServer
) -> None:
    """The stream MAIL loses its last milliseconds, and their sequences are given to other messages."""
    vanished = 0
    async with load.host() as runtime:
        for i in range(KILLS):
            await load.until_connected(runtime)
            async with raw_nats(nats.url, inbox=f"_INBOX_spy{i}") as spy:
                await spy.send(b"SUB _INBOX_host.> 9\r\n")
                await load.pump(runtime, 2)
                sequence = await _acknowledged(spy)
                os.kill(nats.pid, signal.SIGKILL)
                killed_at = time.time()
            publishing = asyncio.create_task(load.publish("crm", 1))
            await asyncio.to_thread(nats.kill)  # until it is deleted
            await asyncio.to_thread(nats.start)
            vanished += await _has_vanished(load, sequence, killed_at)
            await publishing
        await load.settle(runtime, patience_s=120)
        lives = await load.lives()

    sys.stdout.write(f"{KILLS} kills: {vanished} times the last message vanished, {lives} lives\n")
    assert await load.problems() == []


async def _acknowledged(spy: RawNats) -> int:
    """Return the sequence of the next message that the stream MAIL acknowledges to a host."""
    while True:
        frame = await spy.frame()
        if frame.body.startswith(b'{"stream":"MAIL"'):
            return int(json.loads(frame.body)["seq"])


async def _has_vanished(load: Load, sequence: int, killed_at: float) -> bool:
    """Return whether the sequence of an acknowledged message is free or has another message."""
    answer = await load.api("STREAM.MSG.GET.MAIL", {"seq": sequence})
    if "error" in answer:
        return True
    stored_at = time.strptime(answer["message"]["time"][:19], "%Y-%m-%dT%H:%M:%S")
    whole = time.mktime(stored_at) - time.timezone
    return whole + float("0" + answer["message"]["time"][19:].rstrip("Z")) > killed_at


async def _delete(load: Load, nats: NatsServer) -> None:
    del nats
    await load.api("STREAM.DELETE.MAIL")


async def _purge(load: Load, nats: NatsServer) -> None:
    del nats
    await load.api("STREAM.PURGE.MAIL")


async def _make_anew(load: Load, nats: NatsServer) -> None:
    """Create it as by hand: without the settings for external clients and deployments."""
    del nats
    await load.api("STREAM.DELETE.MAIL")
    by_hand = {"name": "MAIL", "subjects": ["agent.v1.*.*.*.in"], "max_msgs": 100}
    by_hand |= {
        "persist_mode": "async"
    }  # which cannot be changed: without it the host logs an error and waits
    await load.api("STREAM.CREATE.MAIL", by_hand)


async def _cut_off(load: Load, nats: NatsServer) -> None:
    """Truncate its last file by half."""
    del load
    await asyncio.to_thread(nats.stop)
    file = _last_block(nats)
    os.truncate(file, file.stat().st_size // 2)
    await asyncio.to_thread(nats.start)


async def _remove(load: Load, nats: NatsServer) -> None:
    """Delete its files."""
    del load
    await asyncio.to_thread(nats.stop)
    _last_block(nats).unlink()
    await asyncio.to_thread(nats.start)


def _last_block(nats: NatsServer) -> Path:
    return max((nats.data_dir / "store").rglob("MAIL/msgs/*.blk"), key=lambda file: file.name)


DAMAGES: list[Any] = [_delete, _purge, _make_anew, _cut_off, _remove]


@pytest.mark.costly
@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__[1:])
async def test_a_damaged_mail_stream_under_load_loses_no_message_of_a_run(
    load: Load, nats: NatsServer, damage: Callable[[Load, NatsServer], Awaitable[None]]
) -> None:
    """Unread messages are sent again from the outbox; the rest is recognised as known."""
    async with load.host() as runtime:
        await load.pump(runtime, 5, runs=6, pace_s=0.02)
        await load.until_handled(100)
        await damage(load, nats)
        await load.settle(runtime)
        await load.publish("crm", 2)
        await load.settle(runtime)

    assert await load.problems() == []


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__[1:])
async def test_a_mail_stream_damaged_without_hosts_loses_nothing(
    load: Load, nats: NatsServer, damage: Callable[[Load, NatsServer], Awaitable[None]]
) -> None:
    """Messages of external clients are still in their own stream."""
    async with load.host() as runtime:
        await load.publish("crm", 2)
        await load.settle(runtime)
        load.gate.clear()
        await load.pump(runtime, 4)
        load.gate.set()
        await load.until_handled(20)
    await load.publish("crm", 4)
    await damage(load, nats)
    async with load.host() as runtime:
        await load.settle(runtime)

    assert await load.problems() == []


@pytest.mark.usefixtures("often")
async def test_streams_deleted_under_a_host_are_made_again(load: Load) -> None:
    """Within one poll, also streams that are not read."""
    async with load.host() as runtime:
        edge = await load.edge()
        for name in (edge, "TOPIC", "DEAD"):
            await load.api(f"STREAM.DELETE.{name}")
        await until(lambda: _are_there(load), "all are there")
        await load.publish("crm", 3)
        await load.pump(runtime, 3)
        await load.settle(runtime)
        another = await load.edge()

    assert await load.problems() == []
    assert another != edge


async def _are_there(load: Load) -> bool:
    names = (await load.api("STREAM.NAMES"))["streams"] or []
    return len(names) == 4


@pytest.mark.usefixtures("often")
async def test_hosts_wait_while_the_mail_stream_is_unusable(
    load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    """An operator made one in memory: a host logs it, and continues when it is deleted."""
    async with load.host() as runtime:
        await load.publish("crm", 1)
        await load.settle(runtime)
        by_hand = {"name": "MAIL", "subjects": ["mail.*.*.*.*"], "storage": "memory"}
        answer: dict[str, Any] = {"error": "not yet"}
        while "error" in answer:  # the host may be faster, and create its own
            await load.api("STREAM.DELETE.MAIL")
            answer = await load.api("STREAM.CREATE.MAIL", by_hand)
        await load.pump(runtime, 3)
        await until(
            lambda: _is_said(caplog, "the broker cannot be used; messages wait"), "it is said"
        )
        await load.api("STREAM.DELETE.MAIL")
        await load.settle(runtime)

    assert await load.problems() == []


async def _is_said(caplog: pytest.LogCaptureFixture, words: str) -> bool:
    return words in caplog.text
