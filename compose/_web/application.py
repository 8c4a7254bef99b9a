"""The ASGI application: the routes, and the checks that every route has in common."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final, TypeAlias

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from actors._runtime.runtime import Runtime
from actors._sessions.runtime import APP, AgentRuntime
from compose._web.endpoint import (
    OPENAPI,
    Endpoints,
    Handler,
    WebApi,
    WebCall,
    WebEndpoint,
    openapi_of,
)
from compose._web.flows import flows, snapshots
from compose._web.flows import runs as graph_runs
from compose._web.identity.authentication import Authentication
from compose._web.problems import HttpProblem, ProblemError, problem_of
from compose._web.requests import LOCAL, Authenticate, Limited, Origins, Principal, checked_origins
from compose._web.resources import access, agents, approvals, artifacts, events, runs, sessions
from compose._web.streams import Streams

ENDPOINTS: Final[tuple[WebEndpoint, ...]] = (
    *access.endpoint,
    *agents.endpoint,
    *sessions.endpoint,
    *runs.endpoint,
    *events.endpoint,
    *approvals.endpoint,
    *artifacts.endpoint,
    *flows.endpoint,
    *snapshots.endpoint,
    *graph_runs.endpoint,
)
SIGN_IN: Final = "/login"
_Answer: TypeAlias = "Callable[[Request], Awaitable[Response]]"


class WebApplication(Limited):
    """The API as an ASGI application.

    Args:
        inner: The routes.
        streams: The open event streams of this process.
    """

    def __init__(self, inner: ASGIApp, streams: Streams) -> None:
        super().__init__(inner)
        self._streams = streams

    def end_streams(self) -> None:
        """End all streams of events and refuse new ones. Clients reconnect to another process."""
        self._streams.end()


def app(
    runtime: Runtime | AgentRuntime,
    *,
    default_app: str = APP,
    modes: Sequence[str] = (),
    local: Principal = LOCAL,
    authenticate: Authenticate | None = None,
    apps: Sequence[str] = (),
    cors_origins: Sequence[str] = (),
    is_loopback: bool = False,
) -> WebApplication:
    """Return the API as an ASGI application, for a server or to be mounted in another one.

    Args:
        runtime: A started runtime, or open sessions of one app, which serve requests that name no app. The
            caller stops it. A runtime with ``serve=False`` is a client, and hosts execute the runs.
        default_app: The type of sessions for requests that name no app.
        modes: Names of the modes of that app. If empty, any mode is tried.
        local: The principal of each request if there is no login.
        authenticate: Returns the principal of a request. If None, each request has the principal `local`, so
            any client that reaches the address has all scopes of `local`. An `Authentication` also has logins
            of browsers, and ends the streams of principals that have become invalid.
        apps: Names of further apps whose sessions requests may name. Without a login, requests may name any
            app.
        cors_origins: Origins of other sites whose pages may send requests, with a bearer token.
        is_loopback: Answer only requests whose Host is this machine's own address. A web page elsewhere can
            then not use a name that resolves to this address to send requests with the rights of the page's
            reader.

    Raises:
        ContractError: An entry of `cors_origins` is not an origin.
    """
    local_agents = None
    if isinstance(runtime, AgentRuntime):
        local_agents, default_app = runtime, runtime.app
        local = replace(local, tenant=runtime.tenant)
        runtime = runtime.runtime
    logins = authenticate if isinstance(authenticate, Authentication) else None
    api = WebApi(
        runtime=runtime,
        app=default_app,
        modes=tuple(modes),
        local=local,
        authenticate=authenticate,
        apps=frozenset(apps),
        streams=Streams(None if logins is None else logins.over),
        local_agents=local_agents,
        sign_in=None if logins is None else SIGN_IN,
    )
    origins = Origins(allowed=checked_origins(cors_origins), is_loopback=is_loopback)
    pages, page_routes = _pages()
    routes = _routes(api, origins, (*ENDPOINTS, *_agui(), *pages))
    inner = Starlette(
        routes=[*routes, *page_routes, Route(OPENAPI, _openapi)],
        exception_handlers=dict.fromkeys((404, 405), _refuse),
    )
    inner.router.redirect_slashes = False
    return WebApplication(inner, api.streams)


def client_app(runtime: Runtime, principal: Principal) -> ASGIApp:
    """Return the API for a client in this process, without pages. Requests may name runs of any app of flows.

    Args:
        runtime: A started runtime. The caller stops it.
        principal: The principal of all requests.
    """
    api = WebApi(runtime=runtime, local=principal, is_client=True)
    handlers = dict.fromkeys((404, 405), _refuse)
    routes = _routes(api, Origins(), ENDPOINTS)
    return Limited(Starlette(routes=routes, exception_handlers=handlers))


def _routes(api: WebApi, origins: Origins, endpoints: Iterable[WebEndpoint]) -> list[Route]:
    endpoints_by_path: defaultdict[str, dict[str, WebEndpoint]] = defaultdict(dict)
    for endpoint in endpoints:
        endpoints_by_path[endpoint.path][endpoint.method] = endpoint
    return [
        Route(
            path,
            _answer(api, endpoints_by_method, origins),
            methods=[*endpoints_by_method, "OPTIONS"],
            name=path,
        )
        for path, endpoints_by_method in endpoints_by_path.items()
    ]


async def _openapi(_: Request) -> Response:
    return JSONResponse(_document())


@cache
def _document() -> dict[str, Any]:
    """Return the description of all endpoints. It is computed once, which takes about 0.1 s."""
    return openapi_of((*ENDPOINTS, *_agui()))


async def _refuse(request: Request, exc: Exception) -> Response:
    return problem_of(exc).response(request.scope)


def _agui() -> Sequence[WebEndpoint]:
    """Return the endpoint of the AG-UI protocol, or an endpoint that names the missing extra."""
    try:
        from compose._web.agui.endpoint import endpoint as agui  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as exc:
        endpoint = Endpoints()
        refuse = _refusing_handler("no_agui", "AG-UI is not available", exc)
        endpoint.post("/agui/{app}", scope="sessions:own", action=None)(refuse)
        return endpoint
    return agui


def _refusing_handler(code: str, problem: str, missing: ModuleNotFoundError) -> Handler:
    """Return a handler that refuses requests because a package of the extra is missing."""

    async def refuse(_: WebCall) -> Response:
        why = f"{problem}: the package {missing.name!r} is not installed"
        remedy = "pip install 'callboard[web]'; the API under /v1 works without it"
        raise ProblemError(HttpProblem(501, code, why, remedy))

    return refuse


def _pages() -> tuple[Sequence[WebEndpoint], list[Route]]:
    """Return the endpoints of the pages and the routes of their scripts. Without the extra, `/` answers 501."""
    try:
        from compose._web.pages.routes import PAGES, ROUTES  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as exc:
        endpoint = Endpoints()
        refuse = _refusing_handler("no_pages", "the pages are not available", exc)
        endpoint.get("/", scope="sessions:own")(refuse)
        return endpoint, []
    return PAGES, ROUTES


def _answer(api: WebApi, endpoints_by_method: dict[str, WebEndpoint], origins: Origins) -> _Answer:
    async def answer(request: Request) -> Response:
        problem = origins.problem(request)
        if problem is not None:
            return problem.response(request.scope)
        response = origins.preflight(request)
        if response is None:
            response = await respond(request)
        return origins.show(request, response)

    async def respond(request: Request) -> Response:
        endpoint = endpoints_by_method.get(request.method)
        if endpoint is None:  # HEAD, which Starlette adds: on a stream it would not end
            methods = ", ".join(endpoints_by_method)
            remedy, allow = f"use {methods}", {"allow": methods}
            problem = HttpProblem(
                405, "method_not_allowed", "Method Not Allowed", remedy, headers=allow
            )
            return problem.response(request.scope)
        return await endpoint.respond(api, request)

    return answer
