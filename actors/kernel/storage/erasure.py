"""Erasure: removal of all that a deployment keeps of a tenant, an agent, a session or a subject."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol, TypeAlias, runtime_checkable

from actors.errors import ContractError
from actors.kernel.json import JsonValue
from actors.kernel.runtime.ids import AgentId, RunId, check_name
from actors.kernel.text import check_name_of

ERASE_BATCH: Final = 500
"""Rows that one batch of an erase removes at most, of each kind."""
SUBJECT_KEY: Final = "about"
"""The key of metadata and properties that names the subject of a document or an entity."""


class EraseScope(StrEnum):
    """The kind of thing that an erase is about."""

    TENANT = "tenant"
    AGENT = "agent"
    SESSION = "session"
    SUBJECT = "about"


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseRequest:
    """The choice of what is erased, within one tenant.

    Attributes:
        tenant: The owner of all that is erased. Alone: everything of the tenant.
        agent: Everything of this agent.
        session: With `agent`: this conversation only.
        about: Alone: memories, documents and entities of this subject.

    Raises:
        ContractError: A combination means nothing, or a name cannot be one.
    """

    tenant: str
    agent: AgentId | None = None
    session: str | None = None
    about: str | None = None

    def __post_init__(self) -> None:
        check_name("tenant", self.tenant)
        for what, name in (("session", self.session), ("subject", self.about)):
            if name is not None:
                check_name_of(f"{what} of an erase", name)
                if not name:
                    raise ContractError(
                        f"the {what} of an erase is empty: name one, or leave it out"
                    )
        if self.about is not None and (self.agent is not None or self.session is not None):
            problem = "subjects belong to the whole tenant, not to an agent or a session"
            raise ContractError(f"{problem}: erase about={self.about!r} alone, then the other")
        if self.session is not None and self.agent is None:
            problem = f"session {self.session!r} of which agent?"
            raise ContractError(f"{problem} Give agent= with session=, or leave session= out")
        if self.agent is not None and self.agent.tenant != self.tenant:
            problem = (
                f"agent {self.agent} is of tenant {self.agent.tenant!r}, not of {self.tenant!r}"
            )
            raise ContractError(f"{problem}: give tenant={self.agent.tenant!r}")

    @property
    def scope(self) -> EraseScope:
        """The kind of thing that is erased."""
        if self.about is not None:
            return EraseScope.SUBJECT
        if self.session is not None:
            return EraseScope.SESSION
        return EraseScope.TENANT if self.agent is None else EraseScope.AGENT

    def covers(self, agent: AgentId) -> bool:
        """Return True if the agent's own data is in the scope, all of it or one session."""
        if self.scope is EraseScope.SUBJECT or agent.tenant != self.tenant:
            return False
        return self.agent in (None, agent)

    def is_about(self, data: Mapping[str, JsonValue]) -> bool:
        """Return True if metadata or properties are in the scope: all of a tenant, or its subject's."""
        if self.scope is EraseScope.SUBJECT:
            return data.get(SUBJECT_KEY) == self.about
        return self.scope is EraseScope.TENANT


@dataclass(frozen=True, slots=True)
class EraseCount:
    """The result of one batch.

    Attributes:
        rows: Number of removed rows by kind.
        cursor: The argument for the next batch; None: this store has no more rows to remove.
    """

    rows: Mapping[str, int] = field(default_factory=dict)
    cursor: str | None = None


@runtime_checkable
class Erasable(Protocol):
    """A store that removes its part of an erase, in batches.

    A store that keeps nothing of a scope returns an empty count. It never touches another tenant's data.
    """

    erased_as: str
    """Name of the store in a report."""

    async def erase(
        self, what: EraseRequest, *, cursor: str | None = None, limit: int = ERASE_BATCH
    ) -> EraseCount:
        """Remove at most `limit` rows of each kind, and return how many that was.

        A batch is done as a whole or not at all, and holds its locks for that time only. Without a cursor it
        begins at the start: so an erase that was killed is called again and finds what is left.

        Raises:
            OpenRunsError: A run began meanwhile that holds the data.
            PersistenceError: The store could not be asked; what earlier batches removed stays removed.
        """

    async def count(self, what: EraseRequest) -> Mapping[str, int]:
        """Return how many rows of each kind there are. Removes and locks nothing."""


class ErasureStore(Protocol):
    """The parts of a `RunStore` that an erase goes through."""

    parts: Sequence[Erasable]
    """The stores in the order in which they are erased."""

    async def open_runs(self, what: EraseRequest, *, limit: int) -> list[tuple[RunId, AgentId]]:
        """Return open runs that hold data of the scope: all of the agent, or of the tenant; by id.

        A subject has none: documents and entities belong to no run.
        """


@dataclass(frozen=True, slots=True)
class Unreached:
    """A location that an erase cannot clear.

    Attributes:
        name: The location.
        problem: The reason, and the remedy if there is one.
        gone_by: The instant by which it is gone by itself; None: not known.
    """

    name: str
    problem: str
    gone_by: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseReport:
    """The result of an erase.

    Attributes:
        what: The request.
        counts: Rows of each kind that were removed, by store; of a dry run, that would be.
        cancelled: Runs that were cancelled for it.
        is_dry_run: Nothing was removed.
        batches: Number of batches.
        unreached: Places that the erase does not reach, with dates.
    """

    what: EraseRequest
    counts: Mapping[str, Mapping[str, int]]
    cancelled: Sequence[RunId] = ()
    is_dry_run: bool = False
    batches: int = 0
    unreached: Sequence[Unreached] = ()

    @property
    def total(self) -> int:
        """Sum of all counts."""
        return sum(sum(kinds.values()) for kinds in self.counts.values())


EraseProgress: TypeAlias = Callable[[int], None]
"""Called after each batch with the number of rows that were removed so far."""
