"""What a server takes as one message: compared at connect, and what is larger is told, not retried."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import nats
import pytest

from actors._kernel.runtime.ids import AgentId
from actors.errors import ContractError
from broker._errors import SmallServerError, UnpublishableError
from broker._wire.headers import NEEDED_PAYLOAD_BYTES
from tests.integration.broker.lines import connect, row

if TYPE_CHECKING:
    from tests.harness.servers import OwnNats, TestNats

ALICE = AgentId("greeter", "alice")


async def test_a_server_that_takes_too_little_is_refused_with_both_numbers(
    own_nats: OwnNats,
) -> None:
    """One byte below 512 KiB it is a ContractError that says where the number is set; nothing is made."""
    server = own_nats(settings={"max_payload": NEEDED_PAYLOAD_BYTES - 1})

    with pytest.raises(
        ContractError, match=r"524287 bytes, 524288 .*max_payload: 524288"
    ) as exc_info:
        async with connect(server.url):
            pass

    assert isinstance(exc_info.value, SmallServerError)
    client = await nats.connect(server.url)
    try:
        answer = await client.request("$JS.API.STREAM.NAMES", b"{}", timeout=20)
    finally:
        await client.close()
    assert json.loads(answer.data)["streams"] is None


async def test_a_server_that_takes_just_enough_is_used(own_nats: OwnNats) -> None:
    """With 512 KiB a message is stored."""
    server = own_nats(settings={"max_payload": NEEDED_PAYLOAD_BYTES})

    async with connect(server.url) as connection:
        assert await connection.send(row(1, ALICE)) == 1


async def test_headers_that_make_a_message_too_large_do_not_cost_the_connection(
    nats_server: TestNats, namespace: str
) -> None:
    """The server would close it; the caller learns that this one will never go, and the next goes."""
    large = row(1, ALICE)
    large = replace(large, message=replace(large.message, id="x" * (1 << 20)))

    async with connect(nats_server.url, namespace) as connection:
        with pytest.raises(UnpublishableError, match="1048576"):
            await connection.send(large)
        assert await connection.send(row(2, ALICE)) == 1


async def test_a_message_larger_than_its_streams_limit_is_never_sent_again(
    own_nats: OwnNats,
) -> None:
    """JetStream's refusal of its size is an error of the caller, not of the broker."""
    server = own_nats()
    async with connect(server.url) as connection:
        client = await nats.connect(server.url)
        try:
            config = (await client.jetstream().stream_info("MAIL")).config
            config.max_msg_size, config.sources = 1000, []
            await client.jetstream().update_stream(config)
        finally:
            await client.close()

        with pytest.raises(UnpublishableError, match="size exceeds maximum"):
            await connection.send(row(1, ALICE, text="x" * 2000))
        assert await connection.send(row(2, ALICE)) == 1
