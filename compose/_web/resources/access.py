"""Logins of browsers, and the audit of changes that principals made over HTTP.

A token is exchanged for a cookie that scripts cannot read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from pydantic import Field, JsonValue
from starlette.responses import Response

from actors._kernel.stores.administration import AuditRow
from compose._web.endpoint import Endpoints, ShownModel, StrictModel, WebCall, json_response
from compose._web.identity.authentication import Authentication, csrf_of, forget_login, set_login
from compose._web.problems import HttpProblem, ProblemError
from compose._web.requests import Principal
from compose._web.resources.pages import Limit

endpoint: Final = Endpoints()

_LOGIN: Final = "/v1/login"
_MOST_ID: Final = 2**63 - 1
LISTED: Final = 20
"""Maximum number of changes that a page lists."""


class CredentialsJson(StrictModel):
    """A token, as it would be sent as a bearer token."""

    token: str = Field(min_length=1, max_length=8_192, repr=False)


class WhoJson(ShownModel):
    """The principal of a request.

    Attributes:
        tenant: The principal's tenant.
        principal: The principal's name, which is the owner of its sessions.
        scopes: The principal's scopes.
        expires_at: When the token expires; null if it does not expire.
    """

    tenant: str
    principal: str
    scopes: list[str]
    expires_at: datetime | None


class LoginJson(WhoJson):
    """A login. A change by cookie has to send `csrf_token` as X-CSRF-Token."""

    csrf_token: str


def _facts(principal: Principal) -> dict[str, object]:
    return {
        "tenant": principal.tenant,
        "principal": principal.name,
        "scopes": sorted(principal.scopes),
        "expires_at": principal.expires_at,
    }


@endpoint.post(_LOGIN, scope="public", action=None)
async def log_in(call: WebCall, body: CredentialsJson) -> LoginJson | Response:
    """Exchange a token for the cookie of a browser.

    The cookies end with the token, at most 12 hours later.
    """
    authentication = call.api.authenticate
    if not isinstance(authentication, Authentication):
        problem = "this server has no logins"
        remedy = "send requests without a login, or serve with --auth tokens or --auth jwt"
        raise ProblemError(HttpProblem(404, "no_login", problem, remedy))
    login = await authentication.log_in(body.token)
    login_json = LoginJson.model_validate(
        {**_facts(login.principal), "csrf_token": csrf_of(login.secret)}
    )
    response = json_response(login_json)
    set_login(call.request, response, login.secret, login.lasts)
    return response


@endpoint.get(_LOGIN, scope="signed in")
async def show(call: WebCall) -> WhoJson:
    """Show your principal."""
    return WhoJson.model_validate(_facts(call.principal))


@endpoint.post("/v1/logout", scope="signed in", action=None, status=204)
async def log_out(call: WebCall) -> Response:
    """End the login of the cookie.

    The streams of the login end, too. A bearer token stays valid.
    """
    authentication = call.api.authenticate
    is_by_cookie = "authorization" not in call.request.headers
    if isinstance(authentication, Authentication) and is_by_cookie:
        await authentication.log_out(call.principal)
    response = Response(status_code=204)
    forget_login(call.request, response)
    return response


class AuditQuery(StrictModel):
    """The query of a list of changes. `after` is `next` of the previous page."""

    thing: str | None = Field(default=None, min_length=1)
    limit: Limit = 100
    after: int | None = Field(default=None, ge=1, le=_MOST_ID)


class AuditRowJson(ShownModel):
    """A change. See `AuditRow`.

    Attributes:
        id: Its number. Later changes have greater numbers.
        at: When the row was written, after the change.
        principal: The principal that made the change.
        action: The kind of change.
        thing: The thing that was changed: its kind, a colon and its id.
        before: Values before the change; null if they are unknown.
        after: Values after the change, or the values that a refused change asked for.
        outcome: ``done``, or the code of the problem for which the change was refused.
    """

    id: int
    at: datetime
    principal: str
    action: str
    thing: str
    before: Mapping[str, JsonValue] | None
    after: Mapping[str, JsonValue] | None
    outcome: str


class AuditJson(ShownModel):
    """A page of changes, newest first. `next` is null on the last page."""

    changes: list[AuditRowJson]
    next: int | None


@endpoint.get("/v1/audit", scope="operate")
async def list_changes(call: WebCall, query: AuditQuery) -> AuditJson:
    """List changes that principals made over HTTP, newest first."""
    rows = await call.runtime.store.data.audit.list(
        call.principal.tenant, thing=query.thing, after=query.after, limit=query.limit + 1
    )
    page = rows[: query.limit]
    next_id = page[-1].id if len(rows) > query.limit else None
    names = AuditRowJson.model_fields
    changes = [AuditRowJson(**{name: facts[name] for name in names}) for facts in map(asdict, page)]
    return AuditJson(changes=changes, next=next_id)


async def changes_of(call: WebCall, thing: str) -> dict[str, Any]:
    """Return the latest changes of a thing for a page's template; none without the scope `operate`."""
    rows: list[AuditRow] = []
    if "operate" in call.principal.scopes:
        audit, tenant = call.runtime.store.data.audit, call.principal.tenant
        rows = await audit.list(tenant, thing=thing, limit=LISTED)
    return {"changes": rows, "most_changes": LISTED}
