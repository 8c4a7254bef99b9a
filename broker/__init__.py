"""Messages between actors over NATS JetStream.

Two errors of `ActorClient` share their names with the server's: `NotPermittedError` and
`UnreachableError` are the server's here; the client's are in `broker.client`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.exports import lazy_exports
from broker.client_errors import (
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
from broker.errors import StreamMismatchError, SubjectError
from broker.nats_client import (
    ConnectionLostError,
    JetStreamOffError,
    NoAnswerError,
    NotPermittedError,
    RefusedError,
    ServerError,
    UnreachableError,
)

if TYPE_CHECKING:
    from broker.client.client import ActorClient
    from broker.mail.connection import JetStreamConnection
    from broker.mail.transport import JetStreamTransport
    from broker.wire.subjects import Subjects

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
    "broker.client.client": ("ActorClient",),
    "broker.mail.connection": ("JetStreamConnection",),
    "broker.mail.transport": ("JetStreamTransport",),
    "broker.wire.subjects": ("Subjects",),
}

if not TYPE_CHECKING:
    __getattr__ = lazy_exports(__name__, _HOMES)
