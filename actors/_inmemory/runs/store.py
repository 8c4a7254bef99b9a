"""MemoryStore: the whole runtime state in one process.

Each call does its work without an await in the middle, so it is atomic on the event loop. Owners,
epochs and conflicts are real: several owners may share one store through `sibling()`, and the stale
one is refused. Nothing survives the process. `PrivateStore` is one that a single part has for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from typing_extensions import override

from actors._inmemory.administration import MemoryUsage
from actors._inmemory.runs.commit import MemoryCommits
from actors._inmemory.runs.operators import MemoryErasure, MemoryOperators, MemoryRetention
from actors._inmemory.runs.reads import MemoryInsight, MemoryLists, MemoryReads
from actors._inmemory.runs.rows import MEMORY_SHARD, MemoryRows
from actors._inmemory.runs.schedules import InMemorySchedules, LimitRows, MemoryLimits, ScheduleRows
from actors._inmemory.runs.shards import MemoryArrivals, MemoryBacklog, MemoryShards
from actors._inmemory.runs.topics import MemoryFollows
from actors._inmemory.sessions import InMemorySessionDirectory
from actors._kernel.basics import Clock
from actors._kernel.runtime.commit import Commit, CommitOutcome, Committed, Finish
from actors._kernel.runtime.hints import LogHints, Nudge
from actors._kernel.runtime.ids import AgentId, HostIncarnation
from actors._kernel.runtime.scheduler import ShardLease
from actors._kernel.stores.run_store import DataStores, RunStore
from actors._kernel.stores.runs import CommitStore


class MemoryStore(RunStore):
    """A `RunStore` that forgets everything with its process.

    Args:
        clock: Stamps entries and decides when timers are due and leases expire.
        lease_s: Seconds a host may be silent before others take its shard, or None for no limit.
        shared: Rows of the store whose `sibling` this is.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        lease_s: float | None = None,
        shared: tuple[MemoryRows, ScheduleRows, LimitRows] | None = None,
    ) -> None:
        self._clock, self._lease_s = clock, lease_s
        self._shared = shared or (MemoryRows(clock), ScheduleRows(), LimitRows(clock, lease_s))
        rows, schedules, limits = self._shared
        self._rows = rows
        self.commits: CommitStore = MemoryCommits(rows, self)
        self.arrivals = MemoryArrivals(rows, self)
        self.shards = MemoryShards(rows, self, lease_s)
        self.backlog = MemoryBacklog(rows, self)
        self.reads = MemoryReads(rows, self)
        self.lists = MemoryLists(rows, self)
        self.operators = MemoryOperators(rows, self)
        self.retention = MemoryRetention(rows, self)
        self.insight = MemoryInsight(rows, lease_s=lease_s)
        self.follows = self.posts = MemoryFollows(rows, self)
        self.schedules = InMemorySchedules(clock, rows, schedules, source=self)
        self.limits = MemoryLimits(limits, partial(rows.nudge, self))
        self.data = MemoryDataStores(clock, rows, schedules)

    def sibling(self) -> MemoryStore:
        """Return a second store on the same rows, as another process would have it.

        Its changes nudge this one's hook and the other way round.
        """
        return MemoryStore(clock=self._clock, lease_s=self._lease_s, shared=self._shared)

    @override
    def prefer_log_hints(self, hints: LogHints) -> None:
        """Readers are in this process: they need none."""

    @override
    def set_nudge_hook(self, hook: Callable[[Nudge], None] | None) -> None:
        """Other processes are the siblings of this store."""
        if hook is None:
            self._rows.hooks.pop(self, None)
        else:
            self._rows.hooks[self] = hook


class MemoryDataStores(DataStores):
    """Stores beside the runs of a `MemoryStore`, on the same rows."""

    def __init__(self, clock: Clock, rows: MemoryRows, schedules: ScheduleRows) -> None:
        self.transcripts = rows.transcripts
        self.sessions = rows.sessions
        self.directory = InMemorySessionDirectory(clock.now, rows.sessions)
        self.tokens = rows.tokens
        self.artifacts = rows.artifacts
        self.flow_bundles = rows.flow_bundles
        self.run_snapshots = rows.run_snapshots
        self.audit = rows.audit
        self.memories = rows.memories
        self.usage = MemoryUsage(lambda: rows.usage)
        self.erasure = MemoryErasure(rows, schedules)


class _PrivateCommits(MemoryCommits):
    @override
    async def commit(self, commit: Commit) -> CommitOutcome:
        outcome = await super().commit(commit)
        if isinstance(outcome, Committed) and isinstance(commit.then, Finish):
            self._rows.drop_run(self._rows.record(commit.lease.run_id))
        return outcome


class PrivateStore(MemoryStore):
    """A store that one part has for itself. A run that has ended leaves nothing but its messages' ids."""

    def __init__(self, *, clock: Clock) -> None:
        super().__init__(clock=clock)
        self.commits = _PrivateCommits(self._rows, self)
        shard = self._rows.shard
        shard.owner, shard.epoch = HostIncarnation("part"), 1
        never = datetime.max.replace(tzinfo=UTC)
        self._lease = ShardLease(MEMORY_SHARD, shard.owner, shard.epoch, never)

    def lease_of(self, agent_id: AgentId) -> ShardLease:
        """Return the lease of an agent: all are this part's."""
        del agent_id
        return self._lease
