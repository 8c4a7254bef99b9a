"""Rights of a host's restricted login with the shipped configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId, HostIncarnation
from actors._runtime.delivery import mail_service as mail
from actors._runtime.loop.clock import SystemClock
from actors._runtime.registry import FunctionAgent
from broker import JetStreamTransport, NotPermittedError
from compose import Settings
from compose._assembly.nats_config import NatsAccounts
from compose._assembly.runtime import build_runtime
from compose._diagnosis.nats import diagnose_nats
from compose._host.metrics import HostProbes
from tests.harness.rawnats import raw_nats
from tests.integration.broker import lines
from tests.system.secured import make_streams, secured_server, url_of
from tests.system.waiting import until

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from broker import JetStreamConnection
    from tests.harness.servers import TestPostgres

AGENT = AgentId("desk", "1")


def as_host(
    port: int, owner: str, received_nudges: list[Nudge] | None = None, namespace: str = ""
) -> AbstractAsyncContextManager[JetStreamConnection]:
    """Yield a connection with the host's login."""
    nudges: list[Nudge] = [] if received_nudges is None else received_nudges
    transport = JetStreamTransport(
        url_of(port, "host"), namespace=namespace, owner=HostIncarnation(owner)
    )
    return transport.connect(deployment=lines.DEPLOYMENT, on_nudge=nudges.append)


async def made_by_admin(port: int, namespace: str = "") -> None:
    """Create the streams with the admin's login."""
    transport = JetStreamTransport(url_of(port, "admin"), namespace=namespace)
    async with transport.connect(deployment=lines.DEPLOYMENT, on_nudge=lambda _: None):
        pass


@pytest.mark.parametrize("namespace", ["", "shop"])
async def test_a_hosts_login_is_enough_for_the_stream_mail(tmp_path: Path, namespace: str) -> None:
    """Streams that the admin made, messages, posts, dead letters, purges, notifications."""
    nudges: list[Nudge] = []
    async with secured_server(tmp_path, NatsAccounts(namespace=namespace)) as port:
        await made_by_admin(port, namespace)
        async with (
            as_host(port, "one", nudges, namespace) as first,
            as_host(port, "two", namespace=namespace) as second,
        ):
            await lines.send_all(first, [lines.row(n, AGENT) for n in (1, 2)])
            await first.send(lines.row(3, AGENT, dead_letter="broken"))
            async with lines.reading(second, lines.shard_of(AGENT)) as batches:
                taken_batches = await lines.take(second, batches, 2)
            assert sorted(lines.numbers(taken_batches)) == [1, 2]
            assert await first.stored_at(1) is not None
            assert await first.waiting() == [AGENT]
            assert await second.purge(2) == 1
            await second.nudge(HostIncarnation("one"), Nudge("mail", AGENT))
            await until(lambda: bool(nudges), "a nudge")
            with pytest.raises(NotPermittedError, match=r"stream\.delete"):
                await second.forget_stream(await second.stream_state())


async def test_a_host_that_may_create_streams_recreates_the_stream_mail(tmp_path: Path) -> None:
    """If an operator has granted it, the admin is not needed."""
    async with secured_server(tmp_path, NatsAccounts(hosts_make_streams=True)) as port:
        async with as_host(port, "one") as host:
            await host.send(lines.row(1, AGENT))
            await host.forget_stream(await host.stream_state())
        async with as_host(port, "one") as again:
            assert await again.send(lines.row(2, AGENT)) == 1


@pytest.mark.parametrize("user", ["host", "admin"])
async def test_a_hosts_login_is_enough_for_doctor(tmp_path: Path, user: str) -> None:
    """With either login it reads the streams and reports no problem."""
    async with secured_server(tmp_path) as port:
        await made_by_admin(port)
        checks = await diagnose_nats(url_of(port, user), deployment=lines.DEPLOYMENT)

    levels = {check.check: check.level for check in checks}
    assert levels["jetstream"] == levels["streams"] == levels["nats logins"] == "ok", checks


async def test_the_error_of_a_host_without_the_right_names_the_admin(tmp_path: Path) -> None:
    """Nothing is created."""
    async with secured_server(tmp_path) as port:
        with pytest.raises(NotPermittedError, match=r"stream\.create") as caught:
            async with as_host(port, "one"):
                pass

    assert "callboard migrate --streams" in caught.value.remedy


async def test_a_rolled_back_mail_stream_waits_for_the_admin_and_loses_nothing(
    tmp_path: Path, postgres_server: TestPostgres, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host with a host's login stops reading; external messages sent meanwhile are handled once."""
    seen: list[object] = []
    probes = HostProbes(SystemClock())
    monkeypatch.setattr(mail, "UPKEEP_S", 0.05)
    monkeypatch.setattr(mail, "GUARD_S", 0.1)

    async def desk(_: RunContext, inbox: list[Message]) -> None:
        seen.extend(message.payload for message in inbox)

    async def is_named() -> bool:
        return any("migrate --streams" in reason["problem"] for reason in await probes.reasons())

    async def are_handled() -> bool:
        return len(seen) >= 4

    async with secured_server(tmp_path) as port:
        await make_streams(port, postgres_server.url, schema)
        settings = Settings(db_schema=schema)
        async with (
            build_runtime(url_of(port, "host"), postgres_server.url, settings=settings) as runtime,
            raw_nats(url_of(port, "crm"), inbox="_INBOX_crm") as crm,
        ):
            probes.serving(runtime)
            await runtime.register(FunctionAgent(AGENT, desk))
            for n in range(3):
                await crm.publish("agent.v1.default.desk.1.ext.crm", b'{"n": %d}' % n)
            await until(lambda: len(seen) == 3, "all are handled")
            async with raw_nats(url_of(port, "host"), inbox="_INBOX_host.t") as thief:
                await thief.request("$JS.API.STREAM.PURGE.MAIL", b"{}")
            await until(is_named, "the host says who has to make it anew")
            await crm.publish("agent.v1.default.desk.1.ext.crm", b'{"n": 3}')
            await make_streams(port, postgres_server.url, schema)
            await until(are_handled, "the host goes on")

    assert seen == [{"n": n} for n in range(4)]
