"""nats-py's client with what JetStream at speed needs, and its errors in our words.

Three private methods of nats-py 2.16 are overridden. `_process_msg`: of the 22 µs that it spends on a
message (headers, queue, task), 17 go, and with the queue goes the dropping of messages by a slow
consumer. `_read_loop` and `_flusher`: whatever ends them, the connection is lost, also where nats-py
calls nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlsplit

from nats.aio.client import Client as NatsClient
from nats.errors import Error as NatsError
from nats.errors import NoServersError
from typing_extensions import override

from actors.errors import BrokerError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

Sink: TypeAlias = "Callable[[bytes, bytes, bytes, bytes], None]"
"""Called on the event loop with subject, reply subject, data and raw headers. It must not raise."""

PING_EVERY_S: Final = 5
PINGS_UNANSWERED: Final = 2
"""A server that is silent for 15 seconds counts as lost."""
SEND_BUFFER_BYTES: Final = 64 * 1024 * 1024
CLOSE_LIMIT_S: Final = 2.0
_DENIED: Final = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"')


class ServerError(BrokerError):
    """The server at this address could not do something.

    Attributes:
        server: Host and port, never credentials.
        doing: What was tried.
        problem: What the server said, or did not say.
        remedy: What to do about it.
        code: JetStream's error code, 0 if it gave none.
    """

    def __init__(  # noqa: PLR0917 - an error pickles by its positional arguments
        self, server: str, doing: str, problem: str, remedy: str, code: int = 0
    ) -> None:
        super().__init__(server, doing, problem, remedy, code)
        self.server, self.doing, self.problem = server, doing, problem
        self.remedy, self.code = remedy, code

    @override
    def __str__(self) -> str:
        code = f" (error {self.code})" if self.code else ""
        return f"NATS at {self.server}: {self.doing}: {self.problem}{code}. {self.remedy}"


class UnreachableError(ServerError):
    """No connection came about."""


class ConnectionLostError(ServerError):
    """The connection is gone; nothing more comes of it."""


class NoAnswerError(ServerError):
    """The server did not answer within the time limit; whether it acted is unknown."""


class NotPermittedError(ServerError):
    """The account's permissions do not allow it."""


class RefusedError(ServerError):
    """JetStream answered with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where the broker is, and how to log in there."""

    urls: tuple[str, ...]
    name: str = "callboard"
    connect_timeout_s: float = 5.0
    user_credentials: str | None = None
    """Path of a credentials file."""
    tls: ssl.SSLContext | None = None

    @property
    def address(self) -> str:
        """Hosts and ports, for messages: no user, no password."""
        return ", ".join(_address(url) for url in self.urls)


class Client(NatsClient):
    """One connection. It never reconnects: what it had buffered would go out unguarded.

    Attributes:
        lost: Set when the connection is of no use any more, for whatever reason.
        address: The server's host and port.
    """

    def __init__(self, address: str) -> None:
        super().__init__()
        self.lost = asyncio.Event()
        self.address = address
        self.on_lost: Callable[[], None] | None = None
        self.on_denied: Callable[[str, str], None] | None = None
        """Told of a refused publish: the subject, in lower case as nats-py has it, and the words."""
        self._sinks: dict[int, Sink] = {}
        self._why = ""
        self._last_error: Exception | None = None

    async def listen(self, subject: str, sink: Sink) -> None:
        """Subscribe; `sink` is called while the bytes are read, so it has to be quick."""
        self._sinks[self._sid + 1] = sink
        await self.subscribe(subject)

    def give_up(self, why: str) -> None:
        """Count the connection as lost, and say why."""
        self._why = self._why or why
        if not self.lost.is_set():
            self.lost.set()
            if self.on_lost is not None:
                self.on_lost()

    def lost_error(self, doing: str) -> ConnectionLostError:
        """Return what to raise when something needs the connection that is lost."""
        why = self._why or str(self._last_error or self.last_error or "it was closed")
        problem = f"the connection is lost: {why}"
        return ConnectionLostError(self.address, doing, problem, "Connect again.")

    async def shut(self) -> None:
        """Close the connection, within `CLOSE_LIMIT_S`."""
        if self._flush_queue is not None:  # else nothing was opened
            with contextlib.suppress(TimeoutError, OSError, NatsError):
                async with asyncio.timeout(CLOSE_LIMIT_S):
                    await self.close()
        self.give_up("it was closed")

    async def on_error(self, error: Exception) -> None:
        """Remember what nats-py reports beside the calls; map refused subjects to their callers."""
        denied = _DENIED.search(str(error))
        if denied is None:
            self._last_error = error
        elif denied[1] == "subscription":
            self.give_up(str(error))
        elif self.on_denied is not None:
            self.on_denied(denied[2], str(error))

    @property
    def reported(self) -> Exception | None:
        """The last error that nats-py reported beside the calls."""
        return self._last_error

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


async def open_client(server: Server, *, inbox_prefix: str) -> Client:
    """Return a connected client; tries every address once.

    Raises:
        UnreachableError: No server of the list could be used.
    """
    client = Client(server.address)
    options: dict[str, Any] = {"tls": server.tls} if server.tls is not None else {}
    try:
        async with asyncio.timeout(server.connect_timeout_s * (len(server.urls) + 1)):
            await client.connect(
                servers=list(server.urls),
                name=server.name,
                error_cb=client.on_error,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=server.connect_timeout_s,  # type: ignore[arg-type] # any number works
                ping_interval=PING_EVERY_S,
                max_outstanding_pings=PINGS_UNANSWERED,
                pending_size=2 * SEND_BUFFER_BYTES,
                inbox_prefix=inbox_prefix,
                user_credentials=server.user_credentials,
                **options,
            )
    except (NatsError, OSError, TimeoutError, ValueError) as exc:
        await client.shut()
        reason = client.reported if isinstance(exc, NoServersError) else exc
        raise _unreachable(server, reason or exc) from exc
    except asyncio.CancelledError:
        await client.shut()
        raise
    return client


def _unreachable(server: Server, reason: Exception) -> UnreachableError:
    words = str(reason) or ("no answer in time" if isinstance(reason, TimeoutError) else "")
    remedy = (
        "Check the user, password or credentials file."
        if "uthorization" in words or "uthentication" in words
        else "Start nats-server there, or set the right URL (nats://HOST:PORT)."
    )
    return UnreachableError(server.address, "connecting", words or type(reason).__name__, remedy)


def _address(url: str) -> str:
    with contextlib.suppress(ValueError):
        parts = urlsplit(url if "//" in url else f"nats://{url}")
        return f"{parts.hostname}:{parts.port or 4222}"
    return "an invalid URL"
