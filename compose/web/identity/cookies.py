"""Cookies of browsers: a login, and the CSRF token that proves which page sends a change."""

from __future__ import annotations

import hashlib
import hmac
from datetime import timedelta
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from compose.host.own_address import is_own_address
from compose.web.origins import authority_of
from compose.web.problems import HttpProblem, ProblemError

LOGIN_LASTS: Final = timedelta(hours=12)
CSRF_HEADER: Final = "x-csrf-token"
_READS: Final = ("GET", "HEAD", "OPTIONS")
_LOGIN: Final = "callboard_login"
_CSRF: Final = "callboard_csrf"


def csrf_of(secret: str) -> str:
    """Return the CSRF token that a page has to send with a change. The page cannot read the login's cookie."""
    return hmac.new(secret.encode(), b"csrf", hashlib.sha256).hexdigest()


def login_of(request: Request) -> str | None:
    """Return the secret of a request's login cookie; None if it has no such cookie.

    Raises:
        ProblemError: The request is from a page of another origin, or is a change without the login's CSRF
            token.
    """
    secret = request.cookies.get(_name(_LOGIN, request))
    if not secret:
        return None
    origin = request.headers.get("origin")
    if origin is not None and authority_of(origin) != request.headers.get("host"):
        problem, remedy = "a page of another origin sent a cookie", "send a bearer token"
        raise ProblemError(HttpProblem(403, "csrf", problem, remedy))
    said = request.headers.get(CSRF_HEADER, "").encode()
    is_change = request.method not in _READS
    if is_change and not hmac.compare_digest(said, csrf_of(secret).encode()):
        problem = "a change by cookie needs the CSRF token of the login"
        remedy = f"send X-CSRF-Token, which POST /v1/login and the cookie {_CSRF} give"
        raise ProblemError(HttpProblem(403, "csrf", problem, remedy))
    return secret


def set_login(request: Request, response: Response, secret: str, lasts: timedelta) -> None:
    """Set the cookies of a login. Scripts can read the CSRF token, but not the secret."""
    for name, value, is_hidden in ((_LOGIN, secret, True), (_CSRF, csrf_of(secret), False)):
        response.set_cookie(
            _name(name, request),
            value,
            max_age=int(lasts.total_seconds()),
            path="/",
            secure=_is_secure(request),
            httponly=is_hidden,
            samesite="strict",
        )


def forget_login(request: Request, response: Response) -> None:
    """Delete the cookies of a login."""
    for name in (_LOGIN, _CSRF):
        response.delete_cookie(
            _name(name, request), path="/", secure=_is_secure(request), samesite="strict"
        )


def _is_secure(request: Request) -> bool:
    """Return False for this machine's own address, where there is no TLS and no proxy in between."""
    return not is_own_address(request.headers.get("host", ""))


def _name(name: str, request: Request) -> str:
    """Return a cookie's name, with the prefix ``__Host-`` if secure: no other site of the domain can set it."""
    return f"__Host-{name}" if _is_secure(request) else name
