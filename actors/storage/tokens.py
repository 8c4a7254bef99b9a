"""API tokens in one process, and the secrets of tokens."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final

from typing_extensions import override

from actors.kernel.stores.administration import (
    USED_EVERY_S,
    ApiToken,
    NewToken,
    TokenState,
    TokenStore,
)
from actors.kernel.stores.errors import TokenExistsError

SECRET_BYTES: Final = 32
BEARER: Final = "cb_"
LOGIN: Final = "cbl_"
"""The prefixes of the secrets of programs and of browsers. Secret scanners find secrets by them."""


def new_secret(prefix: str) -> str:
    """Return a secret of 256 random bits: the prefix and 43 URL-safe characters."""
    return prefix + secrets.token_urlsafe(SECRET_BYTES)


def digest_of(secret: str) -> str:
    """Return the SHA-256 of a secret, in hex.

    A secret is random, so neither a salt nor a slow hash is needed.
    """
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


class InMemoryTokens(TokenStore):
    """A `TokenStore` whose rows are lost with its process.

    Args:
        now: The clock by which tokens expire.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._tokens: dict[str, ApiToken] = {}
        self._ids: dict[str, str] = {}
        self._parents: dict[str, str] = {}

    @override
    async def create(self, new: NewToken) -> ApiToken:
        if not new.is_login and self._named(new.name) is not None:
            raise TokenExistsError(new.name)
        for token in [*self._tokens.values()]:
            is_its = (token.tenant, token.principal) == (new.tenant, new.principal)
            if is_its and token.is_login and self._state(token) == "expired":
                self._forget(token.id)
        self._ids[new.digest] = new.id
        if new.parent is not None:
            self._parents[new.id] = new.parent
        self._tokens[new.id] = ApiToken(
            id=new.id,
            name=new.name,
            tenant=new.tenant,
            principal=new.principal,
            scopes=new.scopes,
            is_login=new.is_login,
            state="valid",
            created_at=self._now(),
            expires_at=new.expires_at,
            revoked_at=None,
            last_used_at=None,
        )
        return self._shown(new.id)

    @override
    async def find(self, digest: str) -> ApiToken | None:
        id_ = self._ids.get(digest)
        if id_ is None:
            return None
        found, now = self._shown(id_), self._now()
        used = found.last_used_at
        if found.state == "valid" and (used is None or (now - used).total_seconds() > USED_EVERY_S):
            self._tokens[id_] = found = replace(found, last_used_at=now)
        return found

    @override
    async def list(self) -> list[ApiToken]:
        return [self._shown(one.id) for one in self._tokens.values() if not one.is_login]

    @override
    async def revoke(self, name_or_id: str) -> ApiToken | None:
        found = self._named(name_or_id) or self._tokens.get(name_or_id)
        if found is None:
            return None
        if found.revoked_at is None:
            self._tokens[found.id] = replace(found, revoked_at=self._now())
        return self._shown(found.id)

    @override
    async def over(self, ids: Collection[str]) -> dict[str, TokenState]:
        states = {
            id_: self._state(self._tokens[id_]) if id_ in self._tokens else "revoked" for id_ in ids
        }
        return {id_: state for id_, state in states.items() if state != "valid"}

    def removals(self, tenant: str) -> Iterator[Callable[[], object]]:
        """Yield for each token of a tenant a function that removes it."""
        for token in self._tokens.values():
            if token.tenant == tenant:
                yield partial(self._forget, token.id)

    def _named(self, name: str) -> ApiToken | None:
        return next(
            (
                one
                for one in self._tokens.values()
                if one.name == name and one.revoked_at is None and not one.is_login
            ),
            None,
        )

    def _shown(self, id_: str) -> ApiToken:
        found = self._tokens[id_]
        return replace(found, state=self._state(found))

    def _state(self, token: ApiToken) -> TokenState:
        parent = self._tokens.get(self._parents.get(token.id, ""))
        if token.revoked_at is not None or (parent is not None and parent.revoked_at is not None):
            return "revoked"
        is_over = token.expires_at is not None and token.expires_at <= self._now()
        return "expired" if is_over else "valid"

    def _forget(self, id_: str) -> None:
        del self._tokens[id_]
        self._parents.pop(id_, None)
        self._ids = {digest: one for digest, one in self._ids.items() if one != id_}
