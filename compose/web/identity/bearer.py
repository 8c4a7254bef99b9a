"""Bearer tokens in requests, and the refusal of requests with no token or a wrong one."""

from __future__ import annotations

import re
from typing import Final

from starlette.requests import Request

from compose.web.problems import HttpProblem, ProblemError

_SECRET: Final = re.compile(r"[A-Za-z0-9._~+/-]{1,8192}=*")
"""See RFC 6750, 2.1. A token of more than 8,192 characters, before its padding, does not match."""
_ASKS: Final = 'Bearer realm="callboard"'
_REMEDY: Final = "send `Authorization: Bearer TOKEN`, with a token of `callboard tokens create`"


def refused(code: str, detail: str, remedy: str = _REMEDY) -> ProblemError:
    """Return the error to raise if a request cannot be authenticated."""
    asks = _ASKS if code == "unauthenticated" else f'{_ASKS}, error="invalid_token"'
    return ProblemError(HttpProblem(401, code, detail, remedy, headers={"www-authenticate": asks}))


def bearer_of(request: Request) -> str | None:
    """Return the bearer token of a request; None if it has no header Authorization.

    Raises:
        ProblemError: The request has two such headers, or one of another form.
    """
    given = request.headers.getlist("authorization")
    if not given:
        return None
    if len(given) > 1:
        problem = "the header Authorization comes twice"
        raise ProblemError(HttpProblem(400, "malformed", problem, "send it once"))
    scheme, _, secret = given[0].partition(" ")
    if scheme.lower() != "bearer":
        raise refused("unauthenticated", "the header Authorization is not of the scheme Bearer")
    secret = secret.strip(" ")
    if not _SECRET.fullmatch(secret):
        raise refused("bad_token", "the token has invalid characters, or is too long")
    return secret
