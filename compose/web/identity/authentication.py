"""Authentication of requests: by stored tokens, by tokens of another system, or by cookies."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias

from starlette.requests import Request

from actors.inmemory.administration import LOGIN, digest_of, new_secret
from actors.kernel.basics import Clock
from actors.kernel.stores.administration import ApiToken, NewToken, TokenState, TokenStore
from compose.web.identity.bearer import bearer_of, refused
from compose.web.identity.cookies import LOGIN_LASTS, login_of
from compose.web.principal import SCOPES, Principal
from compose.web.problems import ProblemError

FRESH_S: Final = 2.0
"""Seconds for which a process caches a token. A revoked token works at most that long."""
MOST_KNOWN: Final = 4_096
"""Maximum number of tokens that a process caches."""

Recognize: TypeAlias = Callable[[str], Awaitable[Principal]]
"""Returns the principal of a bearer token, or raises `ProblemError`."""


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
        self._recognize = recognize or self._stored
        self._known: dict[tuple[Recognize, str], tuple[Principal, float]] = {}

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
            raise refused("unauthenticated", "the request has no token and no login")
        return await self._remembered(secret, self._logged_in)

    async def principal(self, secret: str) -> Principal:
        """Return the principal of a bearer token.

        Raises:
            ProblemError: The token is not valid.
        """
        return await self._remembered(secret, self._recognize)

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
            self._known.clear()

    async def over(self, principals: Collection[Principal]) -> Mapping[Principal, ProblemError]:
        """Return those of these principals that have become invalid, each with the reason."""
        now = self._clock.now()
        ids = {one.token for one in principals if one.token is not None}
        states = await self._tokens.over(ids) if ids else {}
        found: dict[Principal, ProblemError] = {}
        for one in principals:
            is_over = one.expires_at is not None and one.expires_at <= now
            state = states.get(one.token or "", "expired" if is_over else "valid")
            if state != "valid":
                found[one] = _over(state)
        return found

    async def _remembered(self, secret: str, find: Recognize) -> Principal:
        """Return the principal from the cache if it is younger than `FRESH_S`, else from `find`."""
        key, now = (find, digest_of(secret)), self._clock.monotonic()
        principal, until = self._known.get(key, (None, 0.0))
        if principal is None or until <= now:
            self._known.pop(key, None)
            principal = await find(secret)
            if len(self._known) >= MOST_KNOWN:
                self._known.pop(next(iter(self._known)))
            self._known[key] = principal, now + FRESH_S
        if principal.expires_at is not None and principal.expires_at <= self._clock.now():
            raise _over("expired")
        return principal

    async def _stored(self, secret: str) -> Principal:
        return await self._found(secret, is_login=False)

    async def _logged_in(self, secret: str) -> Principal:
        return await self._found(secret, is_login=True)

    async def _found(self, secret: str, *, is_login: bool) -> Principal:
        token = await self._tokens.find(digest_of(secret))
        if token is None or token.is_login is not is_login:
            raise refused("bad_token", "there is no such token")
        if token.state != "valid":
            raise _over(token.state)
        return _principal(token)


def _over(state: TokenState) -> ProblemError:
    return refused(f"token_{state}", f"the token is {state}", "get a new one, or log in again")


def _principal(token: ApiToken) -> Principal:
    """Return the principal of a stored token. Scopes that this release does not know are dropped."""
    scopes = SCOPES.intersection(token.scopes)
    return Principal(token.tenant, token.principal, scopes, token.id, token.expires_at)
