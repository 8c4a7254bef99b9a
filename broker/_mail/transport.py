"""Connections to NATS JetStream, each made once and never repaired."""

from __future__ import annotations

import itertools
import ssl
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import PARTITIONS, HostIncarnation
from broker._errors import SmallServerError
from broker._mail.connection import JetStreamConnection
from broker._mail.streams import ensure
from broker._nats.client import ConnectOptions
from broker._nats.permissions import HOST_INBOX
from broker._nats.requests import connected
from broker._wire.headers import NEEDED_PAYLOAD_BYTES
from broker._wire.subjects import Subjects

HURRIED_S: Final = 0.5
"""Seconds that a stream other than MAIL may take to answer; else the next guard checks it."""


class JetStreamTransport:
    """The `Transport` of NATS JetStream.

    Args:
        servers: ``nats://HOST:PORT``, or several of one cluster; or a `ConnectOptions`, which says how to log
            in there too (then `name`, `connect_timeout_s`, `user_credentials` and `tls` are its).
        namespace: Goes before streams' names and subjects, for deployments that share a server.
        partitions: Number of partitions of each type; fixed for a deployment.
        name: Name of the connection, for the server's lists.
        replicas: Number of replicas of the streams: 1, or 3 on a cluster.
        connect_timeout_s: Limit of the connecting to one server, in seconds.
        owner: The host whose nudges come in; None for programs that are no host.
        user_credentials: Path of a credentials file.
        tls: Context for encrypted connections.
        inbox_prefix: First token of subjects for answers; a user's permissions may ask for its own.
    """

    def __init__(  # noqa: PLR0913
        self,
        servers: str | Sequence[str] | ConnectOptions,
        *,
        namespace: str = "",
        partitions: int = PARTITIONS,
        name: str = "callboard",
        replicas: int = 1,
        connect_timeout_s: float = 5.0,
        owner: HostIncarnation | None = None,
        user_credentials: str | None = None,
        tls: ssl.SSLContext | None = None,
        inbox_prefix: str = HOST_INBOX,
    ) -> None:
        if isinstance(servers, ConnectOptions):
            self._server = servers
        else:
            self._server = ConnectOptions(
                urls=(servers,) if isinstance(servers, str) else tuple(servers),
                name=name,
                connect_timeout_s=connect_timeout_s,
                user_credentials=user_credentials,
                tls=tls,
            )
        self._subjects = Subjects(namespace, partitions)
        self._replicas = replicas
        self._owner = owner
        self._inbox_prefix = inbox_prefix
        # One count for all connections: after a reconnect the same owner and epoch meet consumers
        # of the connection before, and must not share them.
        self._serial = itertools.count(1)

    @asynccontextmanager
    async def connect(
        self,
        *,
        deployment: str,
        on_nudge: Callable[[Nudge], None],
        on_suspect: Callable[[], None] = lambda: None,
    ) -> AsyncGenerator[JetStreamConnection, None]:
        """Connect, and create or update the streams. Tries once.

        Leaving the block closes the connection within seconds.

        Args:
            deployment: Id of the database that belongs to these streams.
            on_nudge: Called on the event loop for hints of other hosts.
            on_suspect: Called there when another server of the cluster is lost.

        Raises:
            BrokerError: No server answers.
            ContractError: The streams belong to another deployment, or the server takes only small messages.
        """
        async with connected(self._server, self._inbox_prefix) as (requests, inbox):
            client = requests.client
            if client.max_payload < NEEDED_PAYLOAD_BYTES:
                raise SmallServerError(client.address, client.max_payload, NEEDED_PAYLOAD_BYTES)
            ensure_streams = partial(
                ensure,
                requests.api,
                self._subjects,
                deployment=deployment,
                replicas=self._replicas,
                hurried_api=partial(requests.api, limit_s=HURRIED_S),
            )
            streams = await ensure_streams()
            connection = JetStreamConnection(
                client,
                requests,
                subjects=self._subjects,
                streams=streams,
                ensure=ensure_streams,
                inbox=inbox,
                serial=self._serial.__next__,
                on_suspect=on_suspect,
            )
            try:
                await connection.open(self._owner, on_nudge)
                yield connection
            finally:
                await connection.close()
