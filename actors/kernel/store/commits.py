"""Commits: what owners of runs write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from actors.kernel.runtime.commit import Commit, CommitOutcome
from actors.kernel.runtime.log_entry import NewEntry
from actors.kernel.runtime.scheduler import Lease


class CommitStore(Protocol):
    """Writes logs: each call is fenced by the lease of its run's shard."""

    async def append(self, lease: Lease, entries: Sequence[NewEntry], *, expected_seq: int) -> int:
        """Add entries to the run's log and return the last seq. Durable on return, whole or not at all.

        The run stays RUNNING. Sending the same call again after an unknown outcome is safe: the
        store looks the outcome up before it sends anything else of that group.

        Raises:
            LeaseLostError: The shard's owner or epoch is another one.
            ConcurrentAppendError: The log ends elsewhere; also when an earlier append was lost.
            OutOfOrderError: A queued run may not begin: something older of its sender waits.
            IllegalTransitionError: The run has ended.
            PersistenceError: The database could not say within the time limit; outcome unknown.
        """

    async def commit(self, commit: Commit) -> CommitOutcome:
        """Write one commit, all of it or nothing, and say what became of it.

        The outcome is a value, not an exception, because a group holds commits of many runs.
        An append and a commit of one run in one group are merged.

        Raises:
            PersistenceError: Outcome unknown after the time limit.
        """
