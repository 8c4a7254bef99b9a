"""Logins of browsers: a token becomes a cookie that no script reads."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from pydantic import Field
from starlette.responses import Response

from compose.web.endpoint import (
    Done,
    NoQuery,
    ShownModel,
    StrictModel,
    WebCall,
    WebEndpoint,
    json_response,
)
from compose.web.identity.authentication import Authentication
from compose.web.identity.cookies import csrf_of, forget_login, set_login
from compose.web.principal import Principal
from compose.web.problems import HttpProblem, ProblemError


class CredentialsJson(StrictModel):
    """A token: what else would be a bearer."""

    token: str = Field(min_length=1, max_length=8_192, repr=False)


class WhoJson(ShownModel):
    """The principal in whose name a request is.

    Attributes:
        tenant: Its tenant.
        principal: Its name, the owner of its sessions.
        scopes: What it may do.
        expires_at: When its token is over; null: it has no end.
    """

    tenant: str
    principal: str
    scopes: list[str]
    expires_at: datetime | None


class LoginJson(WhoJson):
    """A login. `csrf_token` is what a change by cookie has as X-CSRF-Token."""

    csrf_token: str


def _facts(principal: Principal) -> dict[str, object]:
    return {
        "tenant": principal.tenant,
        "principal": principal.name,
        "scopes": sorted(principal.scopes),
        "expires_at": principal.expires_at,
    }


async def log_in(call: WebCall, _: NoQuery, body: CredentialsJson) -> Done:
    """Set the cookies of a login, for 12 hours, or as long as the token is of use."""
    authentication = call.api.authenticate
    if not isinstance(authentication, Authentication):
        problem = "there are no logins here"
        remedy = "ask without one, or serve with --auth tokens or --auth jwt"
        raise ProblemError(HttpProblem(404, "no_login", problem, remedy))
    login = await authentication.log_in(body.token)
    shown = LoginJson.model_validate(
        {**_facts(login.principal), "csrf_token": csrf_of(login.secret)}
    )
    response = json_response(shown)
    set_login(call.request, response, login.secret, login.lasts)
    return response


async def show(call: WebCall, _: NoQuery, __: None) -> Done:
    """Return the request's principal."""
    return WhoJson.model_validate(_facts(call.principal))


async def log_out(call: WebCall, _: NoQuery, __: None) -> Done:
    """End the login of the request's cookie, and its streams. A bearer token goes on."""
    authentication = call.api.authenticate
    is_by_cookie = "authorization" not in call.request.headers
    if isinstance(authentication, Authentication) and is_by_cookie:
        await authentication.log_out(call.principal)
    response = Response(status_code=204)
    forget_login(call.request, response)
    return response


_LOGIN: Final = "/v1/login"
ENDPOINTS: Final = (
    WebEndpoint(
        method="POST",
        path=_LOGIN,
        call=log_in,
        says="Turn a token into the cookie of a browser.",
        body=CredentialsJson,
        answer=LoginJson,
    ),
    WebEndpoint(method="GET", path=_LOGIN, call=show, says="Show your principal.", answer=WhoJson),
    WebEndpoint(
        method="POST",
        path="/v1/logout",
        call=log_out,
        says="End the login of the cookie.",
        status=204,
    ),
)
