"""What is in flight: messages between actors over NATS JetStream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.exports import lazy_exports

if TYPE_CHECKING:
    from broker.client import ActorClient
    from broker.connection import JetStreamConnection
    from broker.errors import StreamMismatchError, SubjectError
    from broker.nats_client import (
        ConnectionLostError,
        NoAnswerError,
        NotPermittedError,
        RefusedError,
        ServerError,
        UnreachableError,
    )
    from broker.subjects import Subjects
    from broker.transport import JetStreamTransport

__all__ = [
    "ActorClient",
    "ConnectionLostError",
    "JetStreamConnection",
    "JetStreamTransport",
    "NoAnswerError",
    "NotPermittedError",
    "RefusedError",
    "ServerError",
    "StreamMismatchError",
    "SubjectError",
    "Subjects",
    "UnreachableError",
]

_HOMES = {
    "broker.client": ("ActorClient",),
    "broker.connection": ("JetStreamConnection",),
    "broker.errors": (
        "StreamMismatchError",
        "SubjectError",
    ),
    "broker.nats_client": (
        "ConnectionLostError",
        "NoAnswerError",
        "NotPermittedError",
        "RefusedError",
        "ServerError",
        "UnreachableError",
    ),
    "broker.subjects": ("Subjects",),
    "broker.transport": ("JetStreamTransport",),
}

if not TYPE_CHECKING:
    __getattr__ = lazy_exports(__name__, _HOMES)
