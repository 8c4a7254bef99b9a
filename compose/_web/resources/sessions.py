"""Sessions: create, list, relabel, delete."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Final, Literal

from pydantic import Field, JsonValue
from starlette.responses import Response

from actors._kernel.runtime.ids import AgentId
from actors._kernel.stores.administration import Facts
from actors._kernel.stores.conversations import (
    SessionFilter,
    SessionLabel,
    SessionPlace,
    SessionRow,
)
from actors._kernel.stores.errors import UnknownSessionError
from compose._web.endpoint import (
    Endpoints,
    FoundSession,
    ShownModel,
    StrictModel,
    WebCall,
    json_response,
    thing_of_session,
)
from compose._web.resources.pages import OfApp, PagedOfApp, parse_place, place_text
from compose._web.resources.runs import OPEN, RunJson, run_json

endpoint: Final = Endpoints()

_SESSIONS: Final = "/v1/sessions"
_SESSION: Final = f"{_SESSIONS}/{{session}}"
MOST_QUEUED: Final = 1_000
"""Maximum number of open runs that a session's detail has."""


class NewSessionJson(StrictModel):
    """A session to create. If a session of this id exists, it is returned unchanged.

    Attributes:
        app: The type of the session's agent; by default the server's own app.
        session_id: The session's id; by default a new one.
        title: Text for lists and searches.
        metadata: A JSON object.
        project: A label, by which clean-up chooses task logs.
    """

    app: str | None = None
    session_id: str | None = None
    title: str = ""
    metadata: dict[str, JsonValue] = Field(default_factory=dict)
    project: str = ""


class LabelJson(StrictModel):
    """New title or metadata of a session. Omitted fields stay unchanged. Metadata are replaced as a whole."""

    title: str | None = None
    metadata: dict[str, JsonValue] | None = None


class SessionJson(ShownModel):
    """A session.

    Attributes:
        session_id: The session's id.
        app: The type of the session's agent.
        title: Text for lists and searches.
        metadata: A JSON object.
        project: A label, by which clean-up chooses task logs.
        status: ``active`` if the session has an open run, else ``idle``.
        open_runs: Number of open runs.
        owner: The principal that owns the session; null if it has no owner.
        active_node: The node from which the next run continues; null if there is none.
        created_at: When the session was created.
        last_at: When a run of the session was last queued, started, requested to stop, or ended.
    """

    session_id: str
    app: str
    title: str
    metadata: Mapping[str, JsonValue]
    project: str
    status: Literal["active", "idle"]
    open_runs: int
    owner: str | None
    active_node: str | None
    created_at: datetime
    last_at: datetime


class SessionDetailJson(SessionJson):
    """A session with its open runs, in the order of their arrival."""

    queue: list[RunJson]


class SessionsJson(ShownModel):
    """A page of sessions, most recently changed first. `next` is null on the last page.

    A page reads at most 10,000 sessions. A page of a search may therefore have few sessions, or none, and a
    `next`.
    """

    sessions: list[SessionJson]
    next: str | None


class SessionsQuery(PagedOfApp):
    """The query of a list of sessions. `title` matches a part of the title, in upper or lower case."""

    status: Literal["active", "idle"] | None = None
    title: str | None = None


class DeletedJson(ShownModel):
    """Number of deleted rows of a session, by kind."""

    session_id: str
    counts: dict[str, dict[str, int]]


def _facts(row: SessionRow) -> dict[str, object]:
    return {
        "session_id": row.agent_id.key,
        "app": row.agent_id.type,
        "title": row.title,
        "metadata": row.metadata,
        "project": row.project,
        "status": "active" if row.open_runs else "idle",
        "open_runs": row.open_runs,
        "owner": row.owner,
        "active_node": row.head,
        "created_at": row.created_at,
        "last_at": row.last_at,
    }


async def _detail(call: WebCall, session: FoundSession) -> SessionDetailJson:
    rows = []
    if session.row.open_runs:
        rows = await call.runtime.store.lists.runs(
            agent=session.agent, status=OPEN, limit=MOST_QUEUED
        )
    rows.sort(key=lambda row: row.arrival)
    queue = [run_json(row, session.agent.key) for row in rows]
    return SessionDetailJson.model_validate({**_facts(session.row), "queue": queue})


@endpoint.post(_SESSIONS, scope="sessions:own", action="session.create", status=201)
async def create(call: WebCall, body: NewSessionJson) -> SessionDetailJson | Response:
    """Create a session, or return the existing one.

    Respond 201, or 200 if the session exists.
    """
    agents = await call.sessions(body.app)
    agent = agents.agent_id(secrets.token_hex(16) if body.session_id is None else body.session_id)
    label = SessionLabel(title=body.title, metadata=body.metadata)
    is_new = await make_session(call, agent, label, body.project)
    if is_new:
        facts: Facts = {"title": body.title, "metadata": body.metadata, "project": body.project}
        call.audit(thing_of_session(agent), agent=agent, after=facts)
    session = await call.session(body.app, agent.key)
    return json_response(await _detail(call, session), 201 if is_new else 200)


async def make_session(
    call: WebCall, agent: AgentId, label: SessionLabel | None = None, project: str = ""
) -> bool:
    """Create a session of the principal, unless it exists; return whether it was created.

    An id stays reserved for its first owner. A principal that sees all sessions may recreate it for that owner.
    """
    label = label or SessionLabel()
    directory, principal = call.runtime.store.data.directory, call.principal
    if await directory.create(agent, label, project=project, owner=principal.name):
        return True
    return principal.only_owner is None and await directory.create(agent, label, project=project)


async def page_of_sessions(call: WebCall, query: SessionsQuery) -> SessionsJson:
    """Return a page of the sessions of an app."""
    agents = await call.sessions(query.app)
    session_filter = SessionFilter(
        tenant=agents.tenant,
        app=agents.app,
        is_active=None if query.status is None else query.status == "active",
        title=query.title,
        owner=call.principal.only_owner,
        after=None if query.after is None else parse_place(query.after),
    )
    matches = await call.runtime.store.data.directory.find(session_filter, limit=query.limit + 1)
    page, position = matches.rows[: query.limit], matches.read_until
    if len(matches.rows) > query.limit:
        position = SessionPlace(page[-1].last_at, page[-1].agent_id)
    return SessionsJson(
        sessions=[SessionJson.model_validate(_facts(row)) for row in page],
        next=None if position is None else place_text(position),
    )


@endpoint.get(_SESSIONS, scope="sessions:own")
async def find(call: WebCall, query: SessionsQuery) -> SessionsJson | Response:
    """List sessions, most recently changed first."""
    return await page_of_sessions(call, query)


@endpoint.get(_SESSION, scope="sessions:own")
async def show(call: WebCall, query: OfApp) -> SessionDetailJson:
    """Show a session and its open runs."""
    return await _detail(call, await call.session(query.app))


@endpoint.patch(_SESSION, scope="sessions:own", action="session.relabel")
async def relabel(call: WebCall, query: OfApp, body: LabelJson) -> SessionDetailJson:
    """Replace title or metadata of a session."""
    session = await call.session(query.app)
    directory, after = call.runtime.store.data.directory, body.model_dump(exclude_none=True)
    facts: Facts = {"title": session.row.title, "metadata": {**session.row.metadata}}
    before = {name: facts[name] for name in after}
    call.audit(thing_of_session(session.agent), agent=session.agent, before=before, after=after)
    if not await directory.relabel(session.agent, title=body.title, metadata=body.metadata):
        raise UnknownSessionError(str(session.agent))
    return await _detail(call, await call.session(query.app))


@endpoint.delete(_SESSION, scope="sessions:own", action="session.delete")
async def delete(call: WebCall, query: OfApp) -> DeletedJson:
    """Delete a session irreversibly.

    Refused while a run of it is open.
    """
    agents = await call.sessions(query.app)
    agent = agents.agent_id(call.names["session"])
    store = call.runtime.store
    row, owner = await store.data.sessions.get(agent), call.principal.only_owner
    # A deleted session answers 410, but only to a principal that saw it.
    if row is None:
        is_seen = await store.data.directory.is_deleted(agent, owner=owner)
    else:
        is_seen = call.principal.sees(row.owner)
    if not is_seen:
        raise UnknownSessionError(str(agent))
    before = None if row is None else {"owner": row.owner, "open_runs": row.open_runs}
    call.audit(thing_of_session(agent), agent=agent, before=before)
    try:
        counts = await agents.delete_session(agent.key)
    except UnknownSessionError:
        await call.session(query.app)  # raises 410 if it was deleted before
        raise
    return DeletedJson(session_id=agent.key, counts=counts)
