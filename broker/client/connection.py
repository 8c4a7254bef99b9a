"""The connection of an `ActorClient`: requests are repeated, with the same id, until one is answered.

A connection that is lost is closed, and the next attempt opens another one: nothing is buffered for a
connection that is away.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final
from weakref import WeakValueDictionary

from nats.errors import Error as NatsError

from broker.client.requests import Patience, Request
from broker.client.responses import (
    STOPPED,
    TOO_MANY,
    Missed,
    Response,
    Tries,
    in_our_words,
    unreachable,
)
from broker.nats.client import ConnectOptions, NatsConnection, open_client
from broker.nats.requests import Requests
from broker.nats_client import ServerError
from broker.wire.headers import ERROR

MAX_OPEN_CALLS: Final = 1024
"""Maximum number of open calls of one client; further calls wait, within their time limits."""
FLUSH_LIMIT_S: Final = 5


class ClientConnection:
    """Connections to one server or cluster, one at a time.

    Args:
        server: Address and login of the server.
        inbox_prefix: First token of the subjects that answers come to.
        patience: See `Patience`.
    """

    def __init__(self, server: ConnectOptions, *, inbox_prefix: str, patience: Patience) -> None:
        self._server = server
        self._prefix = inbox_prefix
        self._patience = patience
        self._requests: Requests | None = None
        self._opening = asyncio.Lock()
        self._is_open = False
        self._calls = asyncio.Semaphore(MAX_OPEN_CALLS)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.address = server.address

    async def open(self) -> None:
        """Connect. Raises `UnreachableError` or `NotPermittedError`."""
        self._is_open = True
        try:
            await self.requests()
        except BaseException as exc:
            self._is_open = False
            if isinstance(exc, Missed):
                raise unreachable(self.address, exc, "connecting") from exc
            raise

    async def close(self) -> None:
        """Close the connection; calls that wait fail."""
        self._is_open = False
        requests, self._requests = self._requests, None
        if requests is not None:
            await requests.client.shut()

    async def requests(self) -> Requests:
        """Return calls over the connection, a new one if the last one is lost.

        Raises:
            Missed: None came about, or the client is closed.
            NotPermittedError: The user may not subscribe to answers of this prefix.
        """
        # One connects, and all others wait for that connection.
        async with self._opening:
            self._check_open()
            if (known := self._requests) is not None:
                if not known.client.lost.is_set():
                    return known
                self._requests = None
                await known.client.shut()
            made = await self._connect()
            if not self._is_open:
                await made.client.shut()
            self._check_open()
            self._requests = made
            return made

    def _check_open(self) -> None:
        if not self._is_open:
            raise Missed("closed", "the client is not open")

    async def _connect(self) -> Requests:
        inbox = f"{self._prefix}.{secrets.token_hex(11)}"
        try:
            client = await open_client(self._server, inbox_prefix=inbox)
            try:
                return await _answered(client, inbox)
            except BaseException:
                await client.shut()
                raise
        except ServerError as exc:
            raise in_our_words(exc, "connecting") from exc

    async def exchange(
        self, request: Request, *, limit_s: float, attempt_s: float, may_be_done: bool = False
    ) -> Response:
        """Publish the request until it is answered; cancelling leaves open whether it was done.

        Args:
            request: The same each time.
            limit_s: Seconds for all attempts together.
            attempt_s: Seconds for one attempt.
            may_be_done: A host is known to have taken it before.

        Raises:
            UnreachableError, UnservedError: Nothing was done.
            OutcomeUnknownError: It was sent at least once.
            ClientError: It can never be answered.
        """
        unserved_s = self._patience.unserved_s
        tries = Tries(request, may_be_done=may_be_done, unserved_s=unserved_s)
        try:
            async with asyncio.timeout(limit_s), self._in_order(request.order_key), self._calls:
                while True:
                    try:
                        requests = await self.requests()
                        tries.is_under_way = True
                        return await _attempt(requests, request, attempt_s)
                    except Missed as missed:
                        pause_s = tries.pause_after(missed)
                    await asyncio.sleep(pause_s)
        except (TimeoutError, Missed) as exc:
            raise tries.given_up(self.address, limit_s) from exc

    def _in_order(self, key: str | None) -> AbstractAsyncContextManager[None]:
        """Return a lock for the key: one request at a time, in order of arrival. None locks nothing.

        It is held over the network: a message that is repeated must not come after the next.
        """
        if key is None:
            return nullcontext()
        # It lives as long as a caller has it or waits for it.
        return self._turns.setdefault(key, asyncio.Lock())


async def _answered(client: NatsConnection, inbox: str) -> Requests:
    """Return calls over the connection, once the server is known to have their inbox.

    Raises:
        ServerError: It is not: the server refused it, or is gone already.
    """
    requests = Requests(client, inbox)
    try:
        await requests.open()
        await client.flush(FLUSH_LIMIT_S)
    except (NatsError, OSError) as exc:
        client.give_up(str(exc))
    if client.lost.is_set():
        raise client.lost_error("waiting for answers")
    return requests


async def _attempt(requests: Requests, request: Request, limit_s: float) -> Response:
    """Publish the request once, and return the answer.

    Raises:
        Missed: None came, or that the host cannot now.
        ClientError: The request can never be answered.
    """
    try:
        reply = await requests.request(
            request.doing, request.subject, request.body, headers=request.headers, limit_s=limit_s
        )
    except ServerError as exc:
        raise in_our_words(exc, request.doing, request.id) from exc
    answer = Response.of(reply)
    if answer.code == STOPPED:
        raise Missed("lost", answer.headers.get(ERROR, "the host is shutting down"))
    if answer.code == TOO_MANY:
        raise Missed("busy", answer.headers.get(ERROR, "the hosts are busy"))
    return answer
