"""Views for operators, of the in-memory store."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

from typing_extensions import override

from actors.kernel.runtime.ids import AgentId, HostIncarnation, ShardId
from actors.kernel.runtime.rows import Arrived
from actors.kernel.stores.insight import (
    OVERDUE_S,
    AgentRow,
    HostRow,
    InsightStore,
    KnownTotals,
    Totals,
    reason_of,
)
from actors.runtime.memory.records import InboxRow
from actors.runtime.memory.rows import MemoryRows
from actors.runtime.memory.talk import open_waits


class MemoryInsight(InsightStore):
    """Views for operators. A single host owns everything, so the list of hosts has one at most."""

    def __init__(self, rows: MemoryRows, *, lease_s: float | None) -> None:
        self._rows = rows
        self._lease_s = lease_s

    @override
    async def agents(
        self,
        *,
        type_: str | None = None,
        tenant: str | None = None,
        waiting_s: float | None = None,
        after: AgentId | None = None,
        limit: int = 100,
    ) -> list[AgentRow]:
        known = set(self._rows.open_by_agent) | {
            agent for agent in self._rows.pending if self._mail(agent)
        }
        wanted = sorted(
            (
                agent
                for agent in known
                if type_ in (None, agent.type)
                and tenant in (None, agent.tenant)
                and (after is None or _place(agent) > _place(after))
            ),
            key=_place,
        )
        found = []
        for agent in wanted:
            row = self._agent(agent)
            if waiting_s is not None and not self._is_old(row.oldest_at, waiting_s):
                continue
            found.append(row)
            if len(found) == limit:
                break
        return found

    @override
    async def inbox(self, agent_id: AgentId, *, limit: int = 100) -> list[Arrived]:
        rows = list(self._rows.pending.get(agent_id, {}).values())
        for run in self._rows.open_by_agent.get(agent_id, {}).values():
            rows += run.bound
        rows.sort(key=lambda row: row.arrival)
        return [row.arrived() for row in rows[:limit]]

    @override
    async def hosts(self) -> list[HostRow]:
        shard, owner = self._rows.shard, self._owner()
        if owner is None:
            return []
        left = math.inf
        if shard.expires_at is not None:
            left = (shard.expires_at - self._rows.clock.now()).total_seconds()
        seen = 0.0 if self._lease_s is None else max(0.0, self._lease_s - left)
        serves = self._rows.serves.get(owner)
        names: tuple[str, ...] = ()
        if serves is not None:
            names = (*sorted(serves.types), *sorted(str(agent) for agent in serves.agents))
        return [HostRow(owner=owner, seen_s=seen, expires_s=left, shards=1, serves=names)]

    @override
    async def shards_of(self, owner: HostIncarnation) -> Sequence[ShardId]:
        return [self._rows.home] if owner == self._owner() else []

    @override
    async def totals(self) -> Totals:
        runs = list(self._rows.open_runs())
        mail = [row for agent in self._rows.pending for row in self._mail(agent)]
        now = self._rows.clock.now()
        late = now - timedelta(seconds=OVERDUE_S)
        oldest = min((row.received_at for row in mail), default=now)
        agents = {run.cause.agent_id for run in runs} | {row.key.agent for row in mail}
        approvals = [one for one in open_waits(self._rows) if one.wait.kind == "approval"]
        owner = self._owner()
        unserved = {agent.type for agent in agents if not self._is_served(agent)}
        declared = {type_ for serves in self._rows.serves.values() for type_ in serves.types}
        return Totals(
            runs=Counter(run.status for run in runs),
            parked=Counter(run.parked for run in runs if run.parked is not None),
            pending=Counter(row.key.agent.type for row in mail),
            oldest_pending_s=max(0.0, (now - oldest).total_seconds()),
            dead_letters=len(self._rows.dead),
            timers_overdue=sum(
                timer is not None and timer.at < late for timer in (run.timer() for run in runs)
            ),
            shards=1,
            unowned=int(owner is None),
            hosts=int(owner is not None),
            unserved=(*sorted(unserved & declared), *sorted(unserved - declared)),
            approvals=len(approvals),
        )

    @override
    async def known_totals(self, *, every_s: float) -> KnownTotals:
        """See `InsightStore.known_totals`. Nothing is kept: counting rows in memory is cheap."""
        del every_s
        return KnownTotals(await self.totals(), 0.0)

    @override
    async def count_totals(self) -> None:
        pass

    def _mail(self, agent: AgentId) -> list[InboxRow]:
        return [row for row in self._rows.pending.get(agent, {}).values() if not row.is_lazy]

    def _agent(self, agent: AgentId) -> AgentRow:
        mail = self._mail(agent)
        runs = list(self._rows.open_by_agent.get(agent, {}).values())
        holder = self._rows.started(agent)
        return AgentRow(
            agent_id=agent,
            pending=len(mail),
            oldest_at=min((row.received_at for row in mail), default=None),
            queued=len([run for run in runs if run is not holder]),
            run_id=holder.cause.run_id if holder is not None else None,
            status=holder.status if holder is not None else None,
            parked=holder.parked if holder is not None else None,
            wake_at=holder.wake_at if holder is not None else None,
            owner=self._owner(),
            reason=reason_of(
                holder.status if holder is not None else None,
                parked=holder is not None and holder.parked is not None,
                served=self._is_served(agent),
                owned=self._owner() is not None,
            ),
        )

    def _owner(self) -> HostIncarnation | None:
        shard = self._rows.shard
        is_dead = shard.expires_at is not None and shard.expires_at <= self._rows.clock.now()
        return None if is_dead else shard.owner

    def _is_served(self, agent: AgentId) -> bool:
        owner = self._owner()
        serves = self._rows.serves.get(owner) if owner is not None else None
        return serves is not None and (agent.type in serves.types or agent in serves.agents)

    def _is_old(self, oldest: datetime | None, waiting_s: float) -> bool:
        return oldest is not None and (
            self._rows.clock.now() - oldest >= timedelta(seconds=waiting_s)
        )


def _place(agent: AgentId) -> tuple[str, str, str]:
    return agent.tenant, agent.type, agent.key
