"""Views for operators: agents with work, messages that wait, hosts, and totals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, Protocol, TypeAlias

from actors._kernel.runtime.ids import AgentId, HostIncarnation, RunId, ShardId
from actors._kernel.runtime.rows import Arrived
from actors._kernel.runtime.scheduler import RunStatus

OVERDUE_S: Final = 5.0
"""Seconds after its instant from which on a timer counts as overdue."""

COUNT_LIMIT_S: Final = 60.0
"""Seconds after which another host may count: the one that was to may have died."""

WaitReason: TypeAlias = Literal[
    "unserved", "unowned", "parked", "back-off", "waiting", "executing", "queued"
]
"""The reason why an agent's messages are not handled: no live host serves its type; no host owns its shard at
the moment; its run waits for an operator; its run waits for a retry; its run waits for something else
and holds the agent; its run executes; it is about to start."""


_REASON_OF: Final[Mapping[RunStatus, WaitReason]] = {
    RunStatus.PENDING: "back-off",
    RunStatus.RUNNING: "executing",
    RunStatus.SUSPENDED: "waiting",
}


def reason_of(status: RunStatus | None, *, parked: bool, served: bool, owned: bool) -> WaitReason:
    """Return what an agent waits for whose run, if one holds it, has this status."""
    if not served:
        return "unserved"
    if not owned:
        return "unowned"
    if parked:
        return "parked"
    return "queued" if status is None else _REASON_OF[status]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRow:
    """An agent that has messages, or an open run.

    Attributes:
        agent_id: The agent.
        pending: Messages that belong to no run yet.
        oldest_at: The arrival of the oldest of them.
        queued: Runs that wait for the run that holds the agent.
        run_id: The run that holds the agent, if one does.
        status: The status of that run.
        parked: Why that run waits for an operator.
        wake_at: The instant at which that run continues by itself.
        owner: The host that has the agent, or None if no host has it.
        reason: The reason why the agent's messages or run wait.
    """

    agent_id: AgentId
    pending: int
    oldest_at: datetime | None
    queued: int
    run_id: RunId | None
    status: RunStatus | None
    parked: str | None
    wake_at: datetime | None
    owner: HostIncarnation | None
    reason: WaitReason


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRow:
    """A host that is alive, by its last heartbeat.

    Attributes:
        owner: Its incarnation.
        seen_s: Seconds since it was heard of.
        expires_s: Seconds until its agents go elsewhere if it stays silent.
        shards: Number of shards that it owns.
        serves: Types, and single agents as text.
    """

    owner: HostIncarnation
    seen_s: float
    expires_s: float
    shards: int
    serves: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Totals over all hosts, as metrics show them. Counted when asked.

    Attributes:
        runs: Open runs by status.
        parked: Parked runs by reason; ``in_doubt`` is one.
        pending: Messages that belong to no run yet, by agent type.
        oldest_pending_s: Age of the oldest of them, 0 when there is none.
        outbox: Messages that were committed and that the broker has not brought yet.
        dead_letters: Messages that were given up and not redriven.
        timers_overdue: Timers that should have fired.
        shards: Number of shards.
        unowned: Shards without an owner.
        hosts: Number of hosts that live.
        unserved: Types that have messages or runs and that no live host serves: first those that a host has
            declared once, then those that were never declared, each by name.
        approvals: What waits for a person's decision.
    """

    runs: Mapping[RunStatus, int] = field(default_factory=dict)
    parked: Mapping[str, int] = field(default_factory=dict)
    pending: Mapping[str, int] = field(default_factory=dict)
    oldest_pending_s: float = 0.0
    outbox: int = 0
    dead_letters: int = 0
    timers_overdue: int = 0
    shards: int = 0
    unowned: int = 0
    hosts: int = 0
    unserved: tuple[str, ...] = ()
    approvals: int = 0


@dataclass(frozen=True, slots=True)
class KnownTotals:
    """The last totals that a host counted, shared by all hosts.

    Attributes:
        totals: None when they were not counted yet.
        age_s: Seconds since that count began.
        is_due: The caller has to count; no other one is asked to for `COUNT_LIMIT_S`.
    """

    totals: Totals | None
    age_s: float = math.inf
    is_due: bool = False


class InsightStore(Protocol):
    """Reads for operators. Nothing here is needed for agents to run, and nothing is locked."""

    async def agents(
        self,
        *,
        type_: str | None = None,
        tenant: str | None = None,
        waiting_s: float | None = None,
        after: AgentId | None = None,
        limit: int = 100,
    ) -> list[AgentRow]:
        """Return agents that have messages or an open run, by tenant, type and key, after `after`.

        With `waiting_s` only those whose oldest message waits at least so many seconds. Posts that a
        lazy follower has not asked for count nowhere but in `inbox`: no host is notified of them.
        """

    async def inbox(self, agent_id: AgentId, *, limit: int = 100) -> list[Arrived]:
        """Return messages of the agent that are not done, oldest first: of open runs and of none."""

    async def hosts(self) -> list[HostRow]:
        """Return the hosts that live."""

    async def shards_of(self, owner: HostIncarnation) -> Sequence[ShardId]:
        """Return what a host owns."""

    async def totals(self) -> Totals:
        """Return how much there is of everything, counted now: seconds, where very much is open."""

    async def known_totals(self, *, every_s: float) -> KnownTotals:
        """Return what was counted last, at once.

        A count is due after `every_s` seconds, and after ten times as long as the last one took.
        """

    async def count_totals(self) -> None:
        """Count, for all hosts to know."""
