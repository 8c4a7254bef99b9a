"""Shards: who owns them, and what their owner finds there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId, HostIncarnation, RunId, ShardId
from actors._kernel.runtime.rows import Arrived, HostReport, RunRow, Timer
from actors._kernel.runtime.scheduler import ShardLease
from actors._kernel.runtime.waits import WaitCycle
from actors._kernel.stores.runs import Blocking


@dataclass(frozen=True, slots=True)
class Serves:
    """The agents that a host can execute: whole types, and single agents."""

    types: tuple[str, ...] = ()
    agents: tuple[AgentId, ...] = ()


class ShardStore(Protocol):
    """The shards, their owners, and the live hosts."""

    async def declare(self, serves: Serves, *, partitions: int = 16) -> None:
        """Make types and agents known, so that they have shards. Idempotent.

        Raises:
            RegistrationError: A type is used as whole type and as single agents.
        """

    def shard_of(self, agent_id: AgentId) -> ShardId:
        """Return the shard of an agent whose type or self was declared through this store."""

    async def claim(
        self, *, owner: HostIncarnation, serves: Serves, limit: int
    ) -> list[ShardLease]:
        """Take ownerless shards, and those of dead hosts, of what this host serves; epochs grow.

        Compare and swap per shard, in key order. Only leases come back; read the rest in pages.
        Hosts that serve the same type have fair shares of it. A type that no host serves falls to any host.
        With nothing in `serves` this host wants nothing any more: what it holds becomes surplus.
        A lease of a shard whose owner died says so (`ShardLease.broken_at`).
        """

    async def release(self, leases: Sequence[ShardLease]) -> None:
        """Give shards up so that others take them at once. Unknown or lost ones are ignored.

        Given up by anyone but their owner, they count as shards of a dead owner.
        """

    async def heartbeat(self, owner: HostIncarnation, known: Sequence[ShardLease]) -> HostReport:
        """Keep this host alive for another lease time and compare what it holds."""


class BacklogStore(Protocol):
    """The work that waits in shards, for their owner."""

    async def open_runs(
        self,
        shards: Sequence[ShardId],
        *,
        after: RunId | None = None,
        limit: int = 1000,
        asleep: bool = True,
    ) -> list[RunRow]:
        """Return runs of these shards that have not ended, by run id, after `after`.

        With `asleep=False` without those that sleep: that are suspended and not parked, were not
        asked to stop, and for which no signal or answer is there.
        """

    async def sleepers(self, shards: Sequence[ShardId]) -> Mapping[ShardId, Mapping[str, int]]:
        """Return by shard the agents, as text, that a suspended run holds which is not parked.

        With the run's priority. Of what sleeps an owner reads no more than this.
        """

    async def blockings(self, shards: Sequence[ShardId]) -> list[Blocking]:
        """Return the runs of these shards whose code made hosts give them up: see `Blocking`.

        Such a mark is written in the commit that gives the shard up. Those of runs that have gone
        on since may be among them.
        """

    async def pending_mail(
        self, *, agent: AgentId, after: int = -1, limit: int = 1000
    ) -> list[Arrived]:
        """Return an agent's inbox rows that belong to no run yet, by arrival, after `after`."""

    async def who_has_mail(
        self, shards: Sequence[ShardId], *, after: int = -1, limit: int = 1000
    ) -> list[tuple[AgentId, int]]:
        """Return agents of these shards with the arrivals of such rows, in order, after `after`.

        Without rows of lazy followers.
        """

    async def due(
        self, shards: Sequence[ShardId], *, within_s: float, limit: int = 10_000
    ) -> list[Timer]:
        """Return timers of waiting runs that are due within so many seconds, earliest first."""

    async def wait_cycles(
        self, shards: Sequence[ShardId], *, younger_than_s: float
    ) -> list[WaitCycle]:
        """Return cycles that two commits closed at the same moment, each once: one wait has to fail.

        That of the greatest run id of the cycle, when its agent is in these shards.
        """

    async def unnoticed(self, shards: Sequence[ShardId], *, younger_than_s: float) -> list[Nudge]:
        """Return what the owner of these shards may not have heard of, because a hint was lost.

        Children that wait to be started (run) and answers for suspended runs (signal), written within
        so many seconds; open runs that were asked to stop (cancel).
        """
