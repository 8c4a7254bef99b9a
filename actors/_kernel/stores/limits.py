"""Limits: how many runs execute at once and how many start a second, over all hosts of a deployment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from typing_extensions import override

from actors._kernel.runtime.ids import AgentId, HostIncarnation, check_name
from actors.errors import ContractError

SCOPES: Final = "deployment, tenant:NAME, type:NAME, flow:APP/FLOW or agent:TYPE/KEY"
MAX_SLOTS: Final = 1_000_000
MOST_STARTS: Final = 1_000_000.0
MAX_WEIGHT: Final = 1000


class ScopeKind(StrEnum):
    """The kind of scope that a limit applies to."""

    AGENT = "agent"
    FLOW = "flow"
    TYPE = "type"
    TENANT = "tenant"
    DEPLOYMENT = "deployment"


@dataclass(frozen=True, slots=True, order=True)
class LimitScope:
    """The agents that share a limit.

    Written ``deployment``, ``tenant:t``, ``type:desk``, ``flow:billing/refund`` or ``agent:desk/1``. A flow's
    runs are those of the agents ``billing/refund:ID``.
    """

    kind: ScopeKind
    name: str = ""

    @override
    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else str(self.kind)

    @classmethod
    def parse(cls, text: str) -> LimitScope:
        """Return the scope that `str()` of it gave.

        Raises:
            ContractError: `text` is none.
            InvalidNameError: A name in it is not allowed.
        """
        word, colon, name = text.partition(":")
        if word not in set(ScopeKind) or bool(colon) == (word == ScopeKind.DEPLOYMENT):
            raise ContractError(f"{text!r} is no scope of a limit: write {SCOPES}")
        kind = ScopeKind(word)
        if kind is ScopeKind.AGENT:
            name = str(AgentId.parse(name))
        elif kind is ScopeKind.FLOW:
            app, slash, flow = name.partition("/")
            if not (slash and flow) or ":" in flow:
                raise ContractError(f"{text!r} is no scope of a limit: write flow:APP/FLOW")
            check_name("app", app)
        elif kind is not ScopeKind.DEPLOYMENT:
            check_name(kind, name)
        return cls(kind, name)


def scopes_of(agent_id: AgentId) -> tuple[LimitScope, ...]:
    """Return the scopes that an agent is in, the narrowest first."""
    flow, colon, _ = agent_id.key.partition(":")
    flows = (LimitScope(ScopeKind.FLOW, f"{agent_id.type}/{flow}"),) if colon else ()
    return (
        LimitScope(ScopeKind.AGENT, str(agent_id)),
        *flows,
        LimitScope(ScopeKind.TYPE, agent_id.type),
        LimitScope(ScopeKind.TENANT, agent_id.tenant),
        LimitScope(ScopeKind.DEPLOYMENT),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit on the agents of one scope together. None means no limit.

    Attributes:
        scope: The scope of the limit.
        max_concurrent: Most runs in memory at once; 0: none begins or goes on.
        rate_per_s: Most starts of runs per second, in the long run. Going on is no start.
        burst: Most starts at once after a pause; the rate, rounded up, when left out.
        weight: For a tenant: the number of runs that it starts in each round, where others start one.

    Raises:
        ContractError: A number out of its range, or a weight of something that is no tenant.
    """

    scope: LimitScope
    max_concurrent: int | None = None
    rate_per_s: float | None = None
    burst: int | None = None
    weight: int = 1

    def __post_init__(self) -> None:
        slots, rate, burst = self.max_concurrent, self.rate_per_s, self.burst
        if slots is not None and not 0 <= slots <= MAX_SLOTS:
            raise ContractError(f"max_concurrent is {slots}: give 0 to {MAX_SLOTS}")
        if rate is not None and not 0 < rate <= MOST_STARTS:
            raise ContractError(f"rate is {rate:g}/s: give more than 0, up to {MOST_STARTS:g}")
        if burst is not None and (rate is None or not 1 <= burst <= MAX_SLOTS):
            raise ContractError(f"burst is {burst}: give 1 to {MAX_SLOTS}, beside a rate")
        if not 1 <= self.weight <= MAX_WEIGHT:
            raise ContractError(f"weight is {self.weight}: give 1 to {MAX_WEIGHT}")
        if self.weight != 1 and self.scope.kind is not ScopeKind.TENANT:
            raise ContractError(f"{self.scope} has no weight: only tenants have shares")

    @property
    def most_starts(self) -> int:
        """The most starts that the token bucket holds; 0 without a rate."""
        if self.rate_per_s is None:
            return 0
        return self.burst or max(1, -int(-self.rate_per_s // 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitUse:
    """A limit, and what hosts make of it now.

    Attributes:
        limit: As it was set.
        held: Slots that hosts hold; those of dead hosts do not count.
        wanting: Runs that wait for a slot or for their start.
        hosts: Number of hosts that hold or want slots.
    """

    limit: Limit
    held: int
    wanting: int
    hosts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A host's request for its share of a limit: what it keeps and what it would like.

    All but `starts` are totals, not changes: said again after a lost answer they mean the same.

    Attributes:
        scope: The scope of the limit.
        held: Slots it goes on holding: the others it had are free from now on.
        wanted: Slots it could use, with those it holds.
        starts: Starts it wants; below 0: that many were granted and not used.
    """

    scope: LimitScope
    held: int = 0
    wanted: int = 0
    starts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A host's share of a limit from now on.

    Attributes:
        scope: The scope of the limit.
        held: Slots it holds; never fewer than it claimed to.
        share: Slots it may go on using; slots above them are released as runs leave them.
        contended: True if others want more than they hold.
        starts: Number of further runs that the host may start.
        next_start_s: Seconds until another start may be granted.
    """

    scope: LimitScope
    held: int
    share: int
    contended: bool
    starts: int = 0
    next_start_s: float = 0.0


class LimitStore(Protocol):
    """Limits, the slots that hosts hold, and the buckets that starts are taken from."""

    async def set(self, limit: Limit) -> None:
        """Make or replace the limit of its scope, for all hosts; they hear of it by a nudge.

        A bucket that is new is full.
        """

    async def delete(self, scope: LimitScope) -> bool:
        """Take a limit away; False when there is none."""

    async def list(self) -> list[LimitUse]:
        """Return all limits with their use, by scope."""

    async def exchange(self, owner: HostIncarnation, claims: Sequence[Claim]) -> Sequence[Grant]:
        """Give slots back and take some, for several limits at once; each scope once.

        The slots of all living hosts never grow above the limit; where hosts want more than
        there is, no host gets more than its share while others have less than theirs. Scopes without
        a limit are left out of the answer, and so is everything for a host whose lease has run out.
        Others are nudged when they can take released slots, or have to release some.
        """
