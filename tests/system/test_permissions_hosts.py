"""What a host's restricted login is enough for, and what it is not: on the shipped configuration."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from actors.kernel.runtime.ids import AgentId, HostIncarnation
from actors.kernel.runtime.store import Nudge
from broker import JetStreamTransport, NotPermittedError
from compose.cli import run
from compose.diagnosis.nats import diagnose_nats
from compose.nats_config import NatsAccounts
from tests.harness.rawnats import raw_nats
from tests.integration.broker import lines
from tests.system.secured import secured_server, url_of
from tests.system.waiting import until

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from broker import JetStreamConnection
    from tests.harness.servers import TestPostgres

AGENT = AgentId("desk", "1")


def as_host(
    port: int,
    owner: str,
    heard: list[Nudge] | None = None,
    namespace: str = "",
    *,
    deployment: str = lines.DEPLOYMENT,
) -> AbstractAsyncContextManager[JetStreamConnection]:
    """A connection with the host's login."""
    nudges: list[Nudge] = [] if heard is None else heard
    transport = JetStreamTransport(
        url_of(port, "host"), namespace=namespace, owner=HostIncarnation(owner)
    )
    return transport.connect(deployment=deployment, on_nudge=nudges.append)


@pytest.mark.parametrize("namespace", ["", "shop"])
async def test_a_hosts_login_is_enough_for_mail(tmp_path: Path, namespace: str) -> None:
    """Streams, mail, posts, dead letters, purges, nudges; and MAIL made anew when it was rolled back."""
    heard: list[Nudge] = []
    async with (
        secured_server(tmp_path, NatsAccounts(namespace=namespace)) as port,
        as_host(port, "one", heard, namespace) as one,
        as_host(port, "two", namespace=namespace) as two,
    ):
        await lines.send_all(one, [lines.row(n, AGENT) for n in (1, 2)])
        await one.send(lines.row(3, AGENT, dead_letter="broken"))
        async with lines.reading(two, lines.shard_of(AGENT)) as batches:
            taken = await lines.take(two, batches, 2)
        assert sorted(lines.numbers(taken)) == [1, 2]
        assert await one.stored_at(1) is not None
        assert await one.waiting() == [AGENT]
        assert await two.purge(2) == 1
        await two.nudge(HostIncarnation("one"), Nudge("mail", AGENT))
        await until(lambda: bool(heard), "a nudge")
        await two.forget_stream(await two.stream_state())
        async with as_host(port, "two", namespace=namespace) as again:
            assert await again.send(lines.row(4, AGENT)) == 1


@pytest.mark.parametrize("user", ["host", "admin"])
async def test_doctor_needs_no_more(tmp_path: Path, user: str) -> None:
    """With either login it sees the streams and finds nothing wrong with them."""
    async with secured_server(tmp_path) as port:
        async with as_host(port, "one"):
            pass
        found = await diagnose_nats(url_of(port, user), deployment=lines.DEPLOYMENT)

    levels = {one.check: one.level for one in found}
    assert levels["jetstream"] == levels["streams"] == "ok", found


async def test_a_host_that_may_not_make_streams_says_who_has_to(
    tmp_path: Path, postgres_server: TestPostgres, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`callboard migrate --streams` with the admin's login makes them; then the host's is enough."""
    accounts = NatsAccounts(hosts_make_streams=False)
    async with secured_server(tmp_path, accounts) as port:
        with pytest.raises(NotPermittedError, match=r"stream\.create") as caught:
            async with as_host(port, "one"):
                pass
        monkeypatch.setenv("CALLBOARD_NATS_URL", url_of(port, "admin"))
        where = ["--postgres-url", postgres_server.url, "--schema", schema]
        assert await asyncio.to_thread(run, ["migrate", "--streams", *where]) == 0
        async with raw_nats(url_of(port, "admin"), inbox="_INBOX_admin") as admin:
            info = json.loads((await admin.request("$JS.API.STREAM.INFO.MAIL")).body)
        deployment = info["config"]["metadata"]["deployment"]
        async with as_host(port, "one", deployment=deployment) as host:
            await host.send(lines.row(1, AGENT))
            await host.forget_stream(await host.stream_state())
        async with as_host(port, "one", deployment=deployment) as host:
            assert await host.send(lines.row(1, AGENT)) == 1

    assert "callboard migrate --streams" in caught.value.remedy
