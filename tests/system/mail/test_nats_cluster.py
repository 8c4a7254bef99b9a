"""One of three NATS servers is lost: messages continue with the others, and no stack trace is logged.

nats-server takes 4 to 9 seconds to elect leaders. Messages between agents bypass it meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import TYPE_CHECKING, Final

import pytest

from broker._mail import reader
from tests.harness.slow import IS_SLOW
from tests.system.containers import free_ports
from tests.system.mailing import Load
from tests.system.waiting import until

if TYPE_CHECKING:
    from compose.embedded import NatsServer
    from tests.harness.servers import OwnNats

pytestmark = [
    pytest.mark.skipif(not IS_SLOW, reason="three servers find each other: CALLBOARD_TEST_SLOW=1"),
    pytest.mark.timeout(180),
]

STANDS_S: Final = 3.0
"""Seconds for messages between agents, whatever the lost server led."""
_ASK_S: Final = 0.3


@pytest.fixture
def cluster(own_nats: OwnNats) -> list[NatsServer]:
    """Yield three servers of one cluster."""
    ports = free_ports(3)
    routes = [f"nats://127.0.0.1:{port}" for port in ports]
    return [
        own_nats(
            settings={
                "cluster": {"name": "c", "listen": f"127.0.0.1:{port}", "routes": list(routes)}
            }
        )
        for port in ports
    ]


def name_of(server: NatsServer) -> str:
    """Return the server's name for the others."""
    return str(json.loads((server.data_dir / "server.conf").read_text())["server_name"])


async def has_leaders(load: Load, lost: NatsServer) -> bool:
    """Return whether the mail stream and the cluster have live leaders."""
    try:
        async with asyncio.timeout(_ASK_S):
            leader = (await load.api("STREAM.INFO.MAIL"))["cluster"].get("leader")
            await load.api("STREAM.NAMES")
    except TimeoutError:
        return False
    return leader not in {None, name_of(lost)}


@pytest.mark.parametrize("is_leader", [False, True], ids=["another", "leader"])
async def test_messages_go_on_when_one_of_three_servers_is_lost(  # noqa: PLR0917 - fixtures
    cluster: list[NatsServer],
    postgres_dsn: str,
    schema: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    is_leader: bool,
) -> None:
    """Its consumers are missed at once, not by their silence, and no stack trace is logged."""
    monkeypatch.setattr(reader, "SILENT_S", 1000.0)
    urls = ",".join(server.url for server in cluster)
    load = Load(cluster[0].url, postgres_dsn, schema)
    async with load.host(nats_url=urls, nats_replicas=3) as runtime:
        await load.pump(runtime, 2)
        await load.settle(runtime)
        leader = (await load.api("STREAM.INFO.MAIL"))["cluster"]["leader"]
        lost = next(s for s in cluster if (name_of(s) == leader) == is_leader)
        load.nats_url = next(s for s in cluster if s is not lost).url
        await asyncio.to_thread(lost.kill)
        loop = asyncio.get_running_loop()
        lost_at = loop.time()
        for _ in range(3):
            sent_at = loop.time()
            await load.pump(runtime, 1)
            async with asyncio.timeout(STANDS_S):
                await load.until_handled(sum(load.expected.values()))
            sys.stdout.write(
                f"{sent_at - lost_at:.2f} s: stood for {loop.time() - sent_at:.2f} s\n"
            )
        await until(lambda: has_leaders(load, lost), "leaders were chosen")
        sys.stdout.write(f"{loop.time() - lost_at:.2f} s: leaders\n")
        await load.pump(runtime, 3)
        async with asyncio.timeout(STANDS_S):
            await load.until_handled(sum(load.expected.values()))
        await load.publish("crm", 3)
        await load.settle(runtime)

    assert await load.problems() == []
    # Stack traces of uvicorn and nats-py are not ours; one of ours asks for a report.
    ours = [record for record in caplog.records if record.name.startswith("callboard")]
    assert ours
    assert [
        record for record in ours if record.exc_info and record.levelno >= logging.WARNING
    ] == []
