"""`callboard doctor` on three real servers, on servers that are away, and on wrong settings."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import pytest

from actors._kernel.json import JsonValue
from actors._kernel.stores.data import VectorDocument
from broker import JetStreamTransport
from compose._diagnosis.finding import is_this_machine
from compose._diagnosis.postgres import _encryption, _role
from persistence._schema_files import LATER, NO_TRANSACTION, Migration, known_migrations
from persistence.postgres import open_postgres_vectors
from tests.harness.servers import freeze, thaw
from tests.harness.tools import postgres
from tests.integration.compose.commandline import Cli
from tests.integration.compose.stored import nats_client, redis_client
from tests.unit.documents import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from nats.aio.client import Client

    from tests.harness.servers import OwnNats, OwnPostgres, OwnRedis, TestNats, TestRedis

ROLE: Final = ROOT / "compose/postgres/init/role.sql"
ACCOUNTS: Final[JsonValue] = {
    "A": {"jetstream": "enabled", "users": [{"user": "u", "password": "p"}]}
}
AWAY = "127.0.0.1:1"


def limit(monkeypatch: pytest.MonkeyPatch, answer_s: float) -> None:
    """Let servers have so long for an answer."""
    monkeypatch.setattr("compose._diagnosis.nats.CONNECT_S", answer_s)
    monkeypatch.setattr("compose._diagnosis.others.ANSWER_S", answer_s)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is there is waited for on a busy machine too."""
    limit(monkeypatch, 20.0)


@pytest.fixture
def cli(postgres_dsn: str, schema: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Commands on the test's schema."""
    return Cli(postgres_dsn, schema, capsys)


@pytest.fixture
def environment(
    monkeypatch: pytest.MonkeyPatch, nats_server: TestNats, redis_server: TestRedis, namespace: str
) -> pytest.MonkeyPatch:
    """The environment names all servers."""
    monkeypatch.setenv("CALLBOARD_NATS_URL", nats_server.url)
    monkeypatch.setenv("CALLBOARD_REDIS_URL", redis_server.url)
    monkeypatch.setenv("CALLBOARD_NAMESPACE", namespace)
    return monkeypatch


def checks(cli: Cli) -> dict[str, Any]:
    """The findings by what they are about."""
    return {check["check"]: check for check in cli("doctor", "--json").data["checks"]}


async def make_streams(url: str, namespace: str, deployment: str) -> None:
    """What a host does when it connects."""
    transport = JetStreamTransport(url, namespace=namespace)
    async with transport.connect(deployment=deployment, on_nudge=lambda _: None):
        pass


async def deployment(cli: Cli) -> str:
    """The id of the test's database, once it has tables."""
    await cli.call("migrate")
    connection = await asyncpg.connect(cli.url)
    try:
        return str(await connection.fetchval(f'select id from "{cli.schema}".deployment'))
    finally:
        await connection.close()


async def update(client: Client, stream: str, **changes: object) -> None:
    """Change a stream as an operator would."""

    async def ask(what: str, body: bytes) -> Any:
        answer = await client.request(f"$JS.API.STREAM.{what}.{stream}", body, timeout=20)
        return json.loads(answer.data)

    info = await ask("INFO", b"{}")
    reply = await ask("UPDATE", json.dumps({**info["config"], **changes}).encode())
    assert "error" not in reply, reply


@pytest.mark.usefixtures("environment")
async def test_doctor_finds_three_servers_well(
    cli: Cli, nats_server: TestNats, namespace: str
) -> None:
    """What cannot be known is said to be not visible, and nothing is made."""
    mine = await deployment(cli)
    before = await asyncio.to_thread(checks, cli)
    await make_streams(nats_server.url, namespace, mine)
    after = await asyncio.to_thread(checks, cli)

    assert before["streams"]["level"] == "note"
    assert before["streams"]["streams"] == {}
    assert {name: after[name]["level"] for name in ("nats", "jetstream", "streams", "redis")} == {
        "nats": "ok",
        "jetstream": "ok",
        "streams": "ok",
        "redis": "ok",
    }
    assert "not visible" in after["nats durability"]["found"]
    mail = after["streams"]["streams"][f"{namespace}_MAIL"]
    assert (mail["persist_mode"], mail["deployment"], mail["differs"]) == ("async", mine, [])
    assert after["consumers"]["consumers"] == 0
    assert after["nats"]["round_trip_ms"] > 0
    assert after["redis"]["ping_ms"] > 0
    assert after["redis eviction"]["maxmemory_policy"] == "noeviction"
    assert after["redis persistence"]["appendonly"] is True


@pytest.mark.parametrize("variable", ["CALLBOARD_NATS_URL", "CALLBOARD_REDIS_URL"])
def test_a_server_that_is_away_is_one_finding(
    cli: Cli, environment: pytest.MonkeyPatch, variable: str
) -> None:
    """The others are looked at all the same; the address is named, never the password."""
    kind, scheme = ("nats", "nats") if "NATS" in variable else ("redis", "redis")
    environment.setenv(variable, f"{scheme}://me:secret@{AWAY}")
    cli("migrate")
    output = cli("doctor")
    findings = checks(cli)

    assert output.code == 1
    assert findings[kind]["level"] == "wrong"
    assert findings[kind]["reachable"] is False
    assert AWAY in findings[kind]["found"]
    assert findings[kind]["remedy"]
    assert findings["schema"]["level"] == "ok"
    assert findings["redis" if kind == "nats" else "nats"]["level"] == "ok"
    assert "secret" not in output.out + output.err


@pytest.mark.parametrize(
    ("location", "level"),
    [
        ("{folder}", "ok"),
        ("{folder}/not/there", "note"),
        (f"s3://me-bucket/in?endpoint=http://{AWAY}", "wrong"),
        ("me-bucket", "wrong"),
    ],
)
def test_a_place_for_artifacts_has_to_answer(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, location: str, level: str
) -> None:
    """A folder that is not there may be new, or not mounted. Nothing is written by looking."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    (tmp_path / "kept").mkdir()
    monkeypatch.setenv("CALLBOARD_ARTIFACTS", location.format(folder=tmp_path / "kept"))
    cli("migrate")
    output = cli("doctor", "--json")
    [finding] = [check for check in output.data["checks"] if check["check"] == "artifacts"]

    assert (finding["level"], finding["reachable"]) == (level, level == "ok")
    assert bool(finding["remedy"]) == (level != "ok")
    assert list((tmp_path / "kept").rglob("*")) == []
    assert "very-secret" not in output.out + output.err


@pytest.mark.usefixtures("environment")
def test_without_postgres_the_other_parts_are_checked(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code is that of every command whose database does not answer."""
    monkeypatch.setenv("CALLBOARD_START_WAIT_S", "0.2")
    output = cli.bare("doctor", "--json", "--postgres-url", f"postgresql://me:secret@{AWAY}/d")
    findings = {check["check"]: check for check in json.loads(output.out)["checks"]}

    assert output.code == 3
    assert findings["server"]["level"] == "wrong"
    assert AWAY in findings["server"]["found"]
    assert (findings["nats"]["level"], findings["redis"]["level"]) == ("ok", "ok")
    assert "secret" not in output.out + output.err


@pytest.mark.usefixtures("environment")
async def test_streams_that_are_not_as_they_must_be_are_wrong(
    cli: Cli, nats_server: TestNats, namespace: str
) -> None:
    """A changed setting, a stream that is gone, and a database that is not theirs."""
    await make_streams(nats_server.url, namespace, await deployment(cli))
    async with nats_client(nats_server.url) as client:
        await update(client, f"{namespace}_DEAD", max_age=10**9, duplicate_window=10**9)
        changed_finding = (await asyncio.to_thread(checks, cli))["streams"]
        await client.jetstream().delete_stream(f"{namespace}_TOPIC")
        deleted_finding = (await asyncio.to_thread(checks, cli))["streams"]
        await update(client, f"{namespace}_DEAD", metadata={"deployment": "another"})
        foreign = (await asyncio.to_thread(checks, cli))["streams"]

    assert changed_finding["level"] == deleted_finding["level"] == foreign["level"] == "wrong"
    assert f"{namespace}_DEAD: duplicate_window is 1000000000, must be" in changed_finding["found"]
    assert "max_age is 1000000000, must be 7776000000000000" in changed_finding["found"]
    assert deleted_finding["missing"] == ["TOPIC"]
    assert "another" in foreign["found"]
    assert "namespace" in foreign["remedy"]


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("plain", ["EDGE", "MAIL", "TOPIC", "DEAD"])
async def test_each_change_of_a_stream_is_named(
    cli: Cli, nats_server: TestNats, namespace: str, plain: str
) -> None:
    """What sends on, loses or shortens is wrong; a limit of bytes is the operator's, and told."""
    changes: dict[str, object] = {
        "republish": {"src": ">", "dest": f"{namespace}.copy.>"},
        "max_msgs": 5,
        "max_age": 10**9,
        "discard": "old" if plain in {"EDGE", "MAIL"} else "new",
        "max_msgs_per_subject": 2,
        "sources": [],
        "no_ack": True,
    }
    if plain == "DEAD":
        del changes["sources"]  # it has none
    async with nats_client(nats_server.url) as client:
        transport = JetStreamTransport(nats_server.url, namespace=namespace)
        async with transport.connect(deployment=await deployment(cli), on_nudge=lambda _: None):
            names = await client.jetstream().streams_info()
        name = next(
            stream.config.name
            for stream in names
            if f"{namespace}_{plain}" in str(stream.config.name)
        )
        before = (await asyncio.to_thread(checks, cli))["streams"]
        await update(client, str(name), max_bytes=10**9)
        limited_finding = (await asyncio.to_thread(checks, cli))["streams"]
        await update(client, str(name), duplicate_window=10**9 if plain == "EDGE" else 0, **changes)
        changed_finding = (await asyncio.to_thread(checks, cli))["streams"]

    assert (before["level"], limited_finding["level"], changed_finding["level"]) == (
        "ok",
        "note",
        "wrong",
    )
    assert f"{name}: max_bytes is 1000000000" in limited_finding["found"]
    differs = changed_finding["streams"][name]["differs"]
    assert {difference.partition(" is ")[0] for difference in differs} >= changes.keys()
    assert "callboard migrate --streams" in changed_finding["remedy"]


def test_a_nats_without_jetstream_is_wrong(
    cli: Cli, own_nats: OwnNats, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An account without it is as useless as a server without it."""
    accounts: JsonValue = {"PLAIN": {"users": [{"user": "u", "password": "p"}]}}
    server = own_nats(settings={"accounts": accounts, "no_auth_user": "u"})
    monkeypatch.setenv("CALLBOARD_NATS_URL", server.url)
    findings = checks(cli)

    assert findings["nats"]["level"] == "ok"
    assert findings["jetstream"]["level"] == "wrong"
    assert "jetstream" in findings["jetstream"]["remedy"]


@pytest.mark.parametrize("max_payload", [64 * 1024, 512 * 1024])
def test_a_nats_that_takes_too_small_messages_is_wrong(
    cli: Cli, own_nats: OwnNats, monkeypatch: pytest.MonkeyPatch, max_payload: int
) -> None:
    """Hosts refuse it, so both numbers and the setting are named."""
    server = own_nats(settings={"max_payload": max_payload})
    monkeypatch.setenv("CALLBOARD_NATS_URL", server.url)
    finding = checks(cli)["nats max_payload"]

    is_wrong = max_payload < 524288
    assert (finding["max_payload"], finding["needed"]) == (max_payload, 524288)
    assert finding["level"] == ("wrong" if is_wrong else "ok")
    assert ("max_payload: 524288 or more" in str(finding["remedy"])) == is_wrong


@pytest.mark.parametrize("interval", ["always", "2m0s"])
def test_sync_settings_are_seen_by_an_account_that_may(
    cli: Cli, own_nats: OwnNats, monkeypatch: pytest.MonkeyPatch, interval: str
) -> None:
    """The system account can share its settings with the hosts' account."""
    settings = "$SYS.REQ.SERVER.PING.VARZ"
    server = own_nats(
        settings={
            "system_account": "SYS",
            "no_auth_user": "u",
            "jetstream": {"sync_interval": interval},
            "accounts": {
                "SYS": {"exports": [{"service": settings}]},
                "RT": {
                    "jetstream": "enabled",
                    "users": [{"user": "u", "password": "p"}],
                    "imports": [{"service": {"account": "SYS", "subject": settings}}],
                },
            },
        }
    )
    monkeypatch.setenv("CALLBOARD_NATS_URL", server.url)
    finding = checks(cli)["nats durability"]

    assert (finding["sync_interval"], finding["level"]) == (
        ("always", "ok") if interval == "always" else ("120 s", "note")
    )


async def test_a_redis_that_evicts_is_a_note(
    cli: Cli, own_redis: OwnRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis is a hint beside the log: nothing is wrong, but somebody may want to know."""
    server = own_redis()
    async with redis_client(server.url) as client:
        await client.config_set("maxmemory-policy", "allkeys-lru")
        await client.config_set("appendonly", "no")
    monkeypatch.setenv("CALLBOARD_REDIS_URL", server.url)
    findings = await asyncio.to_thread(checks, cli)

    assert (findings["redis eviction"]["level"], findings["redis persistence"]["level"]) == (
        "note",
    ) * 2
    assert "noeviction" in findings["redis eviction"]["remedy"]


def test_a_server_that_hangs_is_not_waited_for_long(
    cli: Cli, own_nats: OwnNats, own_redis: OwnRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frozen servers take connections and say nothing: that is a finding within seconds."""
    servers = (own_nats(), own_redis())
    limit(monkeypatch, 1.0)
    monkeypatch.setenv("CALLBOARD_NATS_URL", servers[0].url)
    monkeypatch.setenv("CALLBOARD_REDIS_URL", servers[1].url)
    for server in servers:
        freeze(server)
    findings = checks(cli)
    for server in servers:
        thaw(server)

    assert (findings["nats"]["level"], findings["redis"]["level"]) == ("wrong", "wrong")


def test_a_postgres_that_may_lose_commits_is_wrong(
    own_postgres: OwnPostgres, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without fsync or synchronous commits a promise to an agent may be broken."""
    levels = [
        checks(Cli(own_postgres(durable=durable).url, "callboard", capsys))["durability"]["level"]
        for durable in (True, False)
    ]

    assert levels == ["ok", "wrong"]


@pytest.mark.parametrize(
    "settings", [{}, {"accounts": ACCOUNTS, "no_auth_user": "u"}], ids=["none", "one for everybody"]
)
def test_a_nats_without_authentication_is_reported(
    cli: Cli, own_nats: OwnNats, monkeypatch: pytest.MonkeyPatch, settings: dict[str, JsonValue]
) -> None:
    """On this machine it is a note, with the command that prints accounts."""
    monkeypatch.setenv("CALLBOARD_NATS_URL", own_nats(settings=settings).url)
    finding = checks(cli)["nats logins"]

    assert (finding["needed"], finding["level"]) == (False, "note")
    assert "nats-config" in finding["remedy"]


def test_a_file_that_is_missing_is_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that hosts need is wrong; what they start without is a note."""
    cli("migrate")
    number = known_migrations()[-1].version + 1
    levels: list[str] = []
    for first_line in (NO_TRANSACTION, LATER, ""):
        more = Migration(number, f"{number:04}_more", first_line)
        migrations = [*known_migrations(), more]
        monkeypatch.setattr(
            "compose._diagnosis.postgres.known_migrations", lambda migrations=migrations: migrations
        )
        finding = checks(cli)["schema"]
        levels.append(finding["level"])
        assert finding["missing"] == [more.name]
        assert more.name in finding["found"]
        assert finding["remedy"] == "callboard migrate"

    assert levels == ["note", "note", "wrong"]


async def test_a_function_that_is_another_one_is_named(cli: Cli, postgres_dsn: str) -> None:
    """As its file; `callboard migrate` applies that one."""
    await cli.call("migrate")
    await execute(
        postgres_dsn,
        f"update {cli.schema}.schema_functions set checksum = 'x' where name = 'commit_runs'",
    )
    findings = await asyncio.to_thread(checks, cli)

    assert (findings["schema"]["level"], findings["schema"]["missing"]) == (
        "wrong",
        ["functions/commit_runs"],
    )
    assert findings["schema"]["remedy"] == "callboard migrate"
    assert (await cli.call("migrate", "--json")).data["applied"] == ["functions/commit_runs"]


async def test_the_role_of_the_compose_file_owns_its_schema_only(
    own_postgres: OwnPostgres, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It migrates, its back-up is restored as the page says, it is nobody elsewhere; a superuser is named."""
    server = own_postgres()
    admin = f"{server.url.rpartition('/')[0]}/callboard"
    postgres("psql", "-c", "create database callboard", server.url)
    superuser = (await asyncio.to_thread(checks, Cli(admin, "callboard", capsys)))["role"]
    script = ROLE.read_text(encoding="utf-8")
    # Here the superuser logs in by a password, which it keeps.
    role_script = script.replace("alter role current_user password null;", "")
    assert role_script != script
    init = tmp_path / "role.sql"
    init.write_text(role_script)
    postgres("psql", "-v", "ON_ERROR_STOP=1", "-f", str(init), admin, ROLE_PASSWORD="p4ss")
    mine = f"postgresql://callboard:p4ss@127.0.0.1:{server.port}/callboard"
    cli = Cli(mine, "callboard", capsys)
    assert (await cli.call("migrate")).code == 0
    dump = str(tmp_path / "dump")
    postgres("pg_dump", "-Fc", "-f", dump, mine)
    postgres("psql", "-c", "drop schema callboard cascade", admin)
    postgres("pg_restore", "-d", admin, dump)
    findings = await asyncio.to_thread(checks, cli)
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await execute(mine, "create table public.loot (x int)")

    assert (superuser["level"], superuser["superuser"]) == ("note", True)
    assert "owns the schema" in superuser["remedy"]
    assert (findings["role"]["role"], findings["role"]["superuser"]) == ("callboard", False)
    assert (findings["schema"]["level"], findings["encryption"]["level"]) == ("ok", "ok")


def test_embeddings_are_looked_at_where_a_store_keeps_some(
    cli: Cli, plain_database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Arrays are a note: the tables were made while nobody could have pgvector."""
    plain = Cli(plain_database, "doctor", capsys)
    for each_cli in (cli, plain):
        each_cli("migrate")
        assert "embeddings" not in checks(each_cli)

    asyncio.run(_keep_a_document(cli.url, cli.schema))
    asyncio.run(_keep_a_document(plain_database, "doctor"))

    assert checks(cli)["embeddings"]["found"].startswith("pgvector ")
    finding = checks(plain)["embeddings"]
    assert (finding["level"], finding["arrays"]) == ("note", ["vector_documents"])
    assert "create extension vector" in finding["remedy"]


def test_a_large_collection_without_an_index_is_a_note(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until its index is built."""
    asyncio.run(_keep_a_document(cli.url, cli.schema, "b"))
    asyncio.run(execute(cli.url, f"analyze {cli.schema}.vector_documents"))
    assert "searches" not in checks(cli)
    monkeypatch.setattr("compose._diagnosis.postgres.EXACT_ROWS", 1)

    finding = checks(cli)["searches"]
    assert (finding["level"], finding["without_index"]) == ("note", 1)
    assert "documents 'default' of default: 2" in finding["found"]
    assert finding["remedy"] == "callboard indexes build"
    cli("indexes", "build", "--rows", "1")
    assert checks(cli)["searches"]["level"] == "ok"


async def _keep_a_document(url: str, schema: str, *others: str) -> None:
    async with open_postgres_vectors(url, schema=schema) as vectors:
        await vectors.add(
            [
                VectorDocument(id=id_, content="north", embedding=(0.0, 1.0))
                for id_ in ("a", *others)
            ]
        )


def test_a_server_elsewhere_is_judged_harder() -> None:
    """Over a network a superuser is wrong, and clear text is a note."""
    near, far = (
        (
            _role("r", is_superuser=True, is_here=is_here),
            _encryption(is_encrypted=False, is_here=is_here),
        )
        for is_here in (True, False)
    )

    assert [finding.level for finding in near] == ["note", "ok"]
    assert [finding.level for finding in far] == ["wrong", "note"]
    assert is_this_machine("127.0.0.1")
    assert is_this_machine("::1")
    assert not is_this_machine("10.0.0.7")
    assert not is_this_machine("nats.nats.svc")


async def execute(url: str, statement: str) -> None:
    """Execute a statement on a connection of its own."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
