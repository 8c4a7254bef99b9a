"""Principals: in whose name a request is done, and which scopes they have."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias, get_args

from starlette.requests import Request

from actors.kernel.runtime.ids import DEFAULT_TENANT
from actors.kernel.storage.token import Scope
from compose.web.problems import HttpProblem, ProblemError

SCOPES: Final[frozenset[Scope]] = frozenset(get_args(Scope))


@dataclass(frozen=True, slots=True)
class Principal:
    """The identity of a client.

    Attributes:
        tenant: Nothing of another one is found.
        name: Sessions that it makes, and ids of messages, are its own.
        scopes: What it may do.
        token: Id of the stored token that it came with; None: it came with none.
        expires_at: It is invalid from then on; None: it has no end.
    """

    tenant: str
    name: str
    scopes: frozenset[Scope] = SCOPES
    token: str | None = None
    expires_at: datetime | None = None

    @property
    def only_owner(self) -> str | None:
        """The owner of all sessions that it sees: itself; None: it sees all of its tenant."""
        return None if "sessions:all" in self.scopes else self.name

    def sees(self, owner: str | None) -> bool:
        """Return True if it sees sessions of this owner, in its tenant; those without an owner have None."""
        return self.only_owner in (None, owner)

    def check(self, scope: Scope) -> None:
        """Check that it may do what needs this scope.

        Raises:
            ProblemError: It may not.
        """
        if scope in self.scopes or (scope == "sessions:own" and "sessions:all" in self.scopes):
            return
        remedy = f"use a token with the scope {scope}"
        problem = f"{self.name} may not do this"
        raise ProblemError(HttpProblem(403, "forbidden", problem, remedy, name=self.name))


LOCAL: Final = Principal(DEFAULT_TENANT, "local")
"""The principal of each request where there is no login."""

NOBODY: Final = Principal(DEFAULT_TENANT, "nobody", frozenset())
"""The principal of a request that needs no login."""

Authenticate: TypeAlias = Callable[[Request], Awaitable[Principal]]
"""Returns the principal of a request, or raises `ProblemError` with 401."""
