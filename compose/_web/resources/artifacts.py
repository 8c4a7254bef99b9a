"""Artifacts of sessions: uploads as streams, lists, downloads, and clean-up.

A clean-up, also that of task logs, deletes nothing unless `dry_run` is false.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import quote

from pydantic import Field
from starlette.responses import Response, StreamingResponse

from actors._kernel.runtime.ids import AgentId
from actors._kernel.stores.administration import Facts
from actors._sessions import cleanup
from actors._sessions.artifacts import ArtifactKind, SessionArtifact, SessionArtifacts
from actors._sessions.errors import UnknownArtifactError
from compose._web.endpoint import (
    Endpoints,
    ShownModel,
    StrictModel,
    WebCall,
    WebChange,
    json_response,
    thing_of_session,
)
from compose._web.requests import pieces_of
from compose._web.resources.pages import OfApp

endpoint: Final = Endpoints()

BYTES: Final = "application/octet-stream"
_MEDIA_TYPE: Final = re.compile(
    r"[\w!#$&^.+-]{1,100}/[\w!#$&^.+-]{1,100}(?:; ?charset=[\w-]{1,40})?", re.ASCII
)
NEVER_SHOWN: Final = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "default-src 'none'; sandbox",
    "cache-control": "no-store",
}
"""Headers that make a browser save the bytes and never render them: models and strangers made them."""
_ARTIFACTS: Final = "/v1/artifacts"
_ARTIFACT: Final = f"{_ARTIFACTS}/{{artifact}}"
_MOST_S: Final = 100 * 365 * 86_400


class OfSession(OfApp):
    """The query that names an artifact's session."""

    session_id: str


class Upload(OfSession):
    """The query of an upload. The media type is the request's Content-Type."""

    name: str
    kind: ArtifactKind = "ordinary"


class ArtifactJson(ShownModel):
    """An artifact. `artifact_id` is the SHA-256 of its bytes."""

    name: str
    kind: ArtifactKind
    artifact_id: str
    size_bytes: int
    content_type: str
    run_id: str | None
    at: datetime


class ArtifactsJson(ShownModel):
    """The artifacts of a session, by name."""

    artifacts: list[ArtifactJson]


def _artifact_json(artifact: SessionArtifact) -> ArtifactJson:
    return ArtifactJson(
        name=artifact.name,
        kind=artifact.kind,
        artifact_id=artifact.ref.id,
        size_bytes=artifact.ref.size_bytes,
        content_type=artifact.ref.content_type,
        run_id=artifact.run_id,
        at=artifact.at,
    )


async def _artifacts(
    call: WebCall, query: OfSession, *, before: Facts | None = None, after: Facts | None = None
) -> SessionArtifacts:
    """Return the artifacts of a session, which the request changes if it has facts for the audit."""
    session = await call.session(query.app, query.session_id)
    if before is not None or after is not None:
        thing = thing_of_session(session.agent)
        call.audit(thing, agent=session.agent, before=before, after=after)
    return session.agents.artifacts(session.agent.key)


@endpoint.post(_ARTIFACTS, scope="sessions:own", action="artifact.store", status=201, takes=BYTES)
async def upload(call: WebCall, query: Upload) -> ArtifactJson | Response:
    """Store the body as an artifact of a session.

    An artifact of that name is replaced. The body is never in memory as a whole.
    """
    artifacts = await _artifacts(call, query, after={"artifact": query.name, "kind": query.kind})
    content_type = call.request.headers.get("content-type", BYTES)
    media_type = content_type if _MEDIA_TYPE.fullmatch(content_type) else BYTES
    body = pieces_of(call.request)
    await artifacts.put(query.name, body, kind=query.kind, content_type=media_type)
    return json_response(_artifact_json(await artifacts.find(query.name)), 201)


@endpoint.get(_ARTIFACTS, scope="sessions:own")
async def list_artifacts(call: WebCall, query: OfSession) -> ArtifactsJson:
    """List artifacts of a session, by name."""
    artifacts = await (await _artifacts(call, query)).list()
    return ArtifactsJson(artifacts=[_artifact_json(artifact) for artifact in artifacts])


@endpoint.get(_ARTIFACT, scope="sessions:own", media_type=BYTES)
async def download(call: WebCall, query: OfSession) -> Response:
    """Download an artifact."""
    artifacts, name = await _artifacts(call, query), call.names["artifact"]
    ref = (await artifacts.find(name)).ref
    media_type = ref.content_type if _MEDIA_TYPE.fullmatch(ref.content_type) else BYTES
    file = quote(name.rpartition("/")[2] or "artifact", safe="")
    headers = {
        "content-length": str(ref.size_bytes),
        "content-type": media_type,
        "content-disposition": f"attachment; filename*=UTF-8''{file}",
        "etag": f'"{ref.id}"',
        **NEVER_SHOWN,
    }
    return StreamingResponse(artifacts.read(name), headers=headers)


@endpoint.delete(_ARTIFACT, scope="sessions:own", action="artifact.delete", status=204)
async def delete(call: WebCall, query: OfSession) -> Response:
    """Delete the name of an artifact.

    Its bytes are collected a day later if nothing else pins them.
    """
    name = call.names["artifact"]
    artifacts = await _artifacts(call, query, before={"artifact": name})
    if not await artifacts.delete(name):
        raise UnknownArtifactError(name)
    return Response(status_code=204)


class ArtifactChoiceJson(StrictModel):
    """A choice of artifacts. See docs/sessions.md, "Clean-up"."""

    app: str | None = None
    session_id: str | None = None
    dry_run: bool = True
    include_all: bool = False
    older_than_s: float | None = Field(default=None, ge=0, le=_MOST_S)
    max_bytes: int | None = Field(default=None, ge=0, le=2**63 - 1)


class TaskChoiceJson(StrictModel):
    """A choice of tasks. See docs/sessions.md, "Clean-up"."""

    app: str | None = None
    project: str
    dry_run: bool = True
    include_failed: bool = False
    include_cancelled: bool = False
    older_than_s: float | None = Field(default=None, ge=0, le=_MOST_S)


class ArtifactCandidateJson(ShownModel):
    """An artifact to delete, with the reason."""

    session_id: str
    name: str
    kind: ArtifactKind
    run_id: str | None
    artifact_id: str
    size_bytes: int
    at: datetime
    reason: str


class TaskCandidateJson(ShownModel):
    """A run whose log is to be deleted, with the reason."""

    session_id: str
    run_id: str
    agent: str
    task: str
    status: str
    ended_at: datetime
    entries: int
    size_bytes: int
    reason: str


class ArtifactCleanupJson(ShownModel):
    """The artifacts that were deleted, or would be without `dry_run`, oldest first."""

    dry_run: bool
    size_bytes: int
    candidates: list[ArtifactCandidateJson]


class TaskCleanupJson(ShownModel):
    """The runs whose logs were deleted, or would be without `dry_run`, oldest first."""

    dry_run: bool
    size_bytes: int
    candidates: list[TaskCandidateJson]


@endpoint.post("/v1/cleanup/artifacts", scope="cleanup", action="cleanup.artifacts")
async def clean_artifacts(call: WebCall, body: ArtifactChoiceJson) -> ArtifactCleanupJson:
    """List artifacts to clean up, or delete them.

    Names are deleted, or listed with `dry_run`, in sessions that the principal sees.
    """
    choice = cleanup.ArtifactChoice(body.include_all, _span(body.older_than_s), body.max_bytes)
    only = None
    if body.session_id is not None:
        only = (await call.session(body.app, body.session_id)).agent
    sessions = await _sessions(call, body.app, only=only)
    change = _audit_change(call, body)
    result = await cleanup.clean_artifacts(call.runtime, sessions, choice, dry_run=body.dry_run)
    change.after = _facts_after(change, len(result.candidates), result.size_bytes)
    fields = ArtifactCandidateJson.model_fields
    candidates = [
        ArtifactCandidateJson(**{key: getattr(candidate, key) for key in fields})
        for candidate in result.candidates
    ]
    return ArtifactCleanupJson(
        dry_run=result.is_dry_run, size_bytes=result.size_bytes, candidates=candidates
    )


@endpoint.post("/v1/cleanup/tasks", scope="cleanup", action="cleanup.tasks")
async def clean_tasks(call: WebCall, body: TaskChoiceJson) -> TaskCleanupJson:
    """List task logs to clean up, or delete them.

    `project` is a label and not resolved as a path.
    """
    choice = cleanup.TaskChoice(
        body.include_failed, body.include_cancelled, _span(body.older_than_s)
    )
    sessions = await _sessions(call, body.app, project=body.project)
    change = _audit_change(call, body)
    result = await cleanup.clean_tasks(call.runtime, sessions, choice, dry_run=body.dry_run)
    change.after = _facts_after(change, len(result.candidates), result.size_bytes)
    fields = TaskCandidateJson.model_fields.keys() - {"agent"}
    candidates = [
        TaskCandidateJson(
            agent=str(candidate.agent_id), **{key: getattr(candidate, key) for key in fields}
        )
        for candidate in result.candidates
    ]
    return TaskCleanupJson(
        dry_run=result.is_dry_run, size_bytes=result.size_bytes, candidates=candidates
    )


def _audit_change(call: WebCall, body: ArtifactChoiceJson | TaskChoiceJson) -> WebChange:
    """Return the change that a clean-up makes, which is about an app. A dry run changes nothing."""
    thing = f"app:{body.app or call.api.app}"
    after = body.model_dump(exclude_none=True, exclude_defaults=True)
    return WebChange(thing=thing) if body.dry_run else call.audit(thing, after=after)


def _facts_after(change: WebChange, deleted_count: int, size_bytes: int) -> Facts:
    return {**(change.after or {}), "deleted": deleted_count, "size_bytes": size_bytes}


async def _sessions(
    call: WebCall, app: str | None, *, project: str | None = None, only: AgentId | None = None
) -> AsyncIterator[AgentId]:
    """Return the sessions of an app that the principal sees."""
    agents = await call.sessions(app)
    return cleanup.sessions_of(
        call.runtime.store,
        agents.tenant,
        agents.app,
        project=project,
        owner=call.principal.only_owner,
        only=only,
    )


def _span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
