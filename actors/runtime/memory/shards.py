"""The shard of a store in memory, and what its owner has to do."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final, Literal
from weakref import ref

from typing_extensions import override

from actors.errors import RegistrationError
from actors.kernel.runtime.hints import Nudge
from actors.kernel.runtime.ids import AgentId, HostIncarnation, RunId, ShardId
from actors.kernel.runtime.rows import Arrived, HostReport, RunRow, Timer
from actors.kernel.runtime.scheduler import RunStatus, ShardLease
from actors.kernel.runtime.waits import WaitCycle
from actors.kernel.stores.runs import Blocking
from actors.kernel.stores.shards import BacklogStore, Serves, ShardStore
from actors.runtime.memory.cycles import young_cycles
from actors.runtime.memory.records import RunRecord
from actors.runtime.memory.rows import MEMORY_SHARD, MemoryRole, MemoryRows, both_ways

_NEVER: Final = datetime.max.replace(tzinfo=UTC)


class MemoryShards(MemoryRole, ShardStore):
    """The single shard of all agents: a host that serves any of them can own it."""

    def __init__(self, rows: MemoryRows, source: object, lease_s: float | None) -> None:
        super().__init__(rows, source)
        self._lease_s = lease_s

    @override
    async def declare(self, serves: Serves, *, partitions: int = 16) -> None:
        wanted: dict[str, Literal["type", "agent"]] = dict.fromkeys(serves.types, "type")
        for agent in serves.agents:
            if wanted.setdefault(agent.type, "agent") != "agent":
                raise RegistrationError(both_ways(agent.type))
        for type_, mode in wanted.items():
            if self._rows.types.get(type_, mode) != mode:
                raise RegistrationError(both_ways(type_))
        self._rows.types.update(wanted)

    @override
    def shard_of(self, agent_id: AgentId) -> ShardId:
        """Return the only shard."""
        return MEMORY_SHARD

    @override
    async def claim(
        self, *, owner: HostIncarnation, serves: Serves, limit: int
    ) -> list[ShardLease]:
        shard = self._rows.shard
        self._rows.serves[owner] = serves
        alive = shard.owner is not None and (
            shard.expires_at is None or shard.expires_at > self._rows.clock.now()
        )
        if alive or limit < 1 or not (serves.types or serves.agents):
            return []
        if shard.owner not in (None, owner):
            shard.broken_at = next(self._rows.arrivals)
        shard.owner, shard.epoch, shard.expires_at = owner, shard.epoch + 1, self._expiry()
        shard.claimed_by = ref(self._source)  # rows hold no store
        until = shard.expires_at or _NEVER
        return [ShardLease(MEMORY_SHARD, owner, shard.epoch, until, shard.broken_at)]

    @override
    async def release(self, leases: Sequence[ShardLease]) -> None:
        """If not called at the store by which the owner claimed them, the owner counts as dead."""
        shard = self._rows.shard
        for lease in leases:
            if (lease.shard, lease.owner, lease.epoch) == (MEMORY_SHARD, shard.owner, shard.epoch):
                is_own = shard.claimed_by == ref(self._source)
                shard.broken_at = None if is_own else next(self._rows.arrivals)
                shard.owner = shard.expires_at = None
                self._notify(Nudge("shards"))

    @override
    async def heartbeat(self, owner: HostIncarnation, known: Sequence[ShardLease]) -> HostReport:
        shard = self._rows.shard
        mine = shard.owner == owner
        if mine:
            shard.expires_at = self._expiry()
        held = {lease.shard for lease in known if mine and lease.epoch == shard.epoch}
        return HostReport(
            unknown=(MEMORY_SHARD,) if mine and not held else (),
            lost=tuple(lease for lease in known if lease.shard not in held),
            now=self._rows.clock.now(),
        )

    def _expiry(self) -> datetime | None:
        if self._lease_s is None:
            return None
        return self._rows.clock.now() + timedelta(seconds=self._lease_s)


class MemoryBacklog(MemoryRole, BacklogStore):
    """The work that waits in the single shard."""

    @override
    async def open_runs(
        self,
        shards: Sequence[ShardId],
        *,
        after: RunId | None = None,
        limit: int = 1000,
        asleep: bool = True,
    ) -> list[RunRow]:
        if MEMORY_SHARD not in shards:
            return []
        runs = sorted(self._rows.open_runs(), key=lambda run: run.cause.run_id)
        wanted = (run for run in runs if after is None or run.cause.run_id > after)
        awake = (run for run in wanted if asleep or not run.is_asleep)
        return [run.row() for run in islice(awake, limit)]

    @override
    async def sleepers(self, shards: Sequence[ShardId]) -> dict[ShardId, dict[str, int]]:
        if MEMORY_SHARD not in shards:
            return {}
        runs = (run for run in self._rows.open_runs() if run.is_suspended)
        return {MEMORY_SHARD: {str(run.cause.agent_id): run.cause.priority for run in runs}}

    @override
    async def blockings(self, shards: Sequence[ShardId]) -> list[Blocking]:
        """Return nothing: no other host gives shards up."""
        del shards
        return []

    @override
    async def pending_mail(
        self, *, agent: AgentId, after: int = -1, limit: int = 1000
    ) -> list[Arrived]:
        waiting = self._rows.pending.get(agent, {}).values()
        return [row.arrived() for row in islice((r for r in waiting if r.arrival > after), limit)]

    @override
    async def who_has_mail(
        self, shards: Sequence[ShardId], *, after: int = -1, limit: int = 1000
    ) -> list[tuple[AgentId, int]]:
        if MEMORY_SHARD not in shards:
            return []
        waiting = [row for rows in self._rows.pending.values() for row in rows.values()]
        found = [(r.key.agent, r.arrival) for r in waiting if not r.is_lazy and r.arrival > after]
        return sorted(found, key=lambda one: one[1])[:limit]

    @override
    async def due(
        self, shards: Sequence[ShardId], *, within_s: float, limit: int = 10_000
    ) -> list[Timer]:
        if MEMORY_SHARD not in shards:
            return []
        until = self._rows.clock.now() + timedelta(seconds=within_s)
        return self._rows.timers(until)[:limit]

    @override
    async def wait_cycles(
        self, shards: Sequence[ShardId], *, younger_than_s: float
    ) -> list[WaitCycle]:
        if MEMORY_SHARD not in shards:
            return []
        return young_cycles(self._rows, younger_than_s=younger_than_s)

    @override
    async def unnoticed(self, shards: Sequence[ShardId], *, younger_than_s: float) -> list[Nudge]:
        if MEMORY_SHARD not in shards:
            return []
        since = self._rows.clock.now() - timedelta(seconds=younger_than_s)
        hints = (_hint_of(run, since) for run in self._rows.open_runs())
        return [nudge for nudge in hints if nudge is not None]


def _hint_of(run: RunRecord, since: datetime) -> Nudge | None:
    cause = run.cause
    if run.cancel_requested is not None:
        return Nudge("cancel", cause.agent_id, cause.run_id)
    if run.status is RunStatus.PENDING and cause.parent is not None and not run.log:
        return Nudge("run", cause.agent_id, cause.run_id) if run.created_at > since else None
    keys = run.wake.runs if run.wake is not None and run.parked is None else ()
    if any(key in run.answers and not run.answers[key].is_taken for key in keys):
        return Nudge("signal", cause.agent_id, cause.run_id)
    return None
