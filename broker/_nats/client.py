"""Connections to NATS, each made once or opened again after each loss, with errors in our words.

`NatsConnection` is nats-py's client with what JetStream at speed needs; `broker._nats_client` has the errors.
`ReconnectingConnection` is for core NATS: it serves its users over one connection at a time.

Four private methods of nats-py 2.16 are overridden. `_process_msg`: of the 22 µs that it spends on a
message (headers, queue, task), 17 go, and with the queue goes the dropping of messages by a slow
consumer. `_read_loop` and `_flusher`: whatever ends them, the connection is lost, also where nats-py
calls nobody. `_send_ping`: it overtook what was sent before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import re
import secrets
import ssl
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias
from urllib.parse import urlsplit

from nats.aio.client import PING_PROTO
from nats.aio.client import Client as NatsClient
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError, NoServersError, UnexpectedEOF
from nats.protocol.command import pub_cmd
from typing_extensions import override

from actors._kernel.basics import Backoff
from actors.errors import BrokerError
from broker._nats_client import ConnectionLostError, UnreachableError
from broker._wire.headers import block_bytes

_log = logging.getLogger("callboard.nats")

Sink: TypeAlias = "Callable[[bytes, bytes, bytes, bytes], None]"
"""Called on the event loop with subject, reply subject, data and raw headers. It must not raise."""

PING_EVERY_S: Final = 5
PINGS_UNANSWERED: Final = 2
"""A server that is silent for 15 seconds counts as lost."""
SEND_BUFFER_BYTES: Final = 64 * 1024 * 1024
CLOSE_LIMIT_S: Final = 2.0
NO_ENCRYPTION: Final = "the server offers no encrypted connection"
_SEED: Final = re.compile(rb"\bSU[A-Z2-7]{56}\b")
_DENIED: Final = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectOptions:
    """The addresses of the broker, and the login."""

    urls: tuple[str, ...]
    name: str = "callboard"
    connect_timeout_s: float = 5.0
    user_credentials: str | None = None
    """Path of a credentials file (a user's JWT and seed)."""
    nkey_seed_file: str | None = None
    """Path of a file with a user's nkey seed (``SU…``); instead of credentials."""
    tls: ssl.SSLContext | None = None

    @property
    def address(self) -> str:
        """Hosts and ports, for messages: no user, no password."""
        return ", ".join(_address(url) for url in self.urls)

    @property
    def has_login(self) -> bool:
        """True if the options hold a login."""
        is_in_url = any("@" in url for url in self.urls)
        return is_in_url or self.user_credentials is not None or self.nkey_seed_file is not None


class NatsConnection(NatsClient):
    """A connection to NATS. It never reconnects: what it had buffered would go out unguarded.

    Attributes:
        lost: Set when the connection is of no use any more, for whatever reason.
        address: The server's host and port.
        admits_anybody: True if the server admits clients with neither a login nor a certificate.
    """

    admits_anybody: bool

    def __init__(self, address: str) -> None:
        super().__init__()
        self.admits_anybody = self.is_guest = False
        self.lost: asyncio.Event = asyncio.Event()
        self.address = address
        self.on_lost: Callable[[], None] | None = None
        self.on_denied: Callable[[str, str], None] | None = None
        """Called with a refused publish: the subject, in lower case as nats-py has it, and the words."""
        self.on_server_gone: Callable[[], None] | None = None
        """Called when the cluster has lost a server other than this connection's."""
        self.is_encrypted: bool = False
        """True if the server requires encryption, and the connection uses it."""
        self._other_urls: frozenset[str] = frozenset()
        self.wants_tls = False
        """True if a server without encryption is refused before anything is sent to it."""
        self._sinks: dict[int, Sink] = {}
        self._lost_reason = ""
        self.reported: Exception | None = None
        """The last error that nats-py reported beside the calls."""

    async def listen(self, subject: str, sink: Sink, *, queue: str = "") -> Subscription:
        """Subscribe; `sink` is called while the bytes are read, so it has to be quick."""
        self._sinks[self._sid + 1] = sink
        return await self.subscribe(subject, queue)

    async def is_answered(self, limit_s: float) -> bool:
        """Return whether the server answers a ping within so many seconds."""
        pong: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            await self._send_ping(pong)
        except (NatsError, OSError):
            return False
        # It is not cancelled when it is late: nats-py would stumble over that.
        await asyncio.wait([pong], timeout=limit_s)
        return pong.done() and not pong.cancelled()

    async def forget(self, subscription: Subscription) -> None:
        """End a subscription of `listen`; what is under way may still come."""
        with contextlib.suppress(
            NatsError, OSError
        ):  # the connection is lost, and with it all of them
            await subscription.unsubscribe()

    def give_up(self, why: str) -> None:
        """Count the connection as lost, and say why."""
        self._lost_reason = self._lost_reason or why
        if not self.lost.is_set():
            self.lost.set()
            if self.on_lost is not None:
                self.on_lost()

    def lost_error(self, doing: str) -> ConnectionLostError:
        """Return what to raise when something needs the connection that is lost."""
        why = self._lost_reason or str(self.reported or self.last_error or "it was closed")
        problem = f"the connection is lost: {why}"
        return ConnectionLostError(self.address, doing, problem, "Connect again.")

    async def shut(self) -> None:
        """Close the connection within `CLOSE_LIMIT_S`, and the socket also after an error or a cancellation."""
        is_closed = self._flush_queue is None  # nothing was opened
        try:
            with _cancellable(), contextlib.suppress(TimeoutError, OSError, NatsError):
                async with asyncio.timeout(CLOSE_LIMIT_S):
                    if not is_closed:
                        await self.close()
                is_closed = True
        finally:
            self.give_up("it was closed")
            writer = getattr(self._transport, "_io_writer", None)
            if writer is not None and not is_closed:
                writer.transport.abort()

    @override
    async def flush(self, timeout: int = 10) -> None:
        with _cancellable():
            await super().flush(timeout)

    async def on_error(self, error: Exception) -> None:
        """Remember what nats-py reports beside the calls; map refused subjects to their callers."""
        denial = _DENIED.search(str(error))
        if denial is None:
            self.reported = error
        elif denial[1] == "subscription":
            self.give_up(str(error))
        elif self.on_denied is not None:
            self.on_denied(denial[2], str(error))

    @override
    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        # nats-py takes a TLS context for what it may do: an attacker in between need only leave
        # tls_required out of INFO, and gets user, password and messages in plain text.
        if initial_connection and self.wants_tls and not info.get("tls_required"):
            raise NatsError(NO_ENCRYPTION)
        await super()._process_info(info, initial_connection)
        needs_login = info.get("tls_verify") or (info.get("auth_required") and not self.is_guest)
        self.admits_anybody = not needs_login
        self.is_encrypted = self.is_encrypted or bool(info.get("tls_required"))
        other_urls, previous_urls = frozenset(info.get("connect_urls") or ()), self._other_urls
        self._other_urls = other_urls
        if previous_urls - other_urls and self.on_server_gone is not None:
            self.on_server_gone()
        self._max_payload = info.get("max_payload", self._max_payload)  # nats-py reads it once

    @override
    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        reply: str = "",
        headers: dict[str, Any] | None = None,
    ) -> None:
        # nats-py counts the body alone; the server counts the headers too, and closes the connection.
        if headers and len(payload) + block_bytes(headers) > self.max_payload:
            raise MaxPayloadError
        await super().publish(subject, payload, reply, headers)

    def publish_now(self, subject: str, payload: bytes, reply: str = "") -> bool:
        """Write a message to the socket; False: something waits before it, or it is too large.

        `publish` sends its message only after all ready tasks have had a turn.
        """
        writer = getattr(self._transport, "_io_writer", None)
        if self._pending or writer is None or len(payload) > self.max_payload or self.lost.is_set():
            return False
        if writer.transport.get_write_buffer_size():
            return False
        writer.write(pub_cmd(subject, reply, payload))
        return True

    @override
    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None
    ) -> None:
        sink = self._sinks.get(sid)
        if sink is None:
            await super()._process_msg(sid, subject, reply, data, headers)  # type: ignore[arg-type]
        else:
            sink(subject, reply, data, headers or b"")

    @override
    async def _send_ping(self, future: asyncio.Future[Any] | None = None) -> None:
        # Past what still waits for its flusher the PONG of `flush` says nothing of that: a refused
        # subscription, for example, would be noticed too late.
        if future is None:
            await super()._send_ping()
            return
        self._pongs.append(future)
        await self._send_command(PING_PROTO)
        await self._flush_pending()

    @override
    async def _read_loop(self) -> None:
        try:
            await super()._read_loop()
        except OSError as exc:  # while nats-py closed what was reset
            self.give_up(str(exc))
        finally:
            self.give_up("")

    @override
    async def _flusher(self) -> None:
        try:
            await super()._flusher()
        except OSError as exc:
            self.give_up(str(exc))


@contextlib.contextmanager
def _cancellable() -> Iterator[None]:
    """Raise CancelledError after the block if the task was cancelled in it, whatever the block raised.

    Python 3.11's `wait_for`, by which nats-py waits, drops a cancellation that arrives together with
    the result or the error of what it waits for. The cancelled task would then go on for ever, and so
    would the caller that waits for its end.
    """
    task = asyncio.current_task()
    assert task is not None
    cancel_count = task.cancelling()
    try:
        yield
    # Any error may have taken the place of the cancellation.
    except Exception as exc:
        if task.cancelling() > cancel_count:
            raise asyncio.CancelledError from exc
        raise
    if task.cancelling() > cancel_count:
        raise asyncio.CancelledError


async def open_client(
    server: ConnectOptions, *, inbox_prefix: str, no_echo: bool = False
) -> NatsConnection:
    """Return a connected client; tries every address once.

    With `no_echo` it does not hear what it publishes.

    Raises:
        UnreachableError: No server of the list could be used, or the login's file is of no use.
    """
    _check_login(server)
    client = NatsConnection(server.address)
    client.is_guest = not server.has_login
    client.wants_tls = server.tls is not None or any(url.startswith("tls:") for url in server.urls)
    try:
        limit_s = server.connect_timeout_s * (len(server.urls) + 1)
        with _cancellable():
            async with asyncio.timeout(limit_s):
                await client.connect(
                    **_options(server, client), no_echo=no_echo, inbox_prefix=inbox_prefix
                )
    except (NatsError, OSError, TimeoutError, ValueError) as exc:
        await client.shut()
        reason = client.reported if isinstance(exc, NoServersError) else exc
        raise _unreachable(server, reason or exc, is_encrypted=client.is_encrypted) from exc
    except asyncio.CancelledError:
        await client.shut()
        raise
    return client


def _options(server: ConnectOptions, client: NatsConnection) -> dict[str, Any]:
    """Return what nats-py is to know about the server."""
    return {
        "servers": list(server.urls),
        "name": server.name,
        "error_cb": client.on_error,
        "allow_reconnect": False,
        "max_reconnect_attempts": 1,
        "reconnect_time_wait": 0,
        "connect_timeout": server.connect_timeout_s,
        "ping_interval": PING_EVERY_S,
        "max_outstanding_pings": PINGS_UNANSWERED,
        "pending_size": 2 * SEND_BUFFER_BYTES,
        "user_credentials": server.user_credentials,
        "nkeys_seed": server.nkey_seed_file,
        **({} if server.tls is None else {"tls": server.tls}),
    }


def _check_login(server: ConnectOptions) -> None:
    """Refuse a seed that nats-py would stumble over with words of its own, or with the seed in them."""
    path = server.user_credentials or server.nkey_seed_file
    if path is None:
        return
    doing = "logging in"
    remedy = "Set CALLBOARD_NATS_CREDENTIALS or CALLBOARD_NATS_NKEY_SEED_FILE to the user's file."
    if server.user_credentials and server.nkey_seed_file:
        problem = "both a credentials file and an nkey seed are given"
        raise UnreachableError(server.address, doing, problem, "Give one of them.")
    if importlib.util.find_spec("nkeys") is None:
        problem = "the package nkeys is not installed"
        raise UnreachableError(server.address, doing, problem, "Install callboard[nats].")
    try:
        content = Path(path).read_bytes()
    except OSError as exc:
        problem = f"cannot read {path}: {exc.strerror or exc}"
        raise UnreachableError(server.address, doing, problem, remedy) from None
    if not _is_seed(_SEED.search(content)):
        problem = f"{path} holds no seed of a user (SU and 56 more characters)"
        raise UnreachableError(server.address, doing, problem, remedy)


def _is_seed(match: re.Match[bytes] | None) -> bool:
    import nkeys  # noqa: PLC0415 - only a login with a key needs it

    if match is None:
        return False
    try:
        nkeys.from_seed(bytearray(match[0])).wipe()
    except (nkeys.NkeysError, ValueError):
        return False
    return True


def _unreachable(
    server: ConnectOptions, reason: Exception, *, is_encrypted: bool
) -> UnreachableError:
    problem = str(reason) or ("no answer in time" if isinstance(reason, TimeoutError) else "")
    # From TLS 1.3 on a server judges a certificate when the client has greeted already.
    is_hung_up = is_encrypted and isinstance(reason, (ConnectionError, UnexpectedEOF))
    if is_hung_up:
        problem = (
            f"the server wants encryption, and hung up on this certificate or login ({problem})"
        )
    if "uthorization" in problem or "uthentication" in problem:
        remedy = "Check the user, password, credentials file or nkey."
    elif isinstance(reason, ssl.SSLError) or NO_ENCRYPTION in problem or is_hung_up:
        remedy = (
            "Check the CA, the certificate and its key (CALLBOARD_NATS_TLS_…), and that the URL "
            "names a host of the server's certificate."
        )
    else:
        remedy = "Start nats-server there, or set the right URL (nats://HOST:PORT)."
    return UnreachableError(server.address, "connecting", problem or type(reason).__name__, remedy)


def _address(url: str) -> str:
    with contextlib.suppress(ValueError):
        parts = urlsplit(url if "//" in url else f"nats://{url}")
        return f"{parts.hostname}:{parts.port or 4222}"
    return "an invalid URL"


class ConnectionUser(Protocol):
    """A user of a connection that is opened again after each loss."""

    async def attach(self, client: NatsConnection, inbox: str, tasks: Tasks) -> None:
        """Subscribe on a new connection; `tasks` end with it."""

    def detach(self) -> None:
        """The connection is gone."""

    async def leave(self) -> None:
        """Accept no new requests."""

    async def shut(self) -> None:
        """Notify the callers that still wait that no answer will come."""


class Tasks(AbstractAsyncContextManager["Tasks", None], Protocol):
    """A scope for background tasks, as far as this package needs it; `TaskScope` of the runtime is one.

    At the end of the block all tasks are cancelled and waited for; one that raises is logged.
    """

    def start(self, coro: Coroutine[Any, Any, Any], *, name: str) -> None:
        """Start `coro`; it is cancelled when the scope ends."""


class ReconnectingConnection:
    """A connection for all its users, opened again after each loss. It has one server connection at a time.

    Args:
        server: The server's address and login.
        users: The users of the connection. A user does not receive what another user publishes.
        scope: Function that makes a scope for background tasks.
        inbox_prefix: First token of subjects for answers.
    """

    def __init__(
        self,
        server: ConnectOptions,
        users: Sequence[ConnectionUser],
        *,
        scope: Callable[[], Tasks],
        inbox_prefix: str,
    ) -> None:
        self._server, self._users = server, users
        self._scope, self._inbox_prefix = scope, inbox_prefix
        self._client: NatsConnection | None = None
        self.connected = asyncio.Event()
        """Event that is set while all subscriptions of all users exist."""

    async def run(self) -> None:
        """Open the connection and serve its users until cancelled. After a loss, connect again."""
        backoff, logged_problem = Backoff(0.1, 5.0), ""
        while True:
            try:
                await self._serve()
                logged_problem = ""
                backoff.reset()
            except Exception as exc:  # noqa: BLE001 - without it, no client can ask this host any more
                is_known = isinstance(exc, BrokerError | NatsError | OSError)
                if str(exc) != logged_problem:
                    _log.warning(
                        "outside services cannot be served",
                        extra={"error": str(exc)},
                        exc_info=None if is_known else exc,
                    )
                logged_problem = str(exc)
            await asyncio.sleep(backoff.next_s())

    async def _serve(self) -> None:
        """Serve over one connection until it is lost.

        Raises:
            BrokerError: It could not be opened, or was lost before everything was subscribed.
        """
        inbox = f"{self._inbox_prefix}.{secrets.token_hex(11)}"
        client = await open_client(self._server, inbox_prefix=inbox, no_echo=True)
        try:
            async with self._scope() as tasks:
                self._client = client
                for user in self._users:
                    await user.attach(client, inbox, tasks)
                await client.flush()
                if client.lost.is_set():  # a subscription was refused, for example
                    raise client.lost_error("serving outside services")
                self.connected.set()
                await client.lost.wait()
                _log.warning(
                    "the line to outside services is lost",
                    extra={"error": str(client.lost_error("serving outside services"))},
                )
        finally:
            self.connected.clear()
            self._client = None
            for user in self._users:
                user.detach()
            await client.shut()

    async def leave(self) -> None:
        """Have no user accept new requests, and wait until the server knows."""
        for user in self._users:
            await user.leave()
        await self._flush()

    async def shut(self) -> None:
        """Have all users notify the callers that still wait, and send that."""
        for user in self._users:
            await user.shut()
        await self._flush()

    async def _flush(self) -> None:
        """Return when the server has all that was sent, and we have all that it sent before that."""
        client = self._client
        if client is not None and not client.lost.is_set():
            with contextlib.suppress(TimeoutError, NatsError, OSError):
                async with asyncio.timeout(CLOSE_LIMIT_S):
                    await client.flush()
