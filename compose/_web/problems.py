"""Problem responses (RFC 9457), and the table that maps errors to statuses."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from actors import errors
from actors._kernel.stores import errors as store_errors
from actors._kernel.workflow import errors as graph_errors
from actors._sessions import errors as session_errors

_log = logging.getLogger("callboard.web")

MEDIA_TYPE: Final = "application/problem+json"
_MOST_CHARACTERS: Final = 1_000
_AGAIN: Final = "send it again, with the same Idempotency-Key: it is done once"
_CORRECT: Final = "correct the request; /v1/openapi.json has the form"


class ProblemJson(BaseModel):
    """A problem, as clients read it.

    Attributes:
        type: URN of the kind of problem.
        title: The status in words.
        status: The status.
        detail: What is wrong, in a sentence.
        instance: The path of the request.
        code: One word for programs.
        name: The thing that the problem concerns.
        remedy: What the client can do.
        errors: The invalid fields of a body or a query.
    """

    model_config = ConfigDict(frozen=True)

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    name: str | None = None
    remedy: str
    errors: list[dict[str, str]] | None = None


@dataclass(frozen=True, slots=True)
class HttpProblem:
    """The reason why a request is refused. See `ProblemJson`.

    Attributes:
        status: The status of the response.
        code: One word for programs.
        detail: What is wrong.
        remedy: What the client can do.
        name: The thing that the problem concerns.
        headers: Further headers of the response.
        errors: The invalid fields.
    """

    status: int
    code: str
    detail: str
    remedy: str = _CORRECT
    name: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    errors: list[dict[str, str]] | None = None

    def response(self, scope: Scope) -> Response:
        """Return the response to the request with this ASGI scope."""
        fields = self.errors and [
            {key: _text(text) for key, text in entry.items()} for entry in self.errors
        ]
        body = ProblemJson(
            type=f"urn:callboard:problem:{self.code}",
            title=HTTPStatus(self.status).phrase,
            status=self.status,
            detail=_text(self.detail),
            instance=_text(str(scope["path"])),
            code=self.code,
            name=None if self.name is None else _text(self.name),
            remedy=_text(self.remedy),
            errors=fields,
        )
        return Response(
            body.model_dump_json(exclude_none=True),
            status_code=self.status,
            headers={"cache-control": "no-store", **self.headers},
            media_type=MEDIA_TYPE,
        )


class ProblemError(errors.Facts, errors.ContractError):
    """An error that carries the problem to respond with."""

    text = "{problem.detail}"
    problem: HttpProblem


_TABLE: Final[tuple[tuple[type[Exception], int, str, str], ...]] = (
    (errors.UnknownRunError, 404, "unknown_run", "GET /v1/sessions/{session}/runs lists runs"),
    (
        store_errors.UnknownSessionError,
        404,
        "unknown_session",
        "POST /v1/sessions makes one; ?app= names the app",
    ),
    (
        store_errors.UnknownNodeError,
        404,
        "unknown_node",
        "GET /v1/sessions/{session}/nodes?path=all lists nodes",
    ),
    (
        session_errors.UnknownChildError,
        404,
        "unknown_child",
        "GET …/runs/{run}/children lists children",
    ),
    (
        session_errors.UnknownArtifactError,
        404,
        "unknown_artifact",
        "GET /v1/artifacts?session_id= lists them",
    ),
    (errors.UnknownApprovalError, 404, "unknown_approval", "GET /v1/approvals lists the open ones"),
    (errors.UnservedError, 404, "unserved", "start a host that serves it, or correct the name"),
    (errors.OtherTenantError, 404, "unknown", "name a thing of your tenant"),
    (
        errors.RunSweptError,
        410,
        "swept",
        "read results in time, or ask the operators to keep them longer",
    ),
    (
        store_errors.SessionActiveError,
        409,
        "session_active",
        "cancel its open runs, or wait for their end",
    ),
    (
        store_errors.SessionDeletingError,
        409,
        "session_deleting",
        "DELETE it again, or take another id",
    ),
    (store_errors.OpenRunsError, 409, "open_runs", "cancel the open runs, or wait for their end"),
    (errors.RunConflictError, 409, "run_conflict", "wait for that run, or send on_conflict: queue"),
    (
        graph_errors.StaleResumeError,
        409,
        "stale_resume",
        "GET /v1/graph-runs/{run} shows what it waits for now",
    ),
    (
        graph_errors.SpecChangedError,
        409,
        "spec_changed",
        'send {"force": true} if the nodes of the flow still fit',
    ),
    (graph_errors.NoSuchRunError, 404, "unknown_run", "GET /v1/graph-runs lists runs of flows"),
    (
        graph_errors.NoSuchSnapshotError,
        404,
        "unknown_snapshot",
        "GET /v1/graph-snapshots lists them",
    ),
    (errors.ConflictError, 409, "conflict", "read the current state, and try again"),
    (errors.MessageTooLargeError, 413, "too_large", "upload it as an artifact, and send its name"),
    (session_errors.UnknownModeError, 422, "unknown_mode", "GET /v1/apps lists modes"),
    (session_errors.CursorError, 400, "bad_cursor", "leave the cursor out: read from the start"),
    (errors.InvalidNameError, 422, "invalid_name", _CORRECT),
    (errors.ContractError, 422, "invalid", _CORRECT),
)
"""Error, and status, code and remedy of the response. The first entry whose type fits is used."""
_NAMES: Final = (
    "run_id",
    "snapshot_id",
    "session",
    "node",
    "child",
    "name",
    "approval_id",
    "agent",
    "mode",
    "cursor",
)
"""Attributes of errors that name a thing. The first of these that an error has is used."""


def is_away(exc: Exception) -> bool:
    """Return True if the database or the broker could not be used."""
    is_theirs = isinstance(exc, errors.PersistenceError | errors.BrokerError)
    return is_theirs and not isinstance(exc, errors.StoreRefusedError)


def problem_of(exc: Exception) -> HttpProblem:
    """Return the problem to respond with for an error. An internal error is logged."""
    if isinstance(exc, ProblemError):
        return exc.problem
    if isinstance(exc, HTTPException):
        code = HTTPStatus(exc.status_code).phrase.lower().replace(" ", "_")
        return HttpProblem(exc.status_code, code, exc.detail, headers=dict(exc.headers or {}))
    if is_away(exc):
        _log.warning(
            "a request could not use the database or the broker", extra={"error": str(exc)}
        )
        problem = "the database or the broker cannot be used at the moment"
        return HttpProblem(503, "unavailable", problem, _AGAIN, headers={"retry-after": "1"})
    for kind, status, code, remedy in _TABLE:
        if isinstance(exc, kind):
            facts = vars(exc)
            name = next((str(facts[key]) for key in _NAMES if key in facts), None)
            return HttpProblem(status, code, str(exc), remedy, name)
    _log.error("a request failed", exc_info=exc)
    problem = "the request failed in this process; see its log for the cause"
    return HttpProblem(500, "internal", problem, f"report it to the operators; {_AGAIN}")


def problem_of_input(exc: ValidationError, where: str) -> ProblemError:
    """Return the error to raise for a body or a query that does not fit its model."""
    invalid_fields = [
        {"where": _text(".".join((where, *map(str, error["loc"])))), "problem": _text(error["msg"])}
        for error in exc.errors(include_url=False, include_context=False, include_input=False)[:20]
    ]
    detail = "; ".join(f"{entry['where']}: {entry['problem']}" for entry in invalid_fields[:3])
    return ProblemError(HttpProblem(422, "invalid", detail, errors=invalid_fields))


def _text(text: str) -> str:
    """Return text that can be sent: cut after 1,000 characters, and without unpaired surrogates."""
    cut_text = text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS] + "…"
    return cut_text.encode("utf-8", "replace").decode()
