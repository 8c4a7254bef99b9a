"""Authentication of requests: by stored tokens, by tokens of another system, or by cookies.

A request with no token, or a wrong one, is refused. The cookies of a browser are a login, and the CSRF token
that proves which page sends a change.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from actors._inmemory.administration import LOGIN, digest_of, new_secret
from actors._kernel.basics import Clock
from actors._kernel.stores.administration import ApiToken, NewToken, TokenState, TokenStore
from compose._host.own_address import is_own_address
from compose._web.problems import HttpProblem, ProblemError
from compose._web.requests import SCOPES, Principal, authority_of

FRESH_S: Final = 2.0
"""Seconds for which a process caches a token. A revoked token works at most that long."""
MOST_KNOWN: Final = 4_096
"""Maximum number of tokens that a process caches."""

Recognize: TypeAlias = Callable[[str], Awaitable[Principal]]
"""Returns the principal of a bearer token, or raises `ProblemError`."""
_SECRET: Final = re.compile(r"[A-Za-z0-9._~+/-]{1,8192}=*")
"""See RFC 6750, 2.1. A token of more than 8,192 characters, before its padding, does not match."""
_ASKS: Final = 'Bearer realm="callboard"'
_REMEDY: Final = "send `Authorization: Bearer TOKEN`, with a token of `callboard tokens create`"
LOGIN_LASTS: Final = timedelta(hours=12)
CSRF_HEADER: Final = "x-csrf-token"
_READS: Final = ("GET", "HEAD", "OPTIONS")
_LOGIN: Final = "callboard_login"
_CSRF: Final = "callboard_csrf"


@dataclass(frozen=True, slots=True)
class Login:
    """A login of a browser: the secret of its cookie, its principal, and how long it is valid."""

    secret: str
    principal: Principal
    lasts: timedelta


class Authentication:
    """Authenticates requests. See `Authenticate`.

    Args:
        tokens: The stored tokens: logins, and tokens of programs.
        clock: The runtime's clock.
        recognize: Returns the principal of a bearer token. If None, bearer tokens are stored tokens.
    """

    def __init__(
        self, tokens: TokenStore, clock: Clock, recognize: Recognize | None = None
    ) -> None:
        self._tokens, self._clock = tokens, clock
        self._recognize = recognize or self._find_stored
        self._cache: dict[tuple[Recognize, str], tuple[Principal, float]] = {}

    async def __call__(self, request: Request) -> Principal:
        """Return the principal of a request. If the request has a bearer token, its cookie is ignored.

        Raises:
            ProblemError: The request has no token, or an invalid, expired or revoked one.
        """
        secret = bearer_of(request)
        if secret is not None:
            return await self.principal(secret)
        secret = login_of(request)
        if secret is None:
            raise authentication_error("unauthenticated", "the request has no token and no login")
        return await self._find_cached(secret, self._find_login)

    async def principal(self, secret: str) -> Principal:
        """Return the principal of a bearer token.

        Raises:
            ProblemError: The token is not valid.
        """
        return await self._find_cached(secret, self._recognize)

    async def log_in(self, secret: str) -> Login:
        """Create a login for the principal of a bearer token. It ends with the token, at most 12 hours later.

        Raises:
            ProblemError: The token is not valid.
        """
        principal, now = await self.principal(secret), self._clock.now()
        end = now + LOGIN_LASTS
        if principal.expires_at is not None:
            end = min(end, principal.expires_at)
        cookie = new_secret(LOGIN)
        new = NewToken(
            id=secrets.token_hex(8),
            digest=digest_of(cookie),
            name="",
            tenant=principal.tenant,
            principal=principal.name,
            scopes=tuple(sorted(principal.scopes)),
            expires_at=end,
            is_login=True,
            parent=principal.token,
        )
        return Login(cookie, _principal(await self._tokens.create(new)), end - now)

    async def log_out(self, principal: Principal) -> None:
        """Revoke the request's login. Its streams end. The token from which it was made stays valid."""
        if principal.token is not None:
            await self._tokens.revoke(principal.token)
            # The keys are digests of secrets, so the entry of the login is not known: all of them go.
            self._cache.clear()

    async def over(self, principals: Collection[Principal]) -> Mapping[Principal, ProblemError]:
        """Return those of these principals that have become invalid, each with the reason."""
        now = self._clock.now()
        ids = {principal.token for principal in principals if principal.token is not None}
        states = await self._tokens.over(ids) if ids else {}
        problems: dict[Principal, ProblemError] = {}
        for principal in principals:
            is_over = principal.expires_at is not None and principal.expires_at <= now
            state = states.get(principal.token or "", "expired" if is_over else "valid")
            if state != "valid":
                problems[principal] = _invalid_token(state)
        return problems

    async def _find_cached(self, secret: str, find: Recognize) -> Principal:
        """Return the principal from the cache if it is younger than `FRESH_S`, else from `find`."""
        # The look-up is part of the key: a cookie's secret that was just accepted is no bearer token.
        key, now = (find, digest_of(secret)), self._clock.monotonic()
        principal, until = self._cache.get(key, (None, 0.0))
        if principal is None or until <= now:
            # Before the look-up, which may refuse: an expired entry must not stay.
            self._cache.pop(key, None)
            principal = await find(secret)
            if len(self._cache) >= MOST_KNOWN:
                self._cache.pop(next(iter(self._cache)))
            self._cache[key] = principal, now + FRESH_S
        # A revoked token may work for `FRESH_S` more, an expired one not at all.
        if principal.expires_at is not None and principal.expires_at <= self._clock.now():
            raise _invalid_token("expired")
        return principal

    async def _find_stored(self, secret: str) -> Principal:
        return await self._find_principal(secret, is_login=False)

    async def _find_login(self, secret: str) -> Principal:
        return await self._find_principal(secret, is_login=True)

    async def _find_principal(self, secret: str, *, is_login: bool) -> Principal:
        token = await self._tokens.find(digest_of(secret))
        if token is None or token.is_login is not is_login:
            raise authentication_error("bad_token", "there is no such token")
        if token.state != "valid":
            raise _invalid_token(token.state)
        return _principal(token)


def _invalid_token(state: TokenState) -> ProblemError:
    return authentication_error(
        f"token_{state}", f"the token is {state}", "get a new one, or log in again"
    )


def _principal(token: ApiToken) -> Principal:
    """Return the principal of a stored token. Scopes that this release does not know are dropped."""
    scopes = SCOPES.intersection(token.scopes)
    return Principal(token.tenant, token.principal, scopes, token.id, token.expires_at)


def authentication_error(code: str, detail: str, remedy: str = _REMEDY) -> ProblemError:
    """Return the error to raise if a request cannot be authenticated."""
    asks = _ASKS if code == "unauthenticated" else f'{_ASKS}, error="invalid_token"'
    return ProblemError(HttpProblem(401, code, detail, remedy, headers={"www-authenticate": asks}))


def bearer_of(request: Request) -> str | None:
    """Return the bearer token of a request; None if it has no header Authorization.

    Raises:
        ProblemError: The request has two such headers, or one of another form.
    """
    headers = request.headers.getlist("authorization")
    if not headers:
        return None
    if len(headers) > 1:
        problem = "the header Authorization comes twice"
        raise ProblemError(HttpProblem(400, "malformed", problem, "send it once"))
    scheme, _, secret = headers[0].partition(" ")
    if scheme.lower() != "bearer":
        raise authentication_error(
            "unauthenticated", "the header Authorization is not of the scheme Bearer"
        )
    secret = secret.strip(" ")
    if not _SECRET.fullmatch(secret):
        raise authentication_error("bad_token", "the token has invalid characters, or is too long")
    return secret


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
    sent_token = request.headers.get(CSRF_HEADER, "").encode()
    is_change = request.method not in _READS
    if is_change and not hmac.compare_digest(sent_token, csrf_of(secret).encode()):
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
