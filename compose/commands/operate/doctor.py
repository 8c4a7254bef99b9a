"""`callboard doctor`: check servers, hosts and waiting work."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict

from actors.kernel.runtime.ids import HostIncarnation
from compose.assembly.local import local_servers
from compose.assembly.settings import NATS_LOGIN, Settings
from compose.commands.options import HERE, Target
from compose.commands.output import Exit, picked, print_json
from compose.commands.terminal import print_table, say
from compose.diagnosis import Finding, Level, deployment_of, diagnose_postgres, judge
from persistence.errors import DatabaseUnreachableError
from persistence.postgres import StoreSettings
from persistence.postgres.opening import wait_for_server

_MARKS: dict[Level, str] = {"ok": "✓", "note": "·", "wrong": "✗"}


async def doctor(*, target: Target = HERE) -> int:
    """Check the servers, the hosts and the waiting work. The exit code is 1 if a person must act.

    PostgreSQL: server version, durability (fsync, synchronous_commit), clock, encryption, whether the
    role is a superuser, schema version, live hosts, shards without an owner, types with waiting runs
    or messages that no host serves, parked runs, dead letters. NATS, if CALLBOARD_NATS_URL names
    a server: version, whether it requires a login, JetStream, sync_interval, the configuration of the
    streams, consumers. Redis, if CALLBOARD_REDIS_URL names a server: version, eviction, persistence.
    The bucket or folder of CALLBOARD_ARTIFACTS: whether it answers. The command changes nothing.

    Example: `callboard doctor --data ./data`
    """
    async with _servers(target) as settings:
        findings, deployment = await _postgres(settings)
        is_reachable = findings[0].data.get("reachable", True)
        # The drivers are extras, so each is imported only if the settings name such a server.
        if settings.nats_url is not None:
            from compose.assembly.nats import nats_server  # noqa: PLC0415
            from compose.diagnosis.nats import diagnose_nats  # noqa: PLC0415

            findings += await diagnose_nats(
                nats_server(settings.nats_url, settings),
                namespace=settings.namespace,
                deployment=deployment,
            )
        if settings.redis_url is not None:
            from compose.diagnosis.redis import diagnose_redis  # noqa: PLC0415

            findings += await diagnose_redis(settings.redis_url)
        if settings.artifacts is not None:
            from compose.diagnosis.artifacts import diagnose_artifacts  # noqa: PLC0415

            findings += await diagnose_artifacts(settings.artifacts)
    _print(findings, as_json=target.json)
    if not is_reachable:
        return Exit.UNREACHABLE
    return Exit.FAILED if any(one.level == "wrong" for one in findings) else Exit.OK


@asynccontextmanager
async def _servers(target: Target) -> AsyncIterator[Settings]:
    """Yield settings with the servers' URLs. Servers of a data folder run until the caller is done."""
    settings = target.client_settings()
    if settings.postgres_url is not None:
        yield settings
        return
    assert settings.data_dir is not None
    async with local_servers(settings.data_dir) as local:
        yield settings.model_copy(update={**asdict(local), **dict.fromkeys(NATS_LOGIN)})


async def _postgres(settings: Settings) -> tuple[list[Finding], str | None]:
    """Return the findings, and the id of the database, or None if the database does not answer."""
    assert settings.postgres_url is not None
    store_settings = StoreSettings(
        url=settings.postgres_url,
        owner=HostIncarnation("doctor"),
        schema=settings.db_schema,
        start_wait_s=settings.start_wait_s,
    )
    try:
        connection = await wait_for_server(store_settings)
    except DatabaseUnreachableError as exc:
        remedy = "start PostgreSQL, or correct CALLBOARD_POSTGRES_URL"
        return [judge("server", str(exc), {"reachable": False}, wrong=True, remedy=remedy)], None
    try:
        return await diagnose_postgres(connection), await deployment_of(connection)
    finally:
        await connection.close(timeout=2)


def _print(findings: list[Finding], *, as_json: bool) -> None:
    wrong = [one for one in findings if one.level == "wrong"]
    if as_json:
        checks = [
            {**picked(one, "check level found"), "remedy": one.remedy or None, **one.data}
            for one in findings
        ]
        print_json({"healthy": not wrong, "checks": checks})
    else:
        rows = [(_MARKS[one.level], one.check, one.found, one.remedy) for one in findings]
        print_table(("", "check", "found", "what to do"), rows, empty="")
        say("no problems found" if not wrong else f"{len(wrong)} problem(s) need an operator")
