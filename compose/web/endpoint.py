"""Endpoints: a method and a path, the models that validate query and body, and the handler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, TypeAlias

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator
from starlette.requests import Request
from starlette.responses import Response

from actors.kernel.json import JsonValue
from actors.kernel.runtime.ids import AgentId
from actors.kernel.stores.administration import DONE, Facts
from actors.kernel.stores.conversations import SessionRow
from actors.kernel.stores.errors import UnknownSessionError
from actors.runtime.runtime import Runtime
from actors.sessions.runtime import APP, AgentRuntime
from compose.web.access import Access
from compose.web.changes import WebChange, action_of, write_changes
from compose.web.limits import MAX_BODY_BYTES, parse_body, parse_id, parse_query, read_body
from compose.web.principal import LOCAL, NOBODY, Authenticate, Principal
from compose.web.problems import HttpProblem, ProblemError, problem_of, problem_of_input
from compose.web.streams import Streams

MOST_CLIENTS: Final = 1_024
"""Maximum number of `AgentRuntime`s that a process keeps, one per principal and app."""


class StrictModel(BaseModel):
    """Base of models that clients send. Unknown fields are refused.

    A null in a field that has another default and takes no null is as if the field were absent: many clients
    write their optional fields so.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        if not isinstance(value, dict) or None not in value.values():
            return value
        absent = _names_without_null(cls)
        return {key: item for key, item in value.items() if item is not None or key not in absent}


@cache
def _names_without_null(model: type[BaseModel]) -> frozenset[str]:
    """Return the names of a model's optional fields that take no null."""
    fields = {name: one for name, one in model.model_fields.items() if not one.is_required()}
    return frozenset(name for name, one in fields.items() if not _takes_null(one.annotation))


def _takes_null(annotation: Any) -> bool:
    try:
        TypeAdapter(annotation).validate_python(None)
    except ValidationError:
        return False
    return True


class NoQuery(StrictModel):
    """A query without fields."""


class ShownModel(BaseModel):
    """Base of models that are sent to clients."""

    model_config = ConfigDict(frozen=True)


@dataclass(slots=True, kw_only=True)
class WebApi:
    """Settings and state that all requests of a process share.

    Attributes:
        runtime: The runtime that requests use.
        app: The type of sessions for requests that name no app.
        modes: Names of the modes of that app. If empty, any mode is tried.
        local: The principal of each request if `authenticate` is None.
        authenticate: Returns the principal of a request.
        apps: Names of further apps whose sessions requests may name. Principals with the scope ``operate``, and
            the local principal, may name any app.
        streams: The open event streams. They end together.
        kept: Caches of endpoints, which stay between requests, by class.
        given: Starts the local principal's runs of its app. It has the app's modes, and may decide approvals.
        sign_in: Path of the login page. Pages redirect there instead of answering 401.
    """

    runtime: Runtime
    app: str = APP
    modes: tuple[str, ...] = ()
    local: Principal = LOCAL
    authenticate: Authenticate | None = None
    apps: frozenset[str] = frozenset()
    given: AgentRuntime | None = None
    sign_in: str | None = None
    streams: Streams = field(default_factory=Streams)
    kept: dict[type, Any] = field(default_factory=dict)
    _clients: dict[tuple[str, str, str], AgentRuntime] = field(default_factory=dict)

    async def sessions(self, principal: Principal, app: str | None) -> AgentRuntime:
        """Return the sessions of an app, as a principal sees them.

        Raises:
            InvalidNameError: `app` is not a valid name of an app.
            ProblemError: This process does not serve the app.
        """
        key = (principal.tenant, principal.name, app or self.app)
        if not self.may_use(principal, key[-1]):
            problem, remedy = f"no app {app} is served here", "GET /v1/apps lists apps"
            raise ProblemError(HttpProblem(404, "unknown_app", problem, remedy, app))
        if (
            self.authenticate is None
            and self.given is not None
            and key == (self.local.tenant, self.local.name, self.given.app)
        ):
            return self.given
        found = self._clients.get(key)
        if found is None:
            tenant, name, wanted = key
            found = AgentRuntime(runtime=self.runtime, app=wanted, tenant=tenant, principal=name)
            await found.open()
            if len(self._clients) >= MOST_CLIENTS:
                self._clients.pop(next(iter(self._clients)))
            self._clients[key] = found
        return found

    def may_use(self, principal: Principal, app: str) -> bool:
        """Return True if a principal may use agents of this type as an app's sessions."""
        is_free = self.authenticate is None or "operate" in principal.scopes
        return is_free or app == self.app or app in self.apps


@dataclass(frozen=True, slots=True, kw_only=True)
class WebCall:
    """A request during its processing.

    Attributes:
        api: Settings and state that all requests share.
        principal: The principal of the request.
        request: The raw request.
        names: The decoded path parameters, by name.
        changes: The changes of the request, for the audit.
    """

    api: WebApi
    principal: Principal
    request: Request
    names: Mapping[str, str]
    changes: list[WebChange] = field(default_factory=list)

    def audit(
        self,
        thing: str,
        *,
        agent: AgentId | None = None,
        before: Facts | None = None,
        after: Facts | None = None,
    ) -> WebChange:
        """Note a change before it is made. Its audit row is written after the handler, with the outcome.

        See `NewAuditRow` for the arguments. They contain no messages, answers or secrets.
        """
        change = WebChange(thing=thing, agent=agent, before=before, after=after)
        self.changes.append(change)
        return change

    @property
    def runtime(self) -> Runtime:
        """The runtime."""
        return self.api.runtime

    async def sessions(self, app: str | None) -> AgentRuntime:
        """See `WebApi.sessions`."""
        return await self.api.sessions(self.principal, app)

    async def session(self, app: str | None, id_: str | None = None) -> FoundSession:
        """Return the session `id_`, or the session that the path names, if the principal sees it.

        Raises:
            ProblemError: The session was deleted.
            UnknownSessionError: There is no such session, or another principal owns it.
        """
        agents = await self.sessions(app)
        agent = agents.agent_id(self.names["session"] if id_ is None else id_)
        store = self.runtime.store
        row = await store.sessions.get(agent)
        if row is not None and self.principal.sees(row.owner):
            return FoundSession(agents, agent, row)
        owner = self.principal.only_owner
        if row is None and await store.directory.is_deleted(agent, owner=owner):
            problem, remedy = f"session {agent} was deleted", "POST /v1/sessions recreates it"
            raise ProblemError(HttpProblem(410, "session_deleted", problem, remedy, name=agent.key))
        raise UnknownSessionError(str(agent))


@dataclass(frozen=True, slots=True)
class FoundSession:
    """An existing session: the client of its app, its agent and its row."""

    agents: AgentRuntime
    agent: AgentId
    row: SessionRow


Done: TypeAlias = "BaseModel | Response"
Handler: TypeAlias = Callable[[WebCall, Any, Any], Awaitable[Done]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WebEndpoint:
    """An HTTP endpoint.

    Attributes:
        method: The HTTP method.
        path: The path, with parameter names in braces.
        call: The handler. It gets the call, the query and the body as models. A model that it returns is the
            response.
        says: Summary in one sentence.
        answer: The model of the response. None if the response has no body, or a body of bytes.
        status: The status of the response.
        query: The model of the query.
        body: The model of the body. None if there is no body, or `call` reads it.
        media_type: The media type of the response.
        takes: The media type of the body. None means JSON, if there is a body.
        streams: True if the response may also be a stream of events.
        max_bytes: The largest size of a body that is a model.
    """

    method: str
    path: str
    call: Handler
    says: str
    answer: type[BaseModel] | None = None
    status: int = 200
    query: type[BaseModel] = NoQuery
    body: type[BaseModel] | None = None
    media_type: str = "application/json"
    takes: str | None = None
    streams: bool = False
    max_bytes: int = MAX_BODY_BYTES

    async def respond(self, api: WebApi, request: Request, access: Access) -> Response:
        """Return the response to a request. An error becomes a problem response."""
        try:
            return await self._respond(api, request, access)
        except Exception as exc:  # noqa: BLE001 - the boundary of a request
            return self._refusal(api, request, problem_of(exc))

    def _refusal(self, api: WebApi, request: Request, problem: HttpProblem) -> Response:
        """Return the response to a refused request."""
        del api
        return problem.response(request.scope)

    async def _respond(self, api: WebApi, request: Request, access: Access) -> Response:
        principal = NOBODY
        if access != "public":
            principal = api.local if api.authenticate is None else await api.authenticate(request)
            if access != "signed in":
                principal.check(access)
        names = {name: parse_id(raw) for name, raw in request.path_params.items()}
        query = _checked(self.query, parse_query(request.scope["query_string"]), "query")
        body = None
        if self.body is not None:
            body = _checked(self.body, parse_body(await read_body(request, self.max_bytes)), "body")
        call = WebCall(api=api, principal=principal, request=request, names=names)
        try:
            done = await self.call(call, query, body)
        except Exception as exc:
            await self._write_changes(call, problem_of(exc).code)
            raise
        await self._write_changes(call, DONE)
        return done if isinstance(done, Response) else json_response(done, self.status)

    async def _write_changes(self, call: WebCall, outcome: str) -> None:
        if not call.changes:  # of nearly all requests: they need no store of audit rows
            return
        action, names = action_of(self.method, self.path), call.runtime.hidden_names
        audit = call.runtime.store.audit
        await write_changes(
            audit, call.principal, action, call.changes, names=names, outcome=outcome
        )


def _checked(model: type[BaseModel], value: JsonValue | Mapping[str, str], where: str) -> BaseModel:
    try:
        return model.model_validate(value)
    except ValidationError as exc:
        raise problem_of_input(exc, where) from None


def json_response(
    value: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a model as a response that no cache stores, because it belongs to one principal."""
    more = {"cache-control": "no-store", **(headers or {})}
    return Response(value.model_dump_json(), status, more, media_type="application/json")
