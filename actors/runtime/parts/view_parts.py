"""The common parts of views over one RunStore: leases of runs, their entries, a store of their own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TypeAlias

from actors.errors import ConcurrentAppendError, IllegalTransitionError, LeaseLostError, SpawnDenied
from actors.kernel.json import JsonValue
from actors.kernel.runtime.commit import (
    Commit,
    Committed,
    Conflict,
    LeaseLost,
    OverBudget,
    Retry,
    Then,
)
from actors.kernel.runtime.ids import AgentId, RunId
from actors.kernel.runtime.log_entry import EntryKind, NewEntry
from actors.kernel.runtime.scheduler import Lease, ShardLease
from actors.kernel.stores.run_store import RunStore

LeaseOf: TypeAlias = "Callable[[AgentId], ShardLease | None]"
"""Function: the shard lease that this host holds for an agent; None if another host owns the shard."""


class StoreView:
    """A view that writes commits of runs, under the leases of this host."""

    def __init__(self, store: RunStore, *, lease_of: LeaseOf) -> None:
        self._store, self._lease_of = store, lease_of

    def _lease(self, run_id: RunId, agent_id: AgentId, *, attempt: int) -> Lease:
        """Return the right to write for a run.

        Raises:
            LeaseLostError: The agent's shard is not this host's.
        """
        shard = self._lease_of(agent_id)
        if shard is None:
            raise LeaseLostError(self._store.shards.shard_of(agent_id), "nobody here", 0)
        return Lease(
            shard.shard, shard.owner, shard.epoch, shard.expires_at, run_id, agent_id, attempt
        )

    async def _write(
        self, lease: Lease, expected_seq: int, *entries: NewEntry, then: Then, **parts: object
    ) -> Committed:
        """Write one commit that has to succeed.

        Raises:
            LeaseLostError: The shard belongs to another host.
            ConcurrentAppendError: The run went on meanwhile.
            IllegalTransitionError: The run has ended, or what the commit takes is gone.
            SpawnDenied: The tree's budget does not allow its children.
        """
        commit = Commit(
            lease,
            expected_seq,
            entries,
            then,
            attempt=lease.attempt,
            **parts,  # type: ignore[arg-type]
        )
        match await self._store.commits.commit(commit):
            case Committed() as done:
                return done
            case LeaseLost():
                raise LeaseLostError(lease.shard, lease.owner, lease.epoch)
            case Conflict(actual):
                raise ConcurrentAppendError(lease.run_id, expected_seq, actual)
            case OverBudget(_, limit):
                raise SpawnDenied(lease.run_id, limit)
            case _:
                raise IllegalTransitionError(lease.run_id, "gone", "written")


def run_started(agent_id: AgentId) -> NewEntry:
    """Return a run's first entry."""
    return NewEntry(EntryKind.RUN_STARTED, "", {"agent": str(agent_id)})


def run_resumed(reason: str) -> NewEntry:
    """Return the entry that ends a wait."""
    return NewEntry(EntryKind.RUN_RESUMED, "", {"reason": reason})


def failure(message: str) -> dict[str, JsonValue]:
    """Return the error of an attempt that was given up from outside the run."""
    return {"type": "actors.errors:AgentCrashError", "message": message}


def attempt_failed(
    attempt: int, error: dict[str, JsonValue], retry_from: int, *, at: datetime
) -> tuple[NewEntry, Retry]:
    """Return the entry of an attempt that failed, and the wait for the next one."""
    payload: dict[str, JsonValue] = {
        "attempt": attempt,
        "error": error,
        "retry_from": retry_from,
        "at": at.isoformat(),
    }
    return NewEntry(EntryKind.RUN_ATTEMPT_FAILED, "", payload), Retry(at, error, retry_from)
