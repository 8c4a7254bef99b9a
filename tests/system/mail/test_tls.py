"""Authentication between processes and NATS: TLS, nkeys, credentials files."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import nkeys
import pytest
import trustme
from nacl.utils import random as random_bytes

from actors._kernel.runtime.ids import AgentId
from actors._runtime.registry import FunctionAgent
from actors.errors import ContractError, PersistenceError
from broker import JetStreamTransport, UnreachableError
from broker._nats import client as nats_client
from compose import Settings
from compose._assembly.gateway import nats_server
from compose._assembly.nats_config import HOST, NatsAccounts
from compose._assembly.runtime import build_postgres_runtime
from compose._assembly.settings import read_settings
from tests.integration.broker import lines
from tests.integration.broker.lines import plain_server
from tests.system.secured import secured_server, url_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.harness.servers import TestPostgres, TestRedis


async def works(url: str, settings: Settings) -> bool:
    """Log in as a host does, create the streams and send a message."""
    transport = JetStreamTransport(nats_server(url, settings, connect_timeout_s=10))
    async with transport.connect(
        deployment=lines.DEPLOYMENT, on_nudge=lambda _: None
    ) as connection:
        return await connection.send(lines.row(1, AgentId("desk", "1"))) > 0


class Papers:
    """A CA, the server's certificate for 127.0.0.1 and a host's, as files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        authority = trustme.CA()
        self.ca = folder / "ca.pem"
        authority.cert_pem.write_to_path(str(self.ca))
        self.server = self._written(folder / "server", authority.issue_cert("127.0.0.1"))
        self.host = self._written(folder / "host", authority.issue_cert("host@callboard"))

    @staticmethod
    def _written(stem: Path, issued: trustme.LeafCert) -> tuple[Path, Path]:
        cert, key = stem.with_suffix(".pem"), stem.with_suffix(".key")
        issued.cert_chain_pems[0].write_to_path(str(cert))
        issued.private_key_pem.write_to_path(str(key))
        return cert, key

    def settings(self, **changed: Any) -> Settings:
        """Settings of a host that trusts this CA and has a certificate of it."""
        cert, key = self.host
        values = {"nats_tls_ca": self.ca, "nats_tls_cert": cert, "nats_tls_key": key, **changed}
        return Settings(**values)


@asynccontextmanager
async def tls_server(folder: Path, papers: Papers) -> AsyncIterator[int]:
    """Yield the port of a server that requires encryption and a certificate of its own CA."""
    cert, key = papers.server
    config = f"""
      jetstream {{ store_dir: {json.dumps(str(folder / "store"))} }}
      tls {{ cert_file: "{cert}", key_file: "{key}", ca_file: "{papers.ca}", verify: true }}
    """
    async with plain_server(folder, config) as port:
        yield port


async def test_mutual_tls_admits_only_clients_of_the_ca(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a client with a certificate of the CA that verifies the server's can connect."""
    # Closing a failed handshake takes as long as it is given.
    monkeypatch.setattr(nats_client, "CLOSE_LIMIT_S", 0.05)
    papers, strangers = Papers(tmp_path / "ours"), Papers(tmp_path / "theirs")
    async with tls_server(tmp_path, papers) as port:
        url = f"nats://127.0.0.1:{port}"
        assert await works(url, papers.settings())
        assert await works(url.replace("nats", "tls"), papers.settings())
        cert, key = strangers.host
        for wrong in (
            papers.settings(nats_tls_cert=None, nats_tls_key=None),
            papers.settings(nats_tls_cert=cert, nats_tls_key=key),
            papers.settings(nats_tls_ca=strangers.ca),
            Settings(),
        ):
            with pytest.raises(UnreachableError) as caught:
                await works(url, wrong)
            assert "\n" not in str(caught.value)
            assert "CALLBOARD_NATS_TLS_" in caught.value.remedy
        # The certificate is for 127.0.0.1; a server under another name is not this one.
        with pytest.raises(UnreachableError, match="CALLBOARD_NATS_TLS_"):
            await works(f"nats://localhost:{port}", papers.settings())


async def test_a_client_with_tls_refuses_a_server_without(tmp_path: Path) -> None:
    """A server without encryption, perhaps an attacker, gets no login."""
    papers = Papers(tmp_path / "ours")
    config = f'jetstream {{ store_dir: "{tmp_path / "store"}" }}'
    async with plain_server(tmp_path, config) as port:
        for url, settings in (
            (f"nats://127.0.0.1:{port}", papers.settings()),
            (f"tls://127.0.0.1:{port}", Settings()),
        ):
            with pytest.raises(UnreachableError, match="no encrypted connection"):
                await works(url, settings)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"nats_tls_ca": "nowhere.pem"}, "CALLBOARD_NATS_TLS_CA=nowhere.pem"),
        ({"nats_tls_cert": "c.pem"}, "belong together"),
        ({"nats_tls_cert": "c.pem", "nats_tls_key": "k.pem"}, "CALLBOARD_NATS_TLS_CERT=c.pem"),
    ],
)
def test_errors_of_wrong_files_name_the_setting(values: dict[str, Any], words: str) -> None:
    """By the setting that names them, before any connection."""
    with pytest.raises(ContractError, match=words):
        nats_server("nats://127.0.0.1:1", Settings(**values))


class TlsFront:
    """Encrypts in front of a server that cannot, as a proxy in production does."""

    def __init__(self, papers: Papers, target: str) -> None:
        parts = urlsplit(target)
        self._where = (str(parts.hostname), int(parts.port or 0))
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(*papers.server)
        self._is_postgres = parts.scheme.startswith("postgres")
        self.served = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection on."""
        if self._is_postgres:
            # PostgreSQL has its own protocol for the request of encryption.
            assert await reader.readexactly(8) == bytes.fromhex("0000000804d2162f")
            writer.write(b"S")
            await writer.drain()
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await writer.start_tls(self._context)
            self.served += 1
            behind, to_behind = await asyncio.open_connection(*self._where)
            async with asyncio.TaskGroup() as both:
                both.create_task(_pass_on(reader, to_behind))
                both.create_task(_pass_on(behind, writer))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def tls_front(papers: Papers, url: str) -> AsyncIterator[tuple[str, TlsFront]]:
    """Yield the URL of an encrypted way to the server."""
    front = TlsFront(papers, url)
    async with await asyncio.start_server(front.serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        parts = urlsplit(url)
        login = f"{parts.username}:{parts.password}@" if parts.password else ""
        yield parts._replace(netloc=f"{login}127.0.0.1:{port}").geturl(), front


async def test_postgres_and_redis_over_tls(
    tmp_path: Path, postgres_server: TestPostgres, redis_server: TestRedis, schema: str
) -> None:
    """The URLs ask for it: both are encrypted and verified, in all connections of a host."""
    papers, strangers = Papers(tmp_path / "ours"), Papers(tmp_path / "theirs")
    settings = Settings(db_schema=schema, start_wait_s=0.3)
    async with (
        tls_front(papers, postgres_server.url) as (database, postgres),
        tls_front(papers, redis_server.url) as (cache, redis),
    ):
        verified = f"{database}?sslmode=verify-full&sslrootcert={papers.ca}"
        cached = f"rediss{cache.removeprefix('redis')}?ssl_ca_certs={papers.ca}"
        async with build_postgres_runtime(verified, cached, settings=settings) as runtime:
            await runtime.register(FunctionAgent(AgentId("desk", "1"), _answer))
            assert await runtime.result(await runtime.submit(AgentId("desk", "1"), "x")) == "done"
        assert postgres.served >= 3
        assert redis.served >= 1
        for wrong in (
            f"{database}?sslmode=verify-full&sslrootcert={strangers.ca}",
            f"{postgres_server.url}?sslmode=require",
        ):
            with pytest.raises(PersistenceError):
                async with build_postgres_runtime(wrong, settings=settings):
                    pass


async def _answer(ctx: RunContext, inbox: list[Message]) -> str:
    del inbox
    return await ctx.step("once", lambda: "done", effect="at_most_once")


def key_pair(prefix: int = nkeys.PREFIX_BYTE_USER) -> tuple[str, nkeys.KeyPair]:
    """Return a new seed, and its key pair."""
    seed = nkeys.encode_seed(random_bytes(32), prefix).decode()
    return seed, nkeys.from_seed(bytearray(seed.encode()))


async def test_a_host_logs_in_with_an_nkey(tmp_path: Path) -> None:
    """The server knows the public key only; another seed is refused."""
    seed, pair = key_pair()
    file, other = tmp_path / "host.nk", tmp_path / "other.nk"
    file.write_text(f"{seed}\n")
    other.write_text(key_pair()[0])
    accounts = NatsAccounts(nkeys={HOST: pair.public_key.decode()}, hosts_make_streams=True)
    async with secured_server(tmp_path, accounts) as port:
        url = f"nats://127.0.0.1:{port}"
        assert await works(url, Settings(nats_nkey_seed_file=file))
        with pytest.raises(UnreachableError, match="nkey") as caught:
            await works(url, Settings(nats_nkey_seed_file=other))
        assert other.read_text() not in str(caught.value)
        with pytest.raises(UnreachableError):
            await works(url_of(port, HOST), Settings())


@pytest.mark.parametrize("content", [None, "", "nothing useful"])
async def test_the_error_of_a_file_without_a_seed_names_the_setting(
    tmp_path: Path, content: str | None
) -> None:
    """The error names the setting, and does not show the file's content."""
    file = tmp_path / "host.nk"
    if content is not None:
        file.write_text(content)
    for name in ("nats_nkey_seed_file", "nats_credentials"):
        with pytest.raises(UnreachableError, match="CALLBOARD_NATS_NKEY_SEED_FILE") as caught:
            await works("nats://127.0.0.1:1", read_settings(**{name: file}))
        assert str(file) in str(caught.value)
        assert not content or content not in str(caught.value)


def jwt(claims: dict[str, Any], signer: nkeys.KeyPair) -> str:
    """Return a token in NATS's form, signed by an operator or an account."""
    full = {"jti": "x", "iat": 1700000000, "iss": signer.public_key.decode(), **claims}
    head = {"typ": "JWT", "alg": "ed25519-nkey"}
    parts = b".".join(_b64(json.dumps(part).encode()) for part in (head, full))
    return (parts + b"." + _b64(signer.sign(parts))).decode()


def _b64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


async def test_a_host_logs_in_with_a_credentials_file(tmp_path: Path) -> None:
    """A server with an operator: it knows accounts by their JWTs, and users by the accounts' signatures."""
    _, operator = key_pair(nkeys.PREFIX_BYTE_OPERATOR)
    _, account = key_pair(nkeys.PREFIX_BYTE_ACCOUNT)
    _, system = key_pair(nkeys.PREFIX_BYTE_ACCOUNT)
    seed, user = key_pair()
    ids = {
        name: key.public_key.decode()
        for name, key in (("o", operator), ("a", account), ("s", system), ("u", user))
    }
    kinds = ("subs", "data", "payload", "imports", "exports", "conn", "leaf")
    stored = ("mem_storage", "disk_storage", "streams", "consumer")
    limits = {"a": dict.fromkeys((*kinds, *stored), -1), "s": dict.fromkeys(kinds, -1)}
    unlimited = {"pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1}
    signed = {
        "operator": jwt({"sub": ids["o"], "nats": {"type": "operator", "version": 2}}, operator),
        **{
            name: jwt(
                {
                    "sub": ids[name],
                    "nats": {"type": "account", "version": 2, "limits": limits[name]},
                },
                operator,
            )
            for name in ("a", "s")
        },
        "user": jwt(
            {"sub": ids["u"], "nats": {"type": "user", "version": 2, **unlimited}}, account
        ),
    }
    file = tmp_path / "host.creds"
    file.write_text(
        f"-----BEGIN NATS USER JWT-----\n{signed['user']}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
    config = f"""
      operator: {signed["operator"]}
      resolver: MEMORY
      resolver_preload {{ {ids["a"]}: {signed["a"]}, {ids["s"]}: {signed["s"]} }}
      system_account: {ids["s"]}
      jetstream {{ store_dir: "{tmp_path / "store"}" }}
    """
    async with plain_server(tmp_path, config) as port:
        assert await works(f"nats://127.0.0.1:{port}", Settings(nats_credentials=file))
        with pytest.raises(UnreachableError, match="credentials"):
            await works(f"nats://127.0.0.1:{port}", Settings())
