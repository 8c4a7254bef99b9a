"""Connections to NATS: the options of all processes of a deployment, and the one for external clients.

The gateway and the bus of live events use the connection for external clients. The settings give the login and
the certificates of every connection.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import re
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from actors._runtime import Runtime
from actors._runtime.loop.clock import SystemClock
from actors._runtime.loop.tasks import TaskScope
from actors._runtime.runtime import host_of
from actors.errors import ContractError
from broker._gateway.gateway import Gateway, HostFacts
from broker._gateway.log_hints import NatsLogHints
from broker._gateway.streams import NatsDeltaBus
from broker._nats.client import ConnectionUser, ConnectOptions, ReconnectingConnection
from broker._nats.permissions import HOST_INBOX
from broker._wire.subjects import Subjects
from compose._assembly.settings import Settings

_log = logging.getLogger("callboard.host")

READY_S: Final = 5.0
"""Longest wait in seconds for this connection at a host's start. A host serves agents without it too."""
CONNECT_S: Final = 5.0

_VERSION: Final = re.compile(r"\d+\.\d+\.\d+")


def attach_outside(
    runtime: Runtime, nats_url: str, settings: Settings, *, serve: bool
) -> Callable[[], Awaitable[None]]:
    """Attach the gateway and the bus of live events to a runtime that is not started yet.

    Returns a function that waits until requests of external clients are accepted, at most `READY_S` seconds.
    """
    subjects = Subjects(settings.namespace)
    bus, log_hints = NatsDeltaBus(subjects), NatsLogHints(subjects)
    users: list[ConnectionUser] = [bus, log_hints]
    if serve and settings.gateway:
        facts = HostFacts(
            owner=runtime.owner,
            version=_version(),
            started=SystemClock().now(),
            serves=lambda: runtime.serves,
        )
        users.append(Gateway(runtime.front, subjects, facts, scope=TaskScope))
    connection = ReconnectingConnection(
        nats_server(nats_url, settings, name="callboard outside"),
        users,
        scope=TaskScope,
        inbox_prefix=HOST_INBOX,
    )
    host_of(runtime).attach(bus=bus, log_hints=log_hints, listeners=[connection])
    return partial(_wait_until_connected, connection)


def nats_server(
    urls: str, settings: Settings, *, name: str = "callboard", connect_timeout_s: float = CONNECT_S
) -> ConnectOptions:
    """Return the options to connect to NATS, with the credentials and the TLS context of the settings.

    Args:
        urls: ``nats://user:password@host:port``, several separated by commas.
        settings: The settings. The function reads those whose name begins with ``nats_``.
        name: Name of the connection in the server's lists.
        connect_timeout_s: Longest attempt to connect to one server, in seconds.

    Raises:
        ContractError: The file of a certificate or key is missing or invalid. The message names the setting.
    """
    credentials, seed = settings.nats_credentials, settings.nats_nkey_seed_file
    return ConnectOptions(
        urls=tuple(url.strip() for url in urls.split(",")),
        name=name,
        connect_timeout_s=connect_timeout_s,
        user_credentials=None if credentials is None else str(credentials),
        nkey_seed_file=None if seed is None else str(seed),
        tls=tls_context(settings),
    )


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """Return the TLS context of connections to NATS, or None if the settings name no certificate.

    The context verifies the server's certificate and its host name.

    Raises:
        ContractError: A file is missing or invalid, or a certificate has no key. The message names the setting.
    """
    ca, cert, key = settings.nats_tls_ca, settings.nats_tls_cert, settings.nats_tls_key
    if ca is None and cert is None and key is None:
        return None
    if (cert is None) != (key is None):
        msg = "CALLBOARD_NATS_TLS_CERT and CALLBOARD_NATS_TLS_KEY belong together: set both"
        raise ContractError(msg)
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as exc:
        msg = f"CALLBOARD_NATS_TLS_CA={ca}: {exc.strerror or exc}; give a PEM file with the CA"
        raise ContractError(msg) from exc
    if cert is not None:
        try:
            context.load_cert_chain(cert, key)
        except OSError as exc:
            msg = f"CALLBOARD_NATS_TLS_CERT={cert}, CALLBOARD_NATS_TLS_KEY={key}: {exc}; give PEM files"
            raise ContractError(msg) from exc
    return context


async def _wait_until_connected(connection: ReconnectingConnection) -> None:
    try:
        async with asyncio.timeout(READY_S):
            await connection.connected.wait()
    except TimeoutError:
        remedy = "its NATS user needs the permissions of docs/subjects.md"
        _log.warning("external clients cannot ask this host yet", extra={"remedy": remedy})


def _version() -> str:
    try:
        match = _VERSION.match(importlib.metadata.version("callboard"))
    except importlib.metadata.PackageNotFoundError:  # run from a folder that was not installed
        match = None
    return "0.0.0" if match is None else match[0]
