"""Messages that a broker refuses: their pair continues, and the refusal is reported."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any

import nats
import pytest

from actors._kernel.runtime.ids import AgentId
from actors._runtime.delivery import mail_service
from compose import Settings
from compose._assembly.runtime import build_runtime
from tests.behaviour.agents import Acting
from tests.harness.slow import BUSY_S
from tests.system.mailing import Load, until

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext, Runtime
    from tests.harness.servers import OwnNats

TELLER, HEARER = AgentId("teller", "1"), AgentId("hearer", "1")


class Transfer:
    """Payloads of the receiver, in order."""

    def __init__(self) -> None:
        self.all: list[Any] = []

    async def hear(self, ctx: RunContext, inbox: list[Message]) -> None:
        """Record the sizes of texts, in order."""
        del ctx
        self.all += [message.payload["n"] for message in inbox]  # type: ignore[index,call-overload]

    async def tell(self, ctx: RunContext, inbox: list[Message]) -> None:
        """Send texts of these lengths."""
        sizes: Any = inbox[0].payload
        for n, size in enumerate(sizes):
            await ctx.send(HEARER, {"n": n, "text": "x" * size})

    async def until(self, numbers: list[int]) -> None:
        """Return when exactly these came."""
        async with asyncio.timeout(20 + BUSY_S):
            while self.all != numbers:  # noqa: ASYNC110 - nobody announces it
                await asyncio.sleep(0.02)


def host(load: Load) -> AbstractAsyncContextManager[Runtime]:
    """Yield a host whose messages all go by the broker."""
    settings = Settings(db_schema=load.schema, local_delivery=False)
    return build_runtime(load.nats_url, load.postgres_url, settings=settings)


async def change_mail(url: str, **settings: Any) -> None:
    """Change the stream MAIL as an operator would."""
    client = await nats.connect(url)
    try:
        answer = await client.request("$JS.API.STREAM.INFO.MAIL", b"{}", timeout=20)
        config = {**json.loads(answer.data)["config"], **settings}
        body = json.dumps(config).encode()
        answer = await client.request("$JS.API.STREAM.UPDATE.MAIL", body, timeout=20)
        assert "error" not in json.loads(answer.data), answer.data
    finally:
        await client.close()


def of(module: str, caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return log lines of this event."""
    return [record for record in caplog.records if record.module == module]


async def test_an_unpublishable_message_is_a_dead_letter_and_its_pair_continues(
    own_nats: OwnNats, postgres_dsn: str, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The messages before and after it arrive in order.

    It is listed with the broker's error, and logged.
    """
    load, transfer = Load(own_nats().url, postgres_dsn, schema), Transfer()
    async with host(load) as first, host(load) as other:
        await first.register(Acting(TELLER, transfer.tell))
        await other.register(Acting(HEARER, transfer.hear))
        await change_mail(load.nats_url, max_msg_size=4000, sources=[])
        with caplog.at_level(logging.WARNING, logger="callboard.delivery"):
            await first.submit(TELLER, [10, 5000, 20, 6000, 30])
            await transfer.until([0, 2, 4])
        letters = await first.store.lists.dead_letters()

    payloads: list[Any] = [letter.message.payload for letter in letters]
    assert sorted(payload["n"] for payload in payloads) == [1, 3]
    assert {letter.reason for letter in letters} == {"unpublishable"}
    assert all("maximum" in letter.last_error for letter in letters)
    records = [record for record in caplog.records if "cannot be published" in record.message]
    assert [(record.sender, record.target) for record in records] == [  # type: ignore[attr-defined]
        (f"agent:{TELLER}", str(HEARER))
    ] * 2


async def test_ten_repeats_of_one_message_are_one_warning_that_names_it(
    own_nats: OwnNats, postgres_dsn: str, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Pair, row and problem. Nothing is lost, and it is sent when the broker accepts it again."""
    load, transfer = Load(own_nats().url, postgres_dsn, schema), Transfer()
    async with host(load) as first, host(load) as other:
        await first.register(Acting(TELLER, transfer.tell))
        await other.register(Acting(HEARER, transfer.hear))
        await change_mail(load.nats_url, max_bytes=1, discard="new")
        with caplog.at_level(logging.WARNING, logger="callboard.delivery"):
            await first.submit(TELLER, [10, 20])
            async with asyncio.timeout(20 + BUSY_S):
                while not of("outbox_relay", caplog):  # noqa: ASYNC110 - nobody announces it
                    await asyncio.sleep(0.02)
            await asyncio.sleep(1)  # four more repeats: no further warning
        await change_mail(load.nats_url, max_bytes=-1)
        await transfer.until([0, 1])
        rows = await load.fetch("select count(*) from dead_letters")

    [record] = of("outbox_relay", caplog)
    assert (record.sender, record.target) == (f"agent:{TELLER}", str(HEARER))  # type: ignore[attr-defined]
    assert record.row > 0  # type: ignore[attr-defined]
    assert "maximum bytes exceeded" in record.problem  # type: ignore[attr-defined]
    assert rows[0][0] == 0


async def test_a_lowered_limit_is_logged_and_waiting_messages_are_sent_when_it_is_raised(  # noqa: PLR0917 - fixtures
    own_nats: OwnNats,
    postgres_dsn: str,
    schema: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Live hosts log the problem once. Rows wait in order meanwhile, and none is given up."""
    # A server that starts slowly is unusable for long enough: the rows would go past it.
    monkeypatch.setattr(mail_service, "AFTER_S", 600.0)
    server = own_nats(durable=True)
    load, transfer = Load(server.url, postgres_dsn, schema), Transfer()
    config = server.data_dir / "server.conf"

    def refused() -> list[logging.LogRecord]:
        return [r for r in of("mail_service", caplog) if r.levelno == logging.ERROR]

    large = config.read_text()
    async with host(load) as first, host(load) as other:
        await first.register(Acting(TELLER, transfer.tell))
        await other.register(Acting(HEARER, transfer.hear))
        await asyncio.to_thread(server.stop)
        settings = json.loads(large) | {"max_payload": 64 * 1024}
        config.write_text(json.dumps(settings))
        await first.submit(TELLER, [10, 100_000, 20])
        with caplog.at_level(logging.ERROR, logger="callboard.delivery"):
            await asyncio.to_thread(server.start)
            async with asyncio.timeout(20 + BUSY_S):
                while len(refused()) < 2:  # noqa: ASYNC110 - one of each host
                    await asyncio.sleep(0.02)
            await until(lambda: _has_sent(load), "three rows wait")
        assert len(refused()) == 2
        for record in refused():
            problem = record.problem  # type: ignore[attr-defined]
            assert "takes messages of 65536 bytes, 524288 are needed: set max_payload" in problem
        assert transfer.all == []
        await asyncio.to_thread(server.stop)
        config.write_text(large)
        await asyncio.to_thread(server.start)
        await transfer.until([0, 1, 2])
        assert await first.store.lists.dead_letters() == []


async def _has_sent(load: Load) -> bool:
    return int((await load.fetch("select count(*) from outbox"))[0][0]) == 3
