"""The line to outside services: the gateway and the bus of live events, over a connection of its own."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from actors.runtime.clock import SystemClock
from actors.runtime.tasks import TaskScope
from broker.deltas import NatsDeltaBus
from broker.gateway import Gateway, HostFacts
from broker.line import Line
from broker.permissions import HOST_INBOX
from broker.subjects import Subjects
from compose.nats_server import nats_server

if TYPE_CHECKING:
    from actors.runtime import Runtime
    from compose.settings import Settings

_log = logging.getLogger("callboard.host")

READY_S: Final = 5.0
"""So long a host waits for this line when it starts; it serves agents without it, too."""
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+")


@dataclass(frozen=True, slots=True)
class Outside:
    """What `attach_outside` has added to a runtime."""

    line: Line

    async def ready(self) -> None:
        """Return when requests are taken; not later than in `READY_S` seconds."""
        try:
            async with asyncio.timeout(READY_S):
                await self.line.connected.wait()
        except TimeoutError:
            _log.warning(
                "outside services cannot ask this host yet",
                extra={"remedy": "its NATS user needs the permissions of docs/subjects.md"},
            )


def attach_outside(runtime: Runtime, nats_url: str, settings: Settings, *, serve: bool) -> Outside:
    """Let a runtime that is not started yet be asked by outside services, and hear live events."""
    subjects = Subjects(settings.namespace)
    bus = NatsDeltaBus(subjects)
    users: list[NatsDeltaBus | Gateway] = [bus]
    if serve and settings.gateway:
        facts = HostFacts(
            owner=runtime.owner, version=_version(), started=SystemClock().now(),
            serves=lambda: runtime.serves,
        )  # fmt: skip
        users.append(Gateway(runtime.front, subjects, facts, scope=TaskScope))
    line = Line(
        nats_server(nats_url, settings, name="callboard outside"), users,
        scope=TaskScope, inbox_prefix=HOST_INBOX,
    )  # fmt: skip
    runtime.attach(bus=bus, doors=[line])
    return Outside(line)


def _version() -> str:
    try:
        found = _VERSION.match(importlib.metadata.version("callboard"))
    except importlib.metadata.PackageNotFoundError:  # run from a folder that was not installed
        found = None
    return "0.0.0" if found is None else found[0]
