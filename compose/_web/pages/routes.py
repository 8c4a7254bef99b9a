"""Routes of the pages, and the pages of sessions: apps, lists of sessions, conversations, runs, child runs."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from actors._kernel.basics import MAX_INT
from actors._runtime.replay.verdict import row_of
from actors._sessions.artifacts import artifacts_of
from compose._web.endpoint import Endpoints, StrictModel, WebCall, thing_of_session
from compose._web.flows.flows import flows_of
from compose._web.pages.cards import Folds
from compose._web.pages.conversation import (
    child_section,
    forks_of_section,
    open_runs,
    run_section,
    view_of,
)
from compose._web.pages.flows import evidence, flows, run_page
from compose._web.pages.html import Assets, PageEndpoint, page
from compose._web.problems import HttpProblem
from compose._web.resources.access import changes_of
from compose._web.resources.agents import apps_of
from compose._web.resources.runs import child_of, run_of
from compose._web.resources.sessions import SessionsQuery, page_of_sessions

endpoint: Final = Endpoints(PageEndpoint)

_LISTED: Final = 30
"""Maximum number of sessions beside a conversation, and on a page of the list."""
_APP: Final = "/chat/{app}"
_SESSION: Final = f"{_APP}/{{session}}"
_RUN: Final = f"{_SESSION}/runs/{{run}}"


class ListQuery(StrictModel):
    """The query of a list of sessions: a part of the title, and `next` of the previous page."""

    title: str = ""
    after: str | None = None


class PartQuery(StrictModel):
    """The query of a conversation: the part before a position in its path; by default the path's end."""

    before: int | None = Field(default=None, ge=0, le=MAX_INT)


class SignInQuery(StrictModel):
    """The query of the login page. `next` is the path to return to after the login."""

    next: str = "/"


@endpoint.get("/login", scope="public")
async def sign_in(call: WebCall, query: SignInQuery) -> Response:
    """Return the login page, where a token is exchanged for a login."""
    return page(call.request, "login.html", next=query.next)


@endpoint.get("/", scope="sessions:own")
async def show_apps(call: WebCall) -> Response:
    """Return the page of apps, the server's own app first."""
    apps = sorted(await apps_of(call), key=lambda app: not app.is_default)
    has_flows = "flows:run" in call.principal.scopes and bool(flows_of(call.runtime))
    return page(call.request, "apps.html", apps=apps, has_flows=has_flows)


async def _list_values(call: WebCall, query: ListQuery, app: str) -> dict[str, Any]:
    sessions = SessionsQuery(
        app=app, title=query.title or None, after=query.after or None, limit=_LISTED
    )
    part = await page_of_sessions(call, sessions)
    return {"sessions": part.sessions, "next": part.next, "title": query.title, "app": app}


@endpoint.get(_APP, scope="sessions:own")
async def show_sessions(call: WebCall, query: ListQuery) -> Response:
    """Return the page of an app's sessions."""
    values = await _list_values(call, query, call.names["app"])
    return page(call.request, "sessions.html", **values)


@endpoint.get(_SESSION, scope="sessions:own")
async def show_session(call: WebCall, query: PartQuery) -> Response:
    """Return the page of a conversation, with a list of the app's latest sessions."""
    app = call.names["app"]
    session = await call.session(app)
    view = await view_of(call.runtime, _folds(call), session, before=query.before)
    values: dict[str, Any] = {"app": app, "session": session.agent.key, "view": view}
    if query.before is not None:
        return page(call.request, "earlier.html", **values)
    values |= await _list_values(call, ListQuery(), app)
    values |= {"open": view.open, "files": view.files}
    values["modes"] = call.api.modes if app == call.api.app else ()
    values |= await changes_of(call, thing_of_session(session.agent))
    return page(call.request, "session.html", **values)


def _folds(call: WebCall) -> Folds:
    folds: Folds = call.api.caches.setdefault(Folds, Folds())
    return folds


@endpoint.get(_RUN, scope="sessions:own")
async def show_run(call: WebCall) -> Response:
    """Return a page with one run of a conversation, and the session's queue."""
    session = await call.session(call.names["app"])
    row = await run_of(call, session)
    files = await artifacts_of(call.runtime.store, session.agent).list()
    current_runs = await open_runs(call.runtime, session.agent)
    section = await run_section(
        call.runtime, _folds(call), session.agent, row, files=files, current_runs=current_runs
    )
    return page(
        call.request,
        "run.html",
        app=call.names["app"],
        session=session.agent.key,
        section=section,
        open=current_runs,
        files=files,
        forks=await forks_of_section(call.runtime, session.agent, section),
    )


@endpoint.get(f"{_RUN}/children/{{child}}", scope="sessions:own")
async def show_child(call: WebCall) -> Response:
    """Return a page with a child run of a conversation's run."""
    run, child = await child_of(call, call.names["app"])
    row = await row_of(call.runtime.store, child)
    return page(
        call.request,
        "child.html",
        app=call.names["app"],
        session=run.session_id,
        run_id=run.run_id,
        agent=str(row.agent_id),
        section=await child_section(call.runtime, row, await run.inspect_child(child)),
        forks={},
    )


async def static(request: Request) -> Response:
    """Return a script or a style."""
    response = Assets.load().response(request, **request.path_params)
    if response is not None:
        return response
    problem = HttpProblem(404, "not_found", "there is no such file", "reload the page")
    return problem.response(request.scope)


PAGES: Final = (
    *endpoint,
    *flows.endpoint,
    *run_page.endpoint,
    *evidence.endpoint,
    *flows.drawing_endpoint,
)
ROUTES: Final = [Route("/static/{version}/{name}", static, methods=["GET"])]
