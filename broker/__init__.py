"""Messages between actors over NATS JetStream.

Two errors of `ActorClient` share their names with the server's: `NotPermittedError` and
`UnreachableError` are the server's here; the client's are in `broker.client`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors._exports import lazy_exports
from broker._client_errors import (
    AskTimeoutError,
    BadRequestError,
    ClientError,
    ConflictError,
    OutcomeUnknownError,
    RunCancelledError,
    RunFailedError,
    TooLargeError,
    UnknownRunError,
    UnservedError,
)
from broker._errors import StreamMismatchError, SubjectError
from broker._nats_client import (
    ConnectionLostError,
    JetStreamOffError,
    NoAnswerError,
    NotPermittedError,
    RefusedError,
    ServerError,
    UnreachableError,
)

if TYPE_CHECKING:
    from broker._client.client import ActorClient
    from broker._mail.connection import JetStreamConnection
    from broker._mail.transport import JetStreamTransport
    from broker._wire.subjects import Subjects

__all__ = [
    "ActorClient",
    "AskTimeoutError",
    "BadRequestError",
    "ClientError",
    "ConflictError",
    "ConnectionLostError",
    "JetStreamConnection",
    "JetStreamOffError",
    "JetStreamTransport",
    "NoAnswerError",
    "NotPermittedError",
    "OutcomeUnknownError",
    "RefusedError",
    "RunCancelledError",
    "RunFailedError",
    "ServerError",
    "StreamMismatchError",
    "SubjectError",
    "Subjects",
    "TooLargeError",
    "UnknownRunError",
    "UnreachableError",
    "UnservedError",
]

_HOMES = {
    "broker._client.client": ("ActorClient",),
    "broker._mail.connection": ("JetStreamConnection",),
    "broker._mail.transport": ("JetStreamTransport",),
    "broker._wire.subjects": ("Subjects",),
}

if not TYPE_CHECKING:
    __getattr__ = lazy_exports(__name__, _HOMES)
