"""What can be wrong with names, bytes and streams of the broker, beyond a server that is away."""

from __future__ import annotations

from typing_extensions import override

from actors.errors import ContractError


class SubjectError(ContractError):
    """A subject, or the origin of a sourced message, does not have the form it must have."""

    def __init__(self, subject: str, problem: str) -> None:
        super().__init__(subject, problem)
        self.subject, self.problem = subject, problem

    @override
    def __str__(self) -> str:
        return f"subject {self.subject!r}: {self.problem}"


class StreamMismatchError(ContractError):
    """A stream on the server cannot be used for this deployment."""

    def __init__(self, stream: str, problem: str, remedy: str) -> None:
        super().__init__(stream, problem, remedy)
        self.stream, self.problem, self.remedy = stream, problem, remedy

    @override
    def __str__(self) -> str:
        return f"stream {self.stream}: {self.problem}. {self.remedy}"


class BadMessageError(ContractError):
    """Bytes, or their headers, are no message."""


class SmallServerError(ContractError):
    """The server takes no messages as large as those that have to be sent."""

    def __init__(self, server: str, max_payload: int, needed: int) -> None:
        super().__init__(server, max_payload, needed)
        self.server, self.max_payload, self.needed = server, max_payload, needed

    @override
    def __str__(self) -> str:
        return (
            f"NATS at {self.server} takes messages of {self.max_payload} bytes, {self.needed} are needed: "
            f"set max_payload: {self.needed} or more in nats-server's configuration"
        )


class UnpublishableError(ContractError):
    """The broker will never take this message; what comes behind it need not wait."""
