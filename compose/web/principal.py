"""Principals: the identities of clients, and their scopes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias, get_args

from starlette.requests import Request

from actors.kernel.runtime.ids import DEFAULT_TENANT
from actors.kernel.stores.administration import Scope
from compose.web.problems import HttpProblem, ProblemError

SCOPES: Final[frozenset[Scope]] = frozenset(get_args(Scope))


@dataclass(frozen=True, slots=True)
class Principal:
    """The identity of a client.

    Attributes:
        tenant: The principal's tenant. The principal finds nothing of other tenants.
        name: The owner of sessions that the principal creates. Ids of messages are scoped to this name.
        scopes: The principal's scopes.
        token: Id of the stored token that the request had; None if the request had none.
        expires_at: The instant from which the principal is invalid; None means never.
    """

    tenant: str
    name: str
    scopes: frozenset[Scope] = SCOPES
    token: str | None = None
    expires_at: datetime | None = None

    @property
    def only_owner(self) -> str | None:
        """The principal's own name if it sees only its own sessions; None if it sees those of its tenant."""
        return None if "sessions:all" in self.scopes else self.name

    def sees(self, owner: str | None) -> bool:
        """Return True if the principal sees sessions of this owner in its tenant (None: without an owner)."""
        return self.only_owner in (None, owner)

    def check(self, scope: Scope) -> None:
        """Check that the principal has a scope.

        Raises:
            ProblemError: The principal does not have the scope.
        """
        if scope in self.scopes or (scope == "sessions:own" and "sessions:all" in self.scopes):
            return
        remedy = f"use a token with the scope {scope}"
        problem = f"{self.name} is not allowed to do this"
        raise ProblemError(HttpProblem(403, "forbidden", problem, remedy, name=self.name))


LOCAL: Final = Principal(DEFAULT_TENANT, "local")
"""The principal of each request if there is no login."""

NOBODY: Final = Principal(DEFAULT_TENANT, "nobody", frozenset())
"""The principal of a request to an endpoint that needs no login."""

Authenticate: TypeAlias = Callable[[Request], Awaitable[Principal]]
"""Returns the principal of a request, or raises `ProblemError` with 401."""
