"""Tokens of the API: who shows a secret acts as a principal of a tenant, with scopes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, Protocol, TypeAlias

from actors.kernel.runtime.ids import check_name
from actors.kernel.text import check_name_of

TokenState: TypeAlias = Literal["valid", "expired", "revoked"]
Scope: TypeAlias = Literal[
    "sessions:own",
    "sessions:all",
    "operate",
    "cleanup",
    "flows:run",
    "flows:operate",
    "flows:install",
]
"""Right of a principal: its own sessions, all sessions of its tenant, any run and agent, clean-up;
start and answer runs of flows, stop them, install and remove flows."""
USED_EVERY_S: Final = 60.0
"""The use of a token is written at most so often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A token to be made.

    Attributes:
        id: Names it in lists; no secret.
        digest: SHA-256 of the secret, in hex. The secret itself is kept nowhere.
        name: What people call it: one at a time has a name. Empty for a login.
        tenant: Nothing of another one is found with it.
        principal: The owner of the sessions that are made with it.
        scopes: What may be done with it.
        expires_at: The instant from which on it is refused; None: it does not expire.
        is_login: True if it is the cookie of a browser. Such a token has no name, and lists do not show it.
        parent: For a login: the token that it was made from. When that token ends, the login ends.

    Raises:
        InvalidNameError: The tenant cannot be one.
        InvalidTextError: A text is no name.
    """

    id: str
    digest: str
    name: str
    tenant: str
    principal: str
    scopes: tuple[str, ...]
    expires_at: datetime | None = None
    is_login: bool = False
    parent: str | None = None

    def __post_init__(self) -> None:
        check_name("tenant", self.tenant)
        check_name_of("name of a token", self.name)
        check_name_of("principal of a token", self.principal)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiToken:
    """A token, as lists show it. See `NewToken`.

    Attributes:
        id: See `NewToken`, as for the next ones.
        name: See `id`.
        tenant: See `id`.
        principal: See `id`.
        scopes: See `id`.
        is_login: See `id`.
        state: By the store's clock: whether it can be used.
        created_at: When it was made.
        expires_at: See `NewToken`.
        revoked_at: When it was revoked; None: it was not.
        last_used_at: The instant of the last use, to the minute; None: never used.
    """

    id: str
    name: str
    tenant: str
    principal: str
    scopes: tuple[str, ...]
    is_login: bool
    state: TokenState
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


class TokenStore(Protocol):
    """The tokens of all tenants. An erase of a tenant takes its own."""

    async def create(self, new: NewToken) -> ApiToken:
        """Keep a token, and forget logins of its principal that are over.

        Raises:
            TokenExistsError: A token of this name was not revoked. Nothing was changed.
        """

    async def find(self, digest: str) -> ApiToken | None:
        """Return the token whose secret has this SHA-256, and write that it was used; None: there is none.

        One that is over is returned as well: its state says so.
        """

    async def list(self) -> list[ApiToken]:
        """Return all tokens but logins, the oldest first."""

    async def revoke(self, name_or_id: str) -> ApiToken | None:
        """End a token, and the logins that were made from it, for good; None: there is none.

        A name is that of the one that was not revoked. Doing it again changes nothing.
        """

    async def over(self, ids: Collection[str]) -> dict[str, TokenState]:
        """Return those of these tokens that cannot be used any more, and why. Unknown ones are revoked."""
