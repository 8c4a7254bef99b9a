"""Calls over one connection, on a real server."""

from __future__ import annotations

import secrets
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import nats
import pytest

from actors.errors import BrokerError
from broker._nats.client import ConnectOptions, open_client
from broker._nats.requests import Requests

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from nats.aio.msg import Msg

    from tests.harness.servers import TestNats


@asynccontextmanager
async def requests_on(url: str) -> AsyncGenerator[Requests]:
    """Calls over a connection of their own."""
    inbox = f"_INBOX_test.{secrets.token_hex(11)}"
    client = await open_client(ConnectOptions(urls=(url,)), inbox_prefix=inbox)
    requests = Requests(client, inbox)
    client.on_lost, client.on_denied = requests.fail_all, requests.denied
    try:
        await requests.open()
        yield requests
    finally:
        await client.shut()


@pytest.mark.parametrize("words", [b"+OK", b"[]", b"{}", b'{"seq": null}', b"\xff", b""])
async def test_an_invalid_acknowledgement_is_an_error_of_the_broker(
    nats_server: TestNats, namespace: str, words: bytes
) -> None:
    """Whoever answers in the stream's place ends no loop that sends: those know such errors."""
    other = await nats.connect(nats_server.url)

    async def answer(message: Msg) -> None:
        await message.respond(words)

    try:
        await other.subscribe(f"{namespace}.mail", cb=answer)
        await other.flush()
        async with requests_on(nats_server.url) as requests:
            with pytest.raises(BrokerError, match="none of JetStream's"):
                await requests.publish(f"{namespace}.mail", b"{}", {})
    finally:
        await other.close()
