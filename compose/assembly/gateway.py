"""The NATS connection for external clients, which the gateway and the bus of live events use."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from actors.runtime import Runtime
from actors.runtime.loop.clock import SystemClock
from actors.runtime.loop.tasks import TaskScope
from actors.runtime.runtime import host_of
from broker.gateway.gateway import Gateway, HostFacts
from broker.gateway.log_hints import NatsLogHints
from broker.gateway.streams import NatsDeltaBus
from broker.nats.client import ConnectionUser, ReconnectingConnection
from broker.nats.permissions import HOST_INBOX
from broker.wire.subjects import Subjects
from compose.assembly.nats import nats_server
from compose.assembly.settings import Settings

_log = logging.getLogger("callboard.host")

READY_S: Final = 5.0
"""Longest wait in seconds for this connection at a host's start. A host serves agents without it too."""
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
    line = ReconnectingConnection(
        nats_server(nats_url, settings, name="callboard outside"),
        users,
        scope=TaskScope,
        inbox_prefix=HOST_INBOX,
    )
    host_of(runtime).attach(bus=bus, log_hints=log_hints, listeners=[line])
    return partial(_ready, line)


async def _ready(line: ReconnectingConnection) -> None:
    try:
        async with asyncio.timeout(READY_S):
            await line.connected.wait()
    except TimeoutError:
        remedy = "its NATS user needs the permissions of docs/subjects.md"
        _log.warning("external clients cannot ask this host yet", extra={"remedy": remedy})


def _version() -> str:
    try:
        found = _VERSION.match(importlib.metadata.version("callboard"))
    except importlib.metadata.PackageNotFoundError:  # run from a folder that was not installed
        found = None
    return "0.0.0" if found is None else found[0]
