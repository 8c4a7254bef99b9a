"""`ActorClient`: another Python service's way to agents, over NATS alone. See docs/clients.md.

Calls enter through `client`, become checked `requests`, travel over `connection`, and `responses` reads what
comes back and decides whether to try again. Below are `nats` and `wire`.
"""

from broker.client.client import ActorClient
from broker.client.requests import Event, Patience, Result, RunRef, Status
from broker.client_errors import (
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
