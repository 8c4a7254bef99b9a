"""What the views over one RunStore share: leases of runs, and the entries views write themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from actors.errors import (
    ConcurrentAppendError,
    IllegalTransitionError,
    LeaseLostError,
    SpawnDenied,
)
from actors.kernel.runtime.commit import Commit, Committed, Conflict, LeaseLost, OverBudget
from actors.kernel.runtime.log_entry import EntryKind, NewEntry
from actors.kernel.runtime.scheduler import Lease
from actors.runtime.summary import row_of

if TYPE_CHECKING:
    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.commit import CommitOutcome, NewRun, RunRow, Then
    from actors.kernel.runtime.ids import AgentId, RunId
    from actors.kernel.runtime.scheduler import ShardLease
    from actors.kernel.runtime.store import RunStore


class LeaseOf(Protocol):
    """Which shard lease this host holds for an agent."""

    def __call__(self, agent_id: AgentId) -> ShardLease | None:
        """Return the lease, or None when the agent's shard is not this host's."""
        ...


class Author:
    """Writes turns of runs under the leases of this host."""

    def __init__(self, store: RunStore, lease_of: LeaseOf) -> None:
        self.store = store
        self._lease_of = lease_of

    async def row(self, run_id: RunId) -> RunRow:
        """Return the run's row.

        Raises:
            UnknownRunError: There is no such run.
        """
        return await row_of(self.store, run_id)

    def lease(self, run_id: RunId, agent_id: AgentId, *, attempt: int) -> Lease:
        """Return the right to write for a run.

        Raises:
            LeaseLostError: The agent's shard is not this host's.
        """
        shard = self._lease_of(agent_id)
        if shard is None:
            raise LeaseLostError(self.store.shard_of(agent_id), "nobody here", 0)
        return Lease(
            shard.shard, shard.owner, shard.epoch, shard.expires_at, run_id, agent_id, attempt
        )

    async def write(
        self, lease: Lease, expected_seq: int, *entries: NewEntry, then: Then, **parts: object
    ) -> Committed:
        """Commit one turn that has to succeed.

        Raises:
            LeaseLostError: The shard belongs to somebody else.
            ConcurrentAppendError: The run went on meanwhile.
            IllegalTransitionError: The run has ended, or what the turn takes is gone.
        SpawnDenied: The tree's budget has no place for its children.
        """
        commit = Commit(
            lease,
            expected_seq,
            entries,
            then,
            attempt=lease.attempt,
            **parts,  # type: ignore[arg-type]
        )
        return committed(lease, expected_seq, await self.store.commit(commit))


def committed(lease: Lease, expected_seq: int, outcome: CommitOutcome) -> Committed:
    """Return a good outcome and raise the others. See `Author.write`."""
    match outcome:
        case Committed():
            return outcome
        case LeaseLost():
            raise LeaseLostError(lease.shard, lease.owner, lease.epoch)
        case Conflict(actual):
            raise ConcurrentAppendError(lease.run_id, expected_seq, actual)
        case OverBudget(_, limit):
            raise SpawnDenied(lease.run_id, limit)
        case _:
            raise IllegalTransitionError(lease.run_id, "gone", "written")


def run_started(new: NewRun) -> NewEntry:
    """Return a run's first entry."""
    return NewEntry(EntryKind.RUN_STARTED, "", {"agent": str(new.agent_id)})


def run_resumed(reason: str) -> NewEntry:
    """Return the entry that ends a wait."""
    return NewEntry(EntryKind.RUN_RESUMED, "", {"reason": reason})


def failure(message: str) -> dict[str, JsonValue]:
    """Return the error of an attempt that somebody outside the run gave up."""
    return {"type": "actors.errors:AgentCrashError", "message": message}
