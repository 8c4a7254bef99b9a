"""Administration of a deployment: audit rows, API tokens, totals of usage, and erasure.

An audit row is a change that a principal made, with its time, thing, values before and after, and outcome.
Who shows the secret of a token acts as a principal of a tenant, with scopes.

The totals say what model calls used and cost, by tenant, agent, model and day. A store adds to them in the
commit that writes the log entry of an answer. So each recorded answer counts once, and the totals of a day
are the sums over its logs, also over those that were swept since. Totals are kept for 400 days, or for as
long as runs if that is longer.

An erasure removes all that a deployment keeps of a tenant, an agent, a session or a subject.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Final, Literal, Protocol, TypeAlias, runtime_checkable

from pydantic_core import to_json

from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import AgentId, RunId, check_name
from actors._kernel.text import check_name_of
from actors.errors import ContractError

MAX_FACTS_BYTES: Final = 4 * 1024
"""Maximum size of the values before a change, and of those after it, as JSON text."""
DONE: Final = "done"
"""The outcome of a change that was made."""

Facts = Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAuditRow:
    """An audit row to be written.

    Attributes:
        tenant: The tenant of the principal and of the thing.
        principal: The name of the principal.
        action: The kind of change, as ``session.delete``.
        thing: The thing that the change is about: its kind, a colon and its id, as ``run:0f3c``.
        agent: The agent whose thing it is. An erase of the agent clears `before` and `after`.
        before: Values before the change; None if they are unknown or there were none.
        after: Values after the change, or the values that a refused change asked for.
        outcome: ``done``, or the code of the problem for which the change was refused.
        write_id: The id that the caller made for this write. A second write of the tenant with it adds no row.
            None if each write adds a row, also one that the store sends again because the answer was lost.

    Raises:
        InvalidTextError: A text is too long, or has characters that no database takes.
        ContractError: `before` or `after` is larger than 4 KiB as JSON.
    """

    tenant: str
    principal: str
    action: str
    thing: str
    agent: AgentId | None = None
    before: Facts | None = None
    after: Facts | None = None
    outcome: str = DONE
    write_id: str | None = None

    def __post_init__(self) -> None:
        check_name("tenant", self.tenant)
        for what in ("principal", "action", "thing", "outcome", "write_id"):
            check_name_of(f"{what} of an audit row", getattr(self, what) or "")
        for what, facts in (("before", self.before), ("after", self.after)):
            size = 0 if facts is None else len(to_json(facts))
            if size > MAX_FACTS_BYTES:
                remedy = f"write {MAX_FACTS_BYTES} bytes at most"
                raise ContractError(f"`{what}` of an audit row has {size} bytes: {remedy}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow(NewAuditRow):
    """A stored audit row.

    Attributes:
        id: Its number. Later rows have greater numbers.
        at: The instant at which it was written.
    """

    id: int
    at: datetime


class AuditStore(Protocol):
    """The audit rows of all tenants. They outlive their things.

    Retention and an erase of the tenant delete rows. An erase of an agent, as the deletion of a session is,
    clears `before` and `after` of its rows.
    """

    async def add(self, new: NewAuditRow) -> AuditRow:
        """Write a row, or find the row of the same tenant and `write_id`. It is durable on return."""

    async def list(
        self, tenant: str, *, thing: str | None = None, after: int | None = None, limit: int = 100
    ) -> list[AuditRow]:
        """Return rows of a tenant, newest first.

        Args:
            tenant: The tenant.
            thing: Only rows about this thing.
            after: Only rows with smaller ids: `id` of the last row of the previous page.
            limit: Maximum number of rows.

        Raises:
            InvalidTextError: `thing` is too long, or has characters that no database takes.
        """


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
        expires_at: The instant from which on it is refused, or None if it does not expire.
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
        revoked_at: When it was revoked, or None if it was not.
        last_used_at: The instant of the last use, to the minute, or None if it was never used.
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
        """Return the token whose secret has this SHA-256, or None; write that it was used.

        One that is over is returned as well: its state says so.
        """

    async def list(self) -> list[ApiToken]:
        """Return all tokens but logins, the oldest first."""

    async def revoke(self, name_or_id: str) -> ApiToken | None:
        """End a token, and the logins that were made from it, for good; return None if there is none.

        A name is that of the one that was not revoked. Doing it again changes nothing.
        """

    async def over(self, ids: Collection[str]) -> dict[str, TokenState]:
        """Return those of these tokens that cannot be used any more, and why. Unknown ones are revoked."""


UsageBy: TypeAlias = Literal["tenant", "agent", "model", "day"]
EACH: Final[tuple[UsageBy, ...]] = ("tenant", "agent", "model", "day")
"""Nothing is summed: the totals as they are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageFilter:
    """The choice of answers that are added up. A field that is None selects all.

    Attributes:
        tenant: Only agents of this tenant.
        type_: Only agents of this type.
        agent_id: Only this agent.
        model: Only this model, by the name of the agent's client.
        since: From this day on, in UTC.
        until: Up to this day, which is included.
    """

    tenant: str | None = None
    type_: str | None = None
    agent_id: AgentId | None = None
    model: str | None = None
    since: date | None = None
    until: date | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageTotal:
    """The sum of some answers. What was not asked for by name is None.

    Attributes:
        tenant: The tenant of the agents.
        agent_id: The agent whose runs called the model.
        model: The name of the agent's client, as logs have it.
        day: The day of the log entries, in UTC.
        calls: Number of answers.
        input: Tokens of the requests, `cached` and `cache_written` included.
        output: Tokens of the answers.
        cached: Tokens read from providers' prompt caches.
        cache_written: Tokens written to those caches.
        cost_usd: Exact sum of the costs that are known.
        unpriced: Number of answers without a known cost.
    """

    tenant: str | None
    agent_id: AgentId | None
    model: str | None
    day: date | None
    calls: int
    input: int
    output: int
    cached: int
    cache_written: int
    cost_usd: Decimal
    unpriced: int


class UsageStore(Protocol):
    """Totals that commits write, and that retention removes after 400 days."""

    async def totals(
        self, wanted: UsageFilter, *, by: Sequence[UsageBy] = EACH
    ) -> list[UsageTotal]:
        """Return a sum for each value of `by`, ordered by tenant, agent, model and day; none for no answers."""


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
        cursor: The argument for the next batch, or None if this store has no more rows to remove.
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
        gone_by: The instant by which it is gone by itself, or None if it is not known.
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
