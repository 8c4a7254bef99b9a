"""What is in flight: messages between actors over NATS JetStream."""

from broker.client import (
    ConnectionLostError,
    NoAnswerError,
    NotPermittedError,
    RefusedError,
    ServerError,
    UnreachableError,
)
from broker.connection import JetStreamConnection
from broker.errors import StreamMismatchError, SubjectError
from broker.subjects import Subjects
from broker.transport import JetStreamTransport

__all__ = [
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
