"""Errors of a NATS server, or of the way to it. Logs hold these errors as `broker._nats_client:…`."""

from __future__ import annotations

from typing_extensions import override

from actors.errors import BrokerError, Facts


class ServerError(Facts, BrokerError):
    """The server at this address could not do something.

    Attributes:
        server: Host and port, never credentials.
        doing: What was tried.
        problem: What the server said, or did not say.
        remedy: What to do about it.
        code: JetStream's error code, 0 if it gave none.
    """

    server: str
    doing: str
    problem: str
    remedy: str
    code: int = 0

    @override
    def __str__(self) -> str:
        code = f" (error {self.code})" if self.code else ""
        return f"NATS at {self.server}: {self.doing}: {self.problem}{code}. {self.remedy}"


class UnreachableError(ServerError):
    """No connection came about."""


class ConnectionLostError(ServerError):
    """The connection is gone; nothing more comes of it."""


class NoAnswerError(ServerError):
    """The server did not answer within the time limit; whether it acted is unknown."""


class NotPermittedError(ServerError):
    """The account's permissions do not allow it."""


class RefusedError(ServerError):
    """JetStream answered with an error."""


class JetStreamOffError(ServerError):
    """The server is there, and its JetStream is not, or does not answer."""
