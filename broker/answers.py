"""Requests of outside services, and what they are answered, as bytes. Nothing here does I/O."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgpack
from pydantic_core import to_json
from typing_extensions import override

from actors.errors import (
    BrokerError,
    ContractError,
    OtherTenantError,
    PersistenceError,
    RunConflictError,
    RunSweptError,
    UnknownRunError,
    UnservedError,
)
from broker import headers as names
from broker.limits import MAX_BODY_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from actors.kernel.json import JsonValue

_log = logging.getLogger(__name__)

MAX_PAGE_BYTES: Final = 256 * 1024
"""Largest body of one event of a run."""
HEADROOM_BYTES: Final = 8 * 1024
"""Of the broker's largest message, what headers may take."""
_MAX_LINE: Final = 300
_LOOK_AT_BODY: Final = "Correct the request; docs/subjects.md has the form."
_AGAIN: Final = "Send it again, with the same id: it is done once."


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request as it came.

    Attributes:
        subject: Where it was published; the server's permissions vouch for it.
        reply: Where the answer goes.
        headers: Never trusted.
        data: The body.
    """

    subject: str
    reply: str
    headers: Mapping[str, str]
    data: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """A body and its headers, ready to be published."""

    body: bytes
    headers: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a request has no result.

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


class RequestError(ContractError):
    """A request is answered with a problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.problem = problem

    @override
    def __str__(self) -> str:
        return self.problem.message


def malformed(message: str) -> RequestError:
    """Return what to raise for a request that is none."""
    return RequestError(Problem(code=400, type="malformed", message=message, remedy=_LOOK_AT_BODY))


def too_large(size: int) -> Problem:
    """Return what to answer to a body of this many bytes."""
    return Problem(
        code=413, type="too_large",
        message=f"the body has {size} bytes, {MAX_BODY_BYTES} are the limit",
        remedy="Put it into a store of yours and send its reference.",
    )  # fmt: skip


TOO_MANY: Final = Problem(
    code=429, type="too_many", message="this host holds as many requests as it may",
    remedy=f"{_AGAIN} Wait a moment first.",
)  # fmt: skip
STOPPING: Final = Problem(
    code=503, type="stopping", message="this host is shutting down", remedy=_AGAIN
)
_AWAY: Final = Problem(
    code=503, type="unavailable", message="the database or the broker cannot be used at the moment",
    remedy=_AGAIN,
)  # fmt: skip
_BROKEN: Final = Problem(
    code=500, type="internal", message="the host failed at this request; its log says why",
    remedy="Tell the operators; sending it again with the same id is safe.",
)  # fmt: skip


def problem_of(exc: Exception) -> Problem:
    """Return what the sender is told of an error. What is nobody's mistake is logged."""
    if isinstance(exc, RequestError):
        return exc.problem
    if isinstance(exc, PersistenceError | BrokerError):
        _log.warning("a request found no server", extra={"error": str(exc)})
        return _AWAY
    if not isinstance(exc, ContractError | RunConflictError):
        _log.error("a request failed", exc_info=exc)
        return _BROKEN
    return _refused(exc)


def _refused(exc: ContractError | RunConflictError) -> Problem:
    """Return what is wrong with a request, as far as its sender can do something about it."""
    code, type_, message, remedy = 400, "malformed", str(exc), _LOOK_AT_BODY
    run: str | None = None
    details: JsonValue = None
    match exc:
        case UnknownRunError():
            code, type_, remedy = 404, "unknown_run", "Use the id that submit returned."
            message = f"there is no run {exc.run_id!r}"
        case RunSweptError():
            code, type_, run = 404, "swept", exc.run_id
            remedy = "Take results in time, or let the operators keep them longer."
        case UnservedError():
            code, type_, message = 404, "unserved", f"no host serves {exc.agent}"
            remedy = "Start a host that does, or correct the agent's type. Nothing was submitted."
        case OtherTenantError():
            code, type_, remedy = 403, "forbidden", "Name what is of the tenant in the subject."
        case RunConflictError():
            code, type_, details = 409, "conflict", {"busy_with": exc.run_id}
            remedy = "Wait for that run, or choose queue, join or interrupt for on_conflict."
        case _:
            pass
    return Problem(code=code, type=type_, message=message, remedy=remedy, run=run, details=details)


def result(value: JsonValue, request: Request, **headers: str) -> Answer:
    """Return a value as the answer, in the form that the request accepts.

    Headers are given with ``_`` for ``-``.
    """
    body, media_type = encoded(value, request)
    more = {name.replace("_", "-"): text for name, text in headers.items()}
    return Answer(body, {names.CONTENT_TYPE: media_type, **more})


def refusal(problem: Problem, request: Request) -> Answer:
    """Return a problem as the answer."""
    error: dict[str, JsonValue] = {
        "code": problem.code, "type": problem.type, "message": problem.message,
        "remedy": problem.remedy, "run": problem.run, "details": problem.details,
    }  # fmt: skip
    body, media_type = encoded({"error": error}, request)
    if len(body) > MAX_PAGE_BYTES:
        error["details"] = None
        body, media_type = encoded({"error": error}, request)
    headers = {
        names.CONTENT_TYPE: media_type,
        names.ERROR_CODE: str(problem.code),
        names.ERROR: _line(problem.message),
    }
    if problem.run is not None:
        headers[names.RUN] = problem.run
    return Answer(body, headers)


def encoded(value: JsonValue, request: Request) -> tuple[bytes, str]:
    """Return a value in the form that the request accepts, and its media type."""
    if request.headers.get(names.ACCEPT) == names.MSGPACK:
        try:
            return msgpack.packb(value), names.MSGPACK
        except (OverflowError, ValueError, TypeError):
            pass  # an integer of more than 64 bits, for example, has no form there
    return to_json(value), names.JSON


def _line(text: str) -> str:
    line = " ".join(text.split())[:_MAX_LINE]
    return line.encode("ascii", "replace").decode()
