"""Logins of browsers: a token is exchanged for a cookie that scripts cannot read."""

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


async def log_in(call: WebCall, _: NoQuery, body: CredentialsJson) -> Done:
    """Set the cookies of a login, which ends with the token, at most 12 hours later."""
    authentication = call.api.authenticate
    if not isinstance(authentication, Authentication):
        problem = "this server has no logins"
        remedy = "send requests without a login, or serve with --auth tokens or --auth jwt"
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
    """End the login of the request's cookie, and its streams. A bearer token stays valid."""
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
        says="Exchange a token for the cookie of a browser.",
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
