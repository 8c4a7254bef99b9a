"""Endpoints of the API: a decorator makes one of a handler, and says all that its signature does not.

It names the path, the scope that a principal needs, and the action of audit rows. The OpenAPI document is
generated from the endpoints and their models.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from typing import (
    Any,
    Final,
    Literal,
    Protocol,
    Required,
    TypeAlias,
    TypeVar,
    get_args,
    get_type_hints,
)

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator
from pydantic.json_schema import JsonSchemaMode, models_json_schema
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response
from typing_extensions import TypedDict, Unpack

from actors._kernel.hidden import HiddenNames
from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.stores.administration import (
    DONE,
    MAX_FACTS_BYTES,
    AuditStore,
    Facts,
    NewAuditRow,
    Scope,
)
from actors._kernel.stores.conversations import SessionRow
from actors._kernel.stores.errors import UnknownSessionError
from actors._runtime.runtime import Runtime
from actors._sessions.runtime import APP, AgentRuntime
from compose._web.problems import (
    MEDIA_TYPE,
    HttpProblem,
    ProblemError,
    ProblemJson,
    problem_of,
    problem_of_input,
)
from compose._web.requests import (
    LOCAL,
    MAX_BODY_BYTES,
    NOBODY,
    Authenticate,
    Principal,
    parse_body,
    parse_id,
    parse_query,
    read_body,
)
from compose._web.streams import MEDIA_TYPE as STREAM
from compose._web.streams import Streams

MOST_CLIENTS: Final = 1_024
"""Maximum number of `AgentRuntime`s that a process keeps, one per principal and app."""
Handler: TypeAlias = Callable[..., Awaitable["BaseModel | Response"]]
HandlerT = TypeVar("HandlerT", bound=Handler)
Access: TypeAlias = Scope | Literal["public", "signed in"]
"""A scope; ``public``: no login is needed; ``signed in``: any principal with a login, whatever its scopes."""
OPENAPI: Final = "/v1/openapi.json"
_REF: Final = "#/components/schemas/{model}"
_JSON: Final = "application/json"
_ACCESS: Final[Mapping[Access, str]] = {
    "public": "No login is needed.",
    "signed in": "Any principal with a login has access.",
}
_Refs: TypeAlias = "Mapping[Any, dict[str, Any]]"
"""References to schemas, by model and mode."""


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
    fields = {name: info for name, info in model.model_fields.items() if not info.is_required()}
    return frozenset(name for name, info in fields.items() if not _takes_null(info.annotation))


def _takes_null(annotation: Any) -> bool:
    try:
        TypeAdapter(annotation).validate_python(None)
    except ValidationError:
        return False
    return True


class _NoQuery(StrictModel):
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
        caches: Caches of endpoints, which stay between requests, by class.
        local_agents: Starts the local principal's runs of its app. It has the app's modes, and may decide
            approvals.
        sign_in: Path of the login page. Pages redirect there instead of answering 401.
        is_client: True if the requests are those of this process, which serves no apps. They may name runs of
            any app.
    """

    runtime: Runtime
    app: str = APP
    modes: tuple[str, ...] = ()
    local: Principal = LOCAL
    authenticate: Authenticate | None = None
    apps: frozenset[str] = frozenset()
    local_agents: AgentRuntime | None = None
    sign_in: str | None = None
    is_client: bool = False
    streams: Streams = field(default_factory=Streams)
    caches: dict[type, Any] = field(default_factory=dict)
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
            and self.local_agents is not None
            and key == (self.local.tenant, self.local.name, self.local_agents.app)
        ):
            return self.local_agents
        agents = self._clients.get(key)
        if agents is None:
            tenant, name, app_name = key
            agents = AgentRuntime(runtime=self.runtime, app=app_name, tenant=tenant, principal=name)
            await agents.open()
            # The oldest one goes: each new pair of principal and app would take memory for ever.
            if len(self._clients) >= MOST_CLIENTS:
                self._clients.pop(next(iter(self._clients)))
            self._clients[key] = agents
        return agents

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
        """Return the sessions of an app, as the principal of the request sees them.

        Raises:
            InvalidNameError: `app` is not a valid name of an app.
            ProblemError: This process does not serve the app.
        """
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
        row = await store.data.sessions.get(agent)
        if row is not None and self.principal.sees(row.owner):
            return FoundSession(agents, agent, row)
        owner = self.principal.only_owner
        # 410 only for a principal that saw the session: for others its id is unknown.
        if row is None and await store.data.directory.is_deleted(agent, owner=owner):
            problem, remedy = f"session {agent} was deleted", "POST /v1/sessions recreates it"
            raise ProblemError(HttpProblem(410, "session_deleted", problem, remedy, name=agent.key))
        raise UnknownSessionError(str(agent))


@dataclass(frozen=True, slots=True)
class FoundSession:
    """An existing session: the client of its app, its agent and its row."""

    agents: AgentRuntime
    agent: AgentId
    row: SessionRow


class ReadOptions(TypedDict, total=False):
    """Fields of a `WebEndpoint` that decorators take."""

    scope: Required[Access]
    status: int
    media_type: str
    takes: str
    streams: bool
    max_bytes: int


class ChangeOptions(ReadOptions, total=False):
    """Fields of an endpoint that may change something."""

    action: Required[str | None]


class Decorator(Protocol):
    """Makes an endpoint of a handler, and returns the handler."""

    def __call__(self, handler: HandlerT, /) -> HandlerT: ...


class Endpoints(list["WebEndpoint"]):
    """The endpoints of a module, in the order of the OpenAPI document. Decorators of handlers add them.

    A handler has the parameter `call`, and `query` and `body` if it takes them. The annotations are the models
    that validate a request and describe the response. The first line of the docstring is the summary.

    Args:
        kind: The class of the endpoints.
    """

    def __init__(self, kind: type[WebEndpoint] | None = None) -> None:
        super().__init__()
        self._kind = kind or WebEndpoint

    def get(self, path: str, **options: Unpack[ReadOptions]) -> Decorator:
        """Add an endpoint that changes nothing."""
        return self._decorator("GET", path, action=None, **options)

    def post(self, path: str, **options: Unpack[ChangeOptions]) -> Decorator:
        """Add an endpoint that makes something, or changes it."""
        return self._decorator("POST", path, **options)

    def put(self, path: str, **options: Unpack[ChangeOptions]) -> Decorator:
        """Add an endpoint that sets a value."""
        return self._decorator("PUT", path, **options)

    def patch(self, path: str, **options: Unpack[ChangeOptions]) -> Decorator:
        """Add an endpoint that replaces fields."""
        return self._decorator("PATCH", path, **options)

    def delete(self, path: str, **options: Unpack[ChangeOptions]) -> Decorator:
        """Add an endpoint that deletes something."""
        return self._decorator("DELETE", path, **options)

    def _decorator(self, method: str, path: str, **options: Unpack[ChangeOptions]) -> Decorator:
        def add(handler: HandlerT) -> HandlerT:
            models = get_type_hints(handler)
            # `-> RunJson | Response`: a handler may answer with headers, a stream or another status.
            answers = [
                m for m in get_args(models["return"]) or (models["return"],) if m is not Response
            ]
            self.append(
                self._kind(
                    method=method,
                    path=path,
                    call=handler,
                    summary=(handler.__doc__ or "").partition("\n")[0],
                    answer=answers[0] if answers else None,
                    query=models.get("query"),
                    body=models.get("body"),
                    **options,
                )
            )
            return handler

        return add


@dataclass(frozen=True, slots=True, kw_only=True)
class WebEndpoint:
    """An HTTP endpoint.

    Attributes:
        method: The HTTP method.
        path: The path, with parameter names in braces.
        scope: The scope that a principal needs.
        action: The action of audit rows. None if the endpoint changes nothing, or writes no row: it starts
            runs or sends messages and events, which the logs of runs have with their senders; or it makes or
            ends logins, which the table of tokens has.
        call: The handler.
        summary: The summary in one sentence.
        answer: The model of the response. None if the response has no body, or a body of bytes.
        status: The status of the response.
        query: The model of the query; None if it has no fields.
        body: The model of the body. None if there is no body, or the handler reads it.
        media_type: The media type of the response.
        takes: The media type of the body; None if it is JSON, or there is no body.
        streams: True if the response may also be a stream of events.
        max_bytes: The largest size of a body that is a model.
    """

    method: str
    path: str
    scope: Access
    action: str | None
    call: Handler
    summary: str
    answer: type[BaseModel] | None = None
    status: int = 200
    query: type[BaseModel] | None = None
    body: type[BaseModel] | None = None
    media_type: str = "application/json"
    takes: str | None = None
    streams: bool = False
    max_bytes: int = MAX_BODY_BYTES

    async def respond(self, api: WebApi, request: Request) -> Response:
        """Return the response to a request. An error becomes a problem response."""
        try:
            return await self._respond(api, request)
        # An error that leaves here would be a bare 500, without a code and a remedy.
        except Exception as exc:  # noqa: BLE001 - the boundary of a request
            return self._refusal(api, request, problem_of(exc))

    def _refusal(self, api: WebApi, request: Request, problem: HttpProblem) -> Response:
        """Return the response to a refused request."""
        del api
        return problem.response(request.scope)

    async def _respond(self, api: WebApi, request: Request) -> Response:
        principal = NOBODY
        if self.scope != "public":
            principal = api.local if api.authenticate is None else await api.authenticate(request)
            if self.scope != "signed in":
                principal.check(self.scope)
        names = {name: parse_id(raw) for name, raw in request.path_params.items()}
        query = _validate(
            self.query or _NoQuery, parse_query(request.scope["query_string"]), "query"
        )
        models = {} if self.query is None else {"query": query}
        if self.body is not None:
            data = parse_body(await read_body(request, self.max_bytes))
            models["body"] = _validate(self.body, data, "body")
        call = WebCall(api=api, principal=principal, request=request, names=names)
        try:
            answer = await self.call(call, **models)
        # A change that is refused or fails has an audit row, too, with the code of its problem.
        except Exception as exc:
            await self._write_changes(call, problem_of(exc).code)
            raise
        await self._write_changes(call, DONE)
        return answer if isinstance(answer, Response) else json_response(answer, self.status)

    async def _write_changes(self, call: WebCall, outcome: str) -> None:
        if not call.changes:  # of nearly all requests: they need no store of audit rows
            return
        names, audit = call.runtime.hidden_names, call.runtime.store.data.audit
        await write_changes(
            audit, call.principal, self.action, call.changes, names=names, outcome=outcome
        )


def _validate(
    model: type[BaseModel], value: JsonValue | Mapping[str, str], where: str
) -> BaseModel:
    try:
        return model.model_validate(value)
    except ValidationError as exc:
        raise problem_of_input(exc, where) from None


def json_response(
    value: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a model as a response that no cache stores, because it belongs to one principal."""
    all_headers = {"cache-control": "no-store", **(headers or {})}
    return Response(value.model_dump_json(), status, all_headers, media_type="application/json")


def thing_of_session(agent: AgentId) -> str:
    """Return the thing of audit rows about a session."""
    return f"session:{agent.type}/{agent.key}"


def thing_of_run(run_id: RunId) -> str:
    """Return the thing of audit rows about a run that belongs to no session."""
    return f"run:{run_id}"


@dataclass(slots=True, kw_only=True)
class WebChange:
    """A change that a request makes. A handler may set `after` when the change is made.

    Attributes:
        thing: The thing that is changed: its kind, a colon and its id, as ``run:0f3c``.
        agent: The agent whose thing it is. An erase of the agent clears `before` and `after`.
        before: Values before the change.
        after: Values after the change, or the values that the request asks for.
    """

    thing: str
    agent: AgentId | None = None
    before: Facts | None = None
    after: Facts | None = None


async def write_changes(
    store: AuditStore,
    principal: Principal,
    action: str | None,
    changes: Iterable[WebChange],
    *,
    names: HiddenNames,
    outcome: str = DONE,
) -> None:
    """Write an audit row for each change of a request.

    Values under hidden names are not written. Values of more than 4 KiB are replaced by their size. A change
    has one row also if the answer of the store is lost, and the row is sent again.
    """
    for change in changes:
        if action is None:
            raise LookupError(f"{change.thing}: give its endpoint an `action`")
        await store.add(
            NewAuditRow(
                tenant=principal.tenant,
                principal=principal.name,
                action=action,
                thing=change.thing,
                agent=change.agent,
                before=_writable_facts(change.before, names),
                after=_writable_facts(change.after, names),
                outcome=outcome,
                write_id=secrets.token_hex(16),
            )
        )


def _writable_facts(facts: Facts | None, names: HiddenNames) -> Facts | None:
    if facts is None:
        return None
    visible_facts: Facts = names.shown({**facts})
    size = len(to_json(visible_facts))
    return visible_facts if size <= MAX_FACTS_BYTES else {"size_bytes": size}


def openapi_of(endpoints: Sequence[WebEndpoint]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    models: dict[tuple[type[BaseModel], JsonSchemaMode], None] = {
        (ProblemJson, "serialization"): None
    }
    for endpoint in endpoints:
        if endpoint.body is not None:
            models[endpoint.body, "validation"] = None
        if endpoint.answer is not None:
            models[endpoint.answer, "serialization"] = None
    refs, schemas = models_json_schema(list(models), ref_template=_REF)
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, refs)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Callboard", "version": version("callboard")},
        "paths": paths,
        "components": {"schemas": schemas.get("$defs", {})},
    }


def _operation(endpoint: WebEndpoint, refs: _Refs) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": endpoint.summary}
    if endpoint.answer is not None:
        answer["content"] = {
            endpoint.media_type: {"schema": refs[endpoint.answer, "serialization"]}
        }
        if endpoint.streams:
            answer["content"][STREAM] = {"schema": {"type": "string"}}
    elif endpoint.media_type != _JSON:
        answer["content"] = {
            endpoint.media_type: {"schema": {"type": "string", "format": "binary"}}
        }
    problem = {
        "description": "The request is refused.",
        "content": {MEDIA_TYPE: {"schema": refs[ProblemJson, "serialization"]}},
    }
    statuses = {str(endpoint.status)} | (
        {"200"} if endpoint.method == "POST" and endpoint.answer else set()
    )
    names = re.findall(r"{(\w+)}", endpoint.path)
    operation: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{endpoint.method.lower()}{endpoint.path}").strip("_"),
        "summary": endpoint.summary,
        "description": _ACCESS.get(endpoint.scope, f"Needs the scope {endpoint.scope}."),
        "parameters": [_path_parameter(name) for name in names]
        + _query_parameters(endpoint.query or _NoQuery),
        "responses": {**dict.fromkeys(sorted(statuses), answer), "default": problem},
    }
    if endpoint.body is not None:
        is_required = any(field.is_required() for field in endpoint.body.model_fields.values())
        schema = refs[endpoint.body, "validation"]
        operation["requestBody"] = {"required": is_required, "content": {_JSON: {"schema": schema}}}
    elif endpoint.takes is not None:
        schema = {"type": "string", "format": "binary"}
        operation["requestBody"] = {
            "required": True,
            "content": {endpoint.takes: {"schema": schema}},
        }
    return operation


def _path_parameter(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "schema": {"type": "string", "minLength": 1},
    }


def _query_parameters(query: type[BaseModel]) -> list[dict[str, Any]]:
    schema = query.model_json_schema(ref_template=_REF)
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": part}
        # Commas separate the values of a list: a field of a query comes once.
        | ({"style": "form", "explode": False} if part.get("type") == "array" else {})
        for name, part in schema.get("properties", {}).items()
    ]
