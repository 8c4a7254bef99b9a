"""A connection for core NATS that is opened again whenever it is lost, and what is served over it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from nats.errors import Error as NatsError

from actors.errors import BrokerError
from actors.kernel.basics import Backoff
from broker.nats.client import CLOSE_LIMIT_S, ConnectOptions, NatsConnection, open_client

_log = logging.getLogger("callboard.nats")


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
        backoff, said = Backoff(0.1, 5.0), ""
        while True:
            try:
                await self._serve()
                said = ""
                backoff.reset()
            except Exception as exc:  # noqa: BLE001 - without it, no client can ask this host any more
                is_known = isinstance(exc, BrokerError | NatsError | OSError)
                if str(exc) != said:
                    _log.warning(
                        "outside services cannot be served",
                        extra={"error": str(exc)},
                        exc_info=None if is_known else exc,
                    )
                said = str(exc)
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
        """See `ConnectionUser.leave`."""
        for user in self._users:
            await user.leave()
        await self._flush()

    async def shut(self) -> None:
        """See `ConnectionUser.shut`."""
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
