"""Principals: in whose name a request is done, and which scopes they have."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from starlette.requests import Request

from actors.kernel.runtime.ids import DEFAULT_TENANT
from compose.web.problems import HttpProblem, ProblemError

Scope: TypeAlias = Literal["sessions:own", "sessions:all", "operate", "cleanup"]
"""What a principal may do: with its own sessions, with all of its tenant, with any run and agent, clean up."""
SCOPES: Final[frozenset[Scope]] = frozenset(get_args(Scope))


@dataclass(frozen=True, slots=True)
class Principal:
    """The identity of a client.

    Attributes:
        tenant: Nothing of another one is found.
        name: Ids of messages are its own.
        scopes: What it may do.
    """

    tenant: str
    name: str
    scopes: frozenset[Scope] = SCOPES

    def check(self, scope: Scope) -> None:
        """Return if it may do what needs this scope.

        Raises:
            ProblemError: It may not.
        """
        if scope in self.scopes or (scope == "sessions:own" and "sessions:all" in self.scopes):
            return
        remedy = f"use a token with the scope {scope}"
        problem = f"{self.name} may not do this"
        raise ProblemError(HttpProblem(403, "forbidden", problem, remedy, name=self.name))


LOCAL: Final = Principal(DEFAULT_TENANT, "local")
"""The principal of each request where nobody is asked who they are."""

Authenticate: TypeAlias = Callable[[Request], Awaitable[Principal]]
"""Returns the principal of a request, or raises `ProblemError` with 401."""
