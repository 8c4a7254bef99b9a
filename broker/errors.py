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
