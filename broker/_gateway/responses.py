"""Requests of outside services, and what they are answered, as bytes. Nothing here does I/O."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgpack
from pydantic_core import to_json

from actors import errors
from actors._kernel.json import JsonValue
from broker._wire import headers as names
from broker._wire.headers import MAX_BODY_BYTES

_log = logging.getLogger("callboard.gateway")

MAX_PAGE_BYTES: Final = 256 * 1024
"""Largest body of one event of a run."""
HEADROOM_BYTES: Final = 8 * 1024
"""Bytes of the broker's largest message that are reserved for headers."""
_MAX_LINE: Final = 300
_CORRECT_BODY: Final = "Correct the request; docs/subjects.md has the form."
GRANT: Final = "the tenant's runs (`callboard nats-config --sees tenant`)"
_AGAIN: Final = "Send it again, with the same id: it is done once."


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayRequest:
    """A request as it came.

    Attributes:
        subject: Subject that it was published to; the server's permissions vouch for it.
        reply: Subject of the answer.
        headers: Never trusted.
        data: The body.
    """

    subject: str
    reply: str
    headers: Mapping[str, str]
    data: bytes


@dataclass(frozen=True, slots=True)
class GatewayAnswer:
    """A body and its headers, ready to be published."""

    body: bytes
    headers: dict[str, str]


class Problem(NamedTuple):
    """The reason why a request has no result.

    Attributes:
        code: As in HTTP.
        type: One word for programs.
        message: What is wrong, in one sentence.
        remedy: What to do about it.
        run: The run that goes on or has ended, where there is one.
        details: More facts, JSON data.
    """

    code: int
    type: str
    message: str
    remedy: str
    run: str | None = None
    details: JsonValue = None


class RequestError(errors.Facts, errors.ContractError):
    """A request is answered with a problem."""

    text = "{problem.message}"
    problem: Problem


def malformed(message: str) -> RequestError:
    """Return the error to raise for a malformed request."""
    return RequestError(Problem(400, "malformed", message, _CORRECT_BODY))


def too_large(size: int) -> Problem:
    """Return what to answer to a body of this many bytes."""
    message = f"the body has {size} bytes, {MAX_BODY_BYTES} are the limit"
    return Problem(
        413, "too_large", message, "Put it into a store of yours and send its reference."
    )


_WAIT: Final = f"{_AGAIN} Wait a moment first."
TOO_MANY: Final = Problem(429, "too_many", "this host holds as many requests as it may", _WAIT)
STOPPING: Final = Problem(503, "stopping", "this host is shutting down", _AGAIN)
_AWAY: Final = Problem(
    503, "unavailable", "the database or the broker cannot be used at the moment", _AGAIN
)
_BROKEN: Final = Problem(
    500,
    "internal",
    "the host failed at this request; its log says why",
    "Tell the operators; sending it again with the same id is safe.",
)


def problem_of(exc: Exception) -> Problem:
    """Return the answer to the sender about an error. An error that is not the sender's mistake is logged."""
    if isinstance(exc, RequestError):
        return exc.problem
    if isinstance(exc, errors.PersistenceError | errors.BrokerError):
        _log.warning("a request found no server", extra={"error": str(exc)})
        return _AWAY
    if not isinstance(exc, errors.ContractError | errors.RunConflictError):
        _log.error("a request failed", exc_info=exc)
        return _BROKEN
    return _refused(exc)


def _refused(exc: errors.ContractError | errors.RunConflictError) -> Problem:
    """Return what is wrong with a request, as far as its sender can do something about it."""
    code, type_, message, remedy = 400, "malformed", str(exc), _CORRECT_BODY
    run_id: str | None = None
    details: JsonValue = None
    match exc:
        case errors.UnknownRunError():
            code, type_ = 404, "unknown_run"
            remedy = f"Use the id that submit returned; for runs of others have {GRANT} granted."
            message = f"there is no run {exc.run_id!r}"
        case errors.RunSweptError():
            code, type_, run_id = 404, "swept", exc.run_id
            remedy = "Take results in time, or let the operators keep them longer."
        case errors.UnservedError():
            code, type_, message = 404, "unserved", f"no host serves {exc.agent}"
            remedy = "Start a host that does, or correct the agent's type. Nothing was submitted."
        case errors.OtherTenantError():
            code, type_, remedy = 403, "forbidden", "Name what is of the tenant in the subject."
        case errors.RunConflictError():
            code, type_, details = 409, "conflict", {"busy_with": exc.run_id}
            remedy = (
                "Wait for that run, or choose queue for on_conflict; join and interrupt are for runs that "
                f"you started, or have {GRANT} granted."
            )
        case _:
            pass
    return Problem(code, type_, message, remedy, run_id, details)


def result(value: JsonValue, request: GatewayRequest, **headers: str) -> GatewayAnswer:
    """Return a value as the answer, in the form that the request accepts.

    Headers are given with ``_`` for ``-``.
    """
    body, media_type = encoded(value, request)
    more = {name.replace("_", "-"): text for name, text in headers.items()}
    return GatewayAnswer(body, {names.CONTENT_TYPE: media_type, **more})


def refusal(problem: Problem, request: GatewayRequest) -> GatewayAnswer:
    """Return a problem as the answer."""
    error: dict[str, JsonValue] = problem._asdict()
    body, media_type = encoded({"error": error}, request)
    if len(body) > MAX_PAGE_BYTES:
        error["details"] = None
        body, media_type = encoded({"error": error}, request)
    line = " ".join(problem.message.split())[:_MAX_LINE]
    headers = {
        names.CONTENT_TYPE: media_type,
        names.ERROR_CODE: str(problem.code),
        names.ERROR: line.encode("ascii", "replace").decode(),
    }
    if problem.run is not None:
        headers[names.RUN] = problem.run
    return GatewayAnswer(body, headers)


def encoded(value: JsonValue, request: GatewayRequest) -> tuple[bytes, str]:
    """Return a value in the form that the request accepts, and its media type."""
    if request.headers.get(names.ACCEPT) == names.MSGPACK:
        try:
            return msgpack.packb(value), names.MSGPACK
        except (OverflowError, ValueError, TypeError):
            pass  # an integer of more than 64 bits, for example, has no form there
    return to_json(value), names.JSON
