"""Clean-up of artifacts and task logs of sessions. Neither call deletes unless `dry_run` is false."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Final

from pydantic import Field

from actors.kernel.runtime.ids import AgentId
from actors.kernel.stores.administration import Facts
from actors.sessions import cleanup
from actors.sessions.artifacts import ArtifactKind
from compose.web.changes import WebChange
from compose.web.endpoint import Done, ShownModel, StrictModel, WebCall, WebEndpoint

_MOST_S: Final = 100 * 365 * 86_400


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


async def clean_artifacts(call: WebCall, _: None, body: ArtifactChoiceJson) -> Done:
    """Delete names of artifacts, or list them with `dry_run`, in sessions that the principal sees."""
    choice = cleanup.ArtifactChoice(body.include_all, _span(body.older_than_s), body.max_bytes)
    only = None
    if body.session_id is not None:
        only = (await call.session(body.app, body.session_id)).agent
    sessions = await _sessions(call, body.app, only=only)
    change = _audited(call, body)
    done = await cleanup.clean_artifacts(call.runtime, sessions, choice, dry_run=body.dry_run)
    change.after = _after(change, len(done.candidates), done.size_bytes)
    fields = ArtifactCandidateJson.model_fields
    found = [
        ArtifactCandidateJson(**{key: getattr(one, key) for key in fields})
        for one in done.candidates
    ]
    return ArtifactCleanupJson(
        dry_run=done.is_dry_run, size_bytes=done.size_bytes, candidates=found
    )


async def clean_tasks(call: WebCall, _: None, body: TaskChoiceJson) -> Done:
    """Delete logs of a project's tasks, or list them. `project` is a label and not resolved as a path."""
    choice = cleanup.TaskChoice(
        body.include_failed, body.include_cancelled, _span(body.older_than_s)
    )
    sessions = await _sessions(call, body.app, project=body.project)
    change = _audited(call, body)
    done = await cleanup.clean_tasks(call.runtime, sessions, choice, dry_run=body.dry_run)
    change.after = _after(change, len(done.candidates), done.size_bytes)
    fields = TaskCandidateJson.model_fields.keys() - {"agent"}
    found = [
        TaskCandidateJson(agent=str(one.agent_id), **{key: getattr(one, key) for key in fields})
        for one in done.candidates
    ]
    return TaskCleanupJson(dry_run=done.is_dry_run, size_bytes=done.size_bytes, candidates=found)


def _audited(call: WebCall, body: ArtifactChoiceJson | TaskChoiceJson) -> WebChange:
    """Return the change that a clean-up makes, which is about an app. A dry run changes nothing."""
    thing = f"app:{body.app or call.api.app}"
    after = body.model_dump(exclude_none=True, exclude_defaults=True)
    return WebChange(thing=thing) if body.dry_run else call.audit(thing, after=after)


def _after(change: WebChange, deleted: int, size_bytes: int) -> Facts:
    return {**(change.after or {}), "deleted": deleted, "size_bytes": size_bytes}


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


ENDPOINTS: Final = (
    WebEndpoint(
        method="POST",
        path="/v1/cleanup/artifacts",
        call=clean_artifacts,
        says="List artifacts to clean up, or delete them.",
        body=ArtifactChoiceJson,
        answer=ArtifactCleanupJson,
    ),
    WebEndpoint(
        method="POST",
        path="/v1/cleanup/tasks",
        call=clean_tasks,
        says="List task logs to clean up, or delete them.",
        body=TaskChoiceJson,
        answer=TaskCleanupJson,
    ),
)
