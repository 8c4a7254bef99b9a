"""`callboard doctor`: is everything all right?"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from actors.kernel.runtime.ids import HostIncarnation
from compose.commands.exits import Exit
from compose.commands.output import print_json, print_table, say
from compose.commands.target import HERE, Target
from compose.diagnosis import Finding, deployment_of, diagnose_postgres
from compose.local import local_servers
from compose.settings import NATS_LOGIN
from persistence.errors import DatabaseUnreachableError
from persistence.postgres import StoreSettings
from persistence.postgres.opening import wait_for_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from compose.diagnosis import Level
    from compose.settings import Settings

_MARKS: dict[Level, str] = {"ok": "✓", "note": "·", "wrong": "✗"}


async def doctor(*, target: Target = HERE) -> int:
    """Look at the servers, the hosts and what waits; exit with 1 when something needs you.

    PostgreSQL: server version, durability (fsync, synchronous_commit), clock, schema version, hosts
    alive, shards without an owner, types with waiting runs or messages that nobody serves, parked
    runs, dead letters. NATS, where CALLBOARD_NATS_URL names one: version, JetStream, sync_interval,
    the configuration of the streams, consumers. Redis, where CALLBOARD_REDIS_URL names one: version,
    eviction, persistence. Changes nothing.

    Example: `callboard doctor --data ./data`
    """
    async with _servers(target) as settings:
        findings, deployment = await _postgres(settings)
        is_reachable = findings[0].data.get("reachable", True)
        # Their drivers are extras: needed where such a server is named, and not elsewhere.
        if settings.nats_url is not None:
            from compose.diagnosis.nats import diagnose_nats  # noqa: PLC0415
            from compose.nats_server import nats_server  # noqa: PLC0415

            findings += await diagnose_nats(
                nats_server(settings.nats_url, settings),
                namespace=settings.namespace, deployment=deployment,
            )  # fmt: skip
        if settings.redis_url is not None:
            from compose.diagnosis.redis import diagnose_redis  # noqa: PLC0415

            findings += await diagnose_redis(settings.redis_url)
    _print(findings, as_json=target.json)
    if not is_reachable:
        return Exit.UNREACHABLE
    return Exit.FAILED if any(one.level == "wrong" for one in findings) else Exit.OK


@asynccontextmanager
async def _servers(target: Target) -> AsyncIterator[Settings]:
    """Yield settings that name the servers; those of a folder run meanwhile."""
    settings = target.client_settings()
    if settings.postgres_url is not None:
        yield settings
        return
    assert settings.data_dir is not None
    async with local_servers(settings.data_dir) as local:
        yield settings.model_copy(
            update={
                "postgres_url": local.postgres_url, "nats_url": local.nats_url,
                "redis_url": local.redis_url, **dict.fromkeys(NATS_LOGIN),
            }
        )  # fmt: skip


async def _postgres(settings: Settings) -> tuple[list[Finding], str | None]:
    """Return the findings, and the id of the database if it can be known."""
    assert settings.postgres_url is not None
    store_settings = StoreSettings(
        url=settings.postgres_url, owner=HostIncarnation("doctor"), schema=settings.db_schema,
        start_wait_s=settings.start_wait_s,
    )  # fmt: skip
    try:
        connection = await wait_for_server(store_settings)
    except DatabaseUnreachableError as exc:
        found = Finding(
            check="server", level="wrong", found=str(exc), data={"reachable": False},
            remedy="start PostgreSQL, or correct CALLBOARD_POSTGRES_URL",
        )  # fmt: skip
        return [found], None
    try:
        return await diagnose_postgres(connection), await deployment_of(connection)
    finally:
        await connection.close(timeout=2)


def _print(findings: list[Finding], *, as_json: bool) -> None:
    wrong = [one for one in findings if one.level == "wrong"]
    if as_json:
        checks = [
            {
                "check": one.check, "level": one.level, "found": one.found,
                "remedy": one.remedy or None, **one.data,
            }
            for one in findings
        ]  # fmt: skip
        print_json({"healthy": not wrong, "checks": checks})
    else:
        rows = [(_MARKS[one.level], one.check, one.found, one.remedy) for one in findings]
        print_table(("", "check", "found", "what to do"), rows, empty="")
        say("all is well" if not wrong else f"{len(wrong)} thing(s) need you")
