"""The store in memory that one part has for itself."""

from __future__ import annotations

from datetime import UTC, datetime

from typing_extensions import override

from actors.inmemory.runs.commit import MemoryCommits
from actors.inmemory.runs.rows import MEMORY_SHARD
from actors.inmemory.runs.store import MemoryStore
from actors.kernel.basics import Clock
from actors.kernel.runtime.commit import Commit, CommitOutcome, Committed, Finish
from actors.kernel.runtime.ids import AgentId, HostIncarnation
from actors.kernel.runtime.scheduler import ShardLease


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
        """See `LeaseOf`. All agents are this part's."""
        del agent_id
        return self._lease
