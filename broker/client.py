"""`ActorClient`: another Python service's way to agents, over NATS alone. See docs/clients.md."""

from broker._client.client import ActorClient
from broker._client.requests import Event, Patience, Result, RunRef, Status
from broker._client_errors import (
    AskTimeoutError,
    BadRequestError,
    ClientError,
    ConflictError,
    NotPermittedError,
    OutcomeUnknownError,
    RunCancelledError,
    RunFailedError,
    TooLargeError,
    UnknownRunError,
    UnreachableError,
    UnservedError,
)

__all__ = [
    "ActorClient",
    "AskTimeoutError",
    "BadRequestError",
    "ClientError",
    "ConflictError",
    "Event",
    "NotPermittedError",
    "OutcomeUnknownError",
    "Patience",
    "Result",
    "RunCancelledError",
    "RunFailedError",
    "RunRef",
    "Status",
    "TooLargeError",
    "UnknownRunError",
    "UnreachableError",
    "UnservedError",
]

__path__: list[str] = []  # modules of the release before were below this one
