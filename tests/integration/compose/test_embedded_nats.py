"""The embedded NATS: JetStream with our settings; it hangs, and it loses its disk."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import nats
import nats.js.errors
import pytest

from tests.harness.servers import drop_namespace, freeze, thaw, wipe
from tests.integration.compose.stored import KINDS, nats_client

if TYPE_CHECKING:
    from actors._kernel.json import JsonValue
    from tests.harness.servers import OwnNats, TestNats


async def test_durable_means_synced_before_the_acknowledgement(own_nats: OwnNats) -> None:
    """The configuration says `always`; a server for tests writes when it likes."""
    configurations = [
        json.loads((own_nats(durable=durable).data_dir / "server.conf").read_text())
        for durable in (True, False)
    ]

    assert [configuration["jetstream"]["sync_interval"] for configuration in configurations] == [
        "always",
        "2m",
    ]


async def test_settings_win_over_ours(own_nats: OwnNats) -> None:
    """One setting of a block does not take the others away."""
    limits: JsonValue = {"max_file_store": 1 << 20}
    server = own_nats(settings={"max_payload": 1000, "jetstream": limits})
    async with nats_client(server.url) as client:
        assert client.max_payload == 1000
        with pytest.raises(nats.js.errors.Error, match="insufficient storage"):
            await client.jetstream().add_stream(name="T", subjects=["t"], max_bytes=2 << 20)
    assert (server.data_dir / "store" / "jetstream").is_dir()


async def test_a_frozen_server_is_silent_until_it_is_thawed(own_nats: OwnNats) -> None:
    """Its connections stay, and what was sent meanwhile is answered afterwards."""
    server = own_nats()
    async with nats_client(server.url) as client:
        inbox = client.new_inbox()
        answers = await client.subscribe(inbox)
        freeze(server)
        await client.publish("$JS.API.INFO", b"", reply=inbox)
        with pytest.raises(asyncio.TimeoutError):
            await answers.next_msg(0.3)
        thaw(server)

        assert b"account_info" in (await answers.next_msg(10)).data


async def test_a_wiped_server_starts_with_nothing(own_nats: OwnNats) -> None:
    """Its URL stays, its streams are gone."""
    server = own_nats()
    await KINDS["nats"].write(server.url, 3)
    server.kill()
    wipe(server)
    server.start()

    with pytest.raises(nats.js.errors.NotFoundError):
        await KINDS["nats"].count(server.url)


async def test_a_namespace_can_hold_streams(nats_server: TestNats, namespace: str) -> None:
    """They are deleted after the test, and others are left alone."""
    async with nats_client(nats_server.url) as client:
        stream = client.jetstream()
        await stream.add_stream(name=f"{namespace}_T", subjects=[f"{namespace}.>"])
        await stream.add_stream(name=f"{namespace}x_T", subjects=[f"{namespace}x.>"])
    await drop_namespace(nats_server, namespace)
    async with nats_client(nats_server.url) as client:
        names = [stream.config.name for stream in await client.jetstream().streams_info()]
    await drop_namespace(nats_server, f"{namespace}x")

    assert f"{namespace}x_T" in names
    assert f"{namespace}_T" not in names


async def test_a_connection_left_open_fails_its_test(
    nats_server: TestNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of the connection is in the words."""
    monkeypatch.setattr("tests.harness.servers.nats._LEAK_GRACE_S", 0.2)
    client = await nats.connect(nats_server.url, name="forgotten")
    with pytest.raises(AssertionError, match="forgotten#"):
        await drop_namespace(nats_server, "t-none")
    await client.close()
