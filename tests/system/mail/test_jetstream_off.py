"""NATS answers while its JetStream does not, or stores nothing: readiness and doctor report it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.json import JsonValue
from actors._runtime.loop.clock import SystemClock
from actors.errors import BrokerError
from broker._nats import requests as api
from compose._assembly.runtime import build_runtime
from compose._assembly.settings import Settings
from compose._diagnosis.nats import diagnose_nats
from compose._host.metrics import HostProbes
from tests.harness.slow import IS_SLOW
from tests.integration.broker import lines
from tests.system.hosts.test_full_disk import small_disk
from tests.system.mailing import Load, until

if TYPE_CHECKING:
    from pathlib import Path

    from compose.embedded import NatsServer
    from tests.harness.servers import OwnNats

WAY_OUT = "free disk space, then restart it"

HEALTH = "$SYS.REQ.SERVER.PING.HEALTHZ"
SHARED_HEALTH: dict[str, JsonValue] = {
    "system_account": "SYS",
    "no_auth_user": "u",
    "accounts": {
        "SYS": {"exports": [{"service": HEALTH}]},
        "RT": {
            "jetstream": "enabled",
            "users": [{"user": "u", "password": "p"}],
            "imports": [{"service": {"account": "SYS", "subject": HEALTH}}],
        },
    },
}
"""A server whose accounts may request its state."""


def of_account(jetstream: object) -> Any:
    """Return accounts of a server: one account for all users."""
    account = {"users": [{"user": "u", "password": "p"}]}
    return {"RT": account if jetstream is None else {"jetstream": jetstream, **account}}


@pytest.fixture
def nats(own_nats: OwnNats) -> NatsServer:
    """Yield a server whose account has JetStream at first."""
    return own_nats(settings={"accounts": of_account("enabled"), "no_auth_user": "u"})


@pytest.fixture
def load(nats: NatsServer, postgres_dsn: str, schema: str) -> Load:
    """Nodes on that server."""
    return Load(nats.url, postgres_dsn, schema)


def give(server: NatsServer, jetstream: object) -> None:
    """Change the account's JetStream while the server runs."""
    file = server.data_dir / "server.conf"
    config = json.loads(file.read_text()) | {"accounts": of_account(jetstream)}
    file.write_text(json.dumps(config))
    os.kill(server.pid, signal.SIGHUP)


async def found_by_doctor(server: NatsServer) -> Any:
    """Return doctor's findings about JetStream."""
    return next(check for check in await diagnose_nats(server.url) if check.check == "jetstream")


async def test_a_host_reports_a_disabled_jetstream_and_continues_with_it(
    load: Load, nats: NatsServer
) -> None:
    """Readiness and doctor name it and the remedy; nothing is lost, doubled or out of order."""
    probes = HostProbes(SystemClock())

    async def is_named() -> bool:
        return any("JetStream is off" in r["problem"] for r in await probes.reasons())

    async def is_well() -> bool:  # messages may have gone by the database before the broker is back
        return not await probes.reasons()

    async with load.host() as runtime:
        probes.serving(runtime)
        await load.publish("crm", 3)
        give(nats, None)
        await load.pump(runtime, 3)
        await until(is_named, "readiness names it")
        [reason] = await probes.reasons()
        check = await found_by_doctor(nats)
        give(nats, "enabled")
        await load.settle(runtime)

        await until(is_well, "readiness names nothing any more")
    assert (reason["check"], check.level) == ("nats", "wrong")
    assert WAY_OUT in reason["problem"]
    assert WAY_OUT in check.remedy
    assert await load.problems() == []


async def test_a_stream_that_answers_everything_but_publishes_is_named(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like a stream after a full disk, also when space is free again."""
    probes = HostProbes(SystemClock())
    monkeypatch.setattr(api, "PUBLISH_LIMIT_S", 0.2)

    async def is_named() -> bool:
        return any(WAY_OUT in reason["problem"] for reason in await probes.reasons())

    async with load.host() as runtime:
        probes.serving(runtime)
        config = (await load.api("STREAM.INFO.MAIL"))["config"]
        await load.api("STREAM.UPDATE.MAIL", {**config, "no_ack": True})
        await load.pump(runtime, 1)
        await until(is_named, "readiness names it")
        await load.api("STREAM.UPDATE.MAIL", config)
        await load.settle(runtime)

    assert await load.problems() == []


@pytest.mark.parametrize("jetstream", [None, {"max_streams": 1}])
async def test_the_error_of_a_failed_start_has_the_last_problem(
    nats: NatsServer, postgres_dsn: str, schema: str, jetstream: object
) -> None:
    """The error is not that the server is absent."""
    give(nats, jetstream)
    words = "JetStream not enabled" if jetstream is None else "maximum number of streams reached"
    settings = Settings(db_schema=schema, start_wait_s=1)

    with pytest.raises(BrokerError, match=words):
        async with build_runtime(nats.url, postgres_dsn, settings=settings):
            pass


async def test_an_account_with_few_consumers_serves_as_many(nats: NatsServer) -> None:
    """The mail stream requests as many as the account has, now and after a change.

    Other streams set no limit.
    """
    for allowed in (40, 100, -1):
        give(nats, {"max_consumers": allowed})
        async with asyncio.timeout(20):
            while True:
                with suppress(BrokerError):
                    async with lines.connect(nats.url) as connection:
                        info_request = connection._requests.api_or_raise("STREAM.INFO.MAIL", {})
                        max_consumers = (await info_request)["config"]["max_consumers"]
                        if max_consumers == (allowed if allowed > 0 else 6000):
                            break


@pytest.mark.skipif(not IS_SLOW, reason="mounts a file system: CALLBOARD_TEST_SLOW=1")
@pytest.mark.parametrize("sync", ["always", "2m"])
@pytest.mark.timeout(120)
async def test_a_server_after_a_full_disk_is_reported_until_its_restart(  # noqa: PLR0917 - fixtures
    own_nats: OwnNats, postgres_dsn: str, schema: str, tmp_path: Path, sync: str
) -> None:
    """Free space is not enough: a stream stores nothing, or JetStream does not answer at all."""
    probes = HostProbes(SystemClock())

    async def is_named() -> bool:
        return any(WAY_OUT in reason["problem"] for reason in await probes.reasons())

    with small_disk(tmp_path / "small") as small:
        jetstream_settings: dict[str, JsonValue] = {
            "store_dir": str(small / "store"),
            "max_file_store": 10**9,
            "sync_interval": sync,
        }
        server = own_nats(settings={**SHARED_HEALTH, "jetstream": jetstream_settings})
        load = Load(server.url, postgres_dsn, schema)
        async with load.host() as runtime:
            probes.serving(runtime)
            await load.publish("crm", 3)
            await load.settle(runtime)
            filler = small / "filler"
            with suppress(OSError), filler.open("wb", buffering=0) as file:
                while True:
                    file.write(b"x" * 4096)
            await load.pump(runtime, 20)
            await until(is_named, "readiness names it")
            filler.unlink()
            await load.pump(runtime, 1)
            await until(is_named, "it is named all the same")
            check = await found_by_doctor(server)
            await asyncio.to_thread(server.restart)
            await load.settle(runtime)
        await asyncio.to_thread(server.close)

    assert (check.level, WAY_OUT in check.remedy) == ("wrong", True)
    assert await load.problems() == []
