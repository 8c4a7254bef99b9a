"""Errors of services that use `ActorClient`: one family, each with a remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.errors import ActorsError, Facts

if TYPE_CHECKING:
    from actors._kernel.json import JsonValue


class ClientError(Facts, ActorsError):
    """The client does not know that its request was carried out: it was refused, or got no answer.

    Attributes:
        doing: The request, and the agent or run that it was for.
        problem: The reason.
        remedy: The next step for the caller.
        run_id: The run of the request, if it is known.
        id: The id of the message that was sent, if it had one. Sending it again with this id is safe.
        details: Further facts from the host, as JSON data.
    """

    text = "{doing}: {problem}. {remedy}"
    doing: str
    problem: str
    remedy: str
    run_id: str | None = None
    id: str | None = None
    details: JsonValue = None


class BadRequestError(ClientError):
    """The request is malformed; the same again fails again. Nothing was done."""


class TooLargeError(ClientError):
    """The body is larger than the limit: it was not sent. Or the answer of `run_id`, which has ended."""


class NotPermittedError(ClientError):
    """The server's permissions, or the hosts, do not allow it. Nothing was done."""


class UnknownRunError(ClientError):
    """No run has this id in this tenant."""


class ConflictError(ClientError):
    """``on_conflict="reject"``, and the agent is busy with `run_id`. Nothing was done."""

    retryable = True


class AskTimeoutError(ClientError):
    """The run did not end in time. It goes on: `ActorClient.result` with `run_id` waits further."""

    retryable = True


class RunFailedError(ClientError):
    """The run ended FAILED; `details` is its error."""


class RunCancelledError(ClientError):
    """The run ended CANCELLED."""


class UnservedError(ClientError):
    """No host took it: none is there, or all are busy or shutting down. Nothing was done."""

    retryable = True


class UnreachableError(ClientError):
    """No connection to the server. Nothing was done."""

    retryable = True


class OutcomeUnknownError(ClientError):
    """A request without an answer: it was done or it was not.

    Sending the request again with the same `id` is safe: the host does not execute it twice.
    """

    retryable = True
