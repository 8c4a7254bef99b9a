"""Totals of what model calls used and cost: by tenant, agent, model and day.

A store adds to them in the commit that writes the log entry of an answer. So each recorded answer counts once,
and the totals of a day are the sums over its logs, also over those that were swept since. Totals are kept for
400 days, or for as long as runs if that is longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Final, Literal, Protocol, TypeAlias

from actors.kernel.runtime.ids import AgentId

UsageBy: TypeAlias = Literal["tenant", "agent", "model", "day"]
EACH: Final[tuple[UsageBy, ...]] = ("tenant", "agent", "model", "day")
"""Nothing is summed: the totals as they are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageFilter:
    """The choice of answers that are added up; None: all.

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
