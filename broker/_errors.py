"""Errors about names, bytes and streams of the broker; a broker that is away is not among them."""

from __future__ import annotations

from actors.errors import ContractError, Facts


class SubjectError(Facts, ContractError):
    """A subject, or the origin of a sourced message, does not have the form it must have."""

    text = "subject {subject!r}: {problem}"
    subject: str
    problem: str


class StreamMismatchError(Facts, ContractError):
    """A stream on the server cannot be used for this deployment."""

    text = "stream {stream}: {problem}. {remedy}"
    stream: str
    problem: str
    remedy: str


class BadMessageError(ContractError):
    """Bytes, or their headers, are no message."""


class SmallServerError(Facts, ContractError):
    """The server takes no messages as large as those that have to be sent."""

    text = (
        "NATS at {server} takes messages of {max_payload} bytes, {needed} are needed: set "
        "max_payload: {needed} or more in nats-server's configuration"
    )
    server: str
    max_payload: int
    needed: int


class UnpublishableError(ContractError):
    """The broker will never accept this message; later messages need not wait for it."""
