"""Connecting to NATS: what comes of it, and what is said when nothing does."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import nats
import pytest

from actors._kernel.runtime.ids import AgentId
from actors.errors import BrokerError
from broker import (
    JetStreamOffError,
    JetStreamTransport,
    NotPermittedError,
    StreamMismatchError,
    UnreachableError,
)
from tests.integration.broker.lines import (
    START,
    connect,
    lease_of,
    plain_server,
    reading,
    row,
    shard_of,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.servers import TestNats

ALICE = AgentId("greeter", "alice")


async def test_a_refused_connection_names_the_server_and_the_remedy() -> None:
    """Where nobody listens, the error says where, and to start a server there."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]

        with pytest.raises(UnreachableError) as exc_info:
            async with connect(f"nats://me:secret@127.0.0.1:{port}"):
                pass

    assert f"127.0.0.1:{port}" in str(exc_info.value)
    assert "Start nats-server there" in str(exc_info.value)
    assert "secret" not in str(exc_info.value)
    assert exc_info.value.retryable


async def test_a_connect_to_a_silent_server_times_out() -> None:
    """A port that accepts and is silent is an error after the time limit."""

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(swallow, "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        transport = JetStreamTransport(f"nats://127.0.0.1:{port}", connect_timeout_s=0.2)

        with pytest.raises(UnreachableError, match="connecting"):
            async with transport.connect(deployment="d", on_nudge=lambda _: None):
                pass


@pytest.mark.parametrize("url", ["nats://127.0.0.1:notaport", "http://[", "nats://"])
async def test_a_wrong_url_is_a_clear_error(url: str) -> None:
    """What is no URL of a server is refused with how one looks."""
    with pytest.raises(BrokerError, match="nats://HOST:PORT"):
        async with connect(url):
            pass


async def test_a_server_without_jetstream_is_a_clear_error(tmp_path: Path) -> None:
    """Core NATS alone is refused with the remedy."""
    async with plain_server(tmp_path, "") as port:
        with pytest.raises(JetStreamOffError, match="JetStream is off"):
            async with connect(f"nats://127.0.0.1:{port}"):
                pass


async def test_a_wrong_password_is_a_clear_error(tmp_path: Path) -> None:
    """The server's refusal of the login is told, without the password."""
    async with plain_server(tmp_path, "authorization { user: u, password: right }") as port:
        with pytest.raises(UnreachableError, match="password") as exc_info:
            async with connect(f"nats://u:wrong@127.0.0.1:{port}"):
                pass

    assert "wrong" not in str(exc_info.value)


async def test_streams_of_another_deployment_are_refused(
    nats_server: TestNats, namespace: str
) -> None:
    """A host with another database cannot connect to these streams."""
    async with connect(nats_server.url, namespace):
        pass
    other = JetStreamTransport(nats_server.url, namespace=namespace)

    with pytest.raises(StreamMismatchError, match="belongs to the database"):
        async with other.connect(deployment="d-2", on_nudge=lambda _: None):
            pass


async def test_a_missing_permission_raises_at_the_call_and_not_a_timeout(tmp_path: Path) -> None:
    """Publishing, the API and pulling each raise what the server forbids, at once."""
    config = """
        jetstream { store_dir: "%s" }
        authorization { users: [ { user: u, password: p, permissions: { publish: { deny: [
            "agent.v1.>", "$JS.API.STREAM.PURGE.>", "$JS.API.CONSUMER.MSG.NEXT.>" ] } } } ] }
    """
    async with (
        plain_server(tmp_path, config % (tmp_path / "store")) as port,
        connect(f"nats://u:p@127.0.0.1:{port}") as connection,
        asyncio.timeout(20),
    ):
        with pytest.raises(NotPermittedError, match=r"agent\.v1"):
            await connection.send(row(1, ALICE))
        with pytest.raises(NotPermittedError, match="purge"):
            await connection.purge(5)
        with pytest.raises(NotPermittedError, match="pulling"):
            async with reading(connection, shard_of(ALICE)) as batches:
                await anext(batches)


async def test_leaving_the_block_deletes_the_consumers(
    nats_server: TestNats, namespace: str
) -> None:
    """A connection that is closed leaves no consumer of an open reader behind."""
    async with connect(nats_server.url, namespace) as connection:
        await connection.send(row(1, ALICE))
        batches = connection.read(lease_of(shard_of(ALICE)), START)
        await anext(batches)
    await batches.aclose()

    client = await nats.connect(nats_server.url)
    try:
        consumers = await client.jetstream().consumers_info(f"{namespace}_MAIL")
    finally:
        await client.close()
    assert consumers == []
