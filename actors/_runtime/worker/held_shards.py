"""The shards of a worker, each with its state: being read, served, or being released.

`Completions` has the futures of callers in this process that wait for the end of a run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from actors._kernel.json import fresh
from actors._kernel.runtime.ids import RunId, ShardId
from actors._kernel.runtime.rows import RunRow
from actors._kernel.runtime.scheduler import Lease, ShardLease
from actors._runtime.execution.suspects import Legacy

LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


class HeldShards:
    """The leases of one worker.

    Attributes:
        loading: Shards whose open runs are not read yet. Nothing starts there.
        unread: Shards whose waiting messages are not read yet. An unknown agent may have some.
        draining: Shards that are to be released. Nothing starts there.
        lazy: Agents with inbox rows of which no notification was sent, by shard; None if any agent of the
            shard may have some. Such an agent reads its rows before it starts.
        readings: Grows whenever a shard has to be read. A reader of rows notes it before it reads.
        legacies: By shard whose owner before died, what that one may have been executing.
        read_since: By shard, the smallest value of `readings` whose rows are valid. Older rows were read
            before the shard had to be read again.
    """

    def __init__(self) -> None:
        self._leases: dict[ShardId, ShardLease] = {}
        self.loading: set[ShardId] = set()
        self.unread: set[ShardId] = set()
        self.draining: set[ShardId] = set()
        self.lazy: dict[ShardId, set[str] | None] = {}
        self.legacies: dict[ShardId, Legacy] = {}
        self.readings: int = 0
        self.read_since: dict[ShardId, int] = {}

    def __contains__(self, shard: ShardId) -> bool:
        return shard in self._leases

    @property
    def leases(self) -> tuple[ShardLease, ...]:
        """The leases of all held shards. May be read in any thread."""
        # A copy: the heartbeat's thread iterates while the loop grants and removes leases.
        return tuple(self._leases.values())

    @property
    def loaded(self) -> tuple[ShardLease, ...]:
        """The leases of shards whose open runs are known."""
        return tuple(lease for lease in self.leases if lease.shard not in self.loading)

    @property
    def unscanned(self) -> list[ShardLease]:
        """The leases of loaded shards that may have messages without a notification."""
        return [self._leases[s] for s in self.unread - self.loading if s in self._leases]

    def get(self, shard: ShardId) -> ShardLease | None:
        """Return the lease of a shard, or None if it is not held."""
        return self._leases.get(shard)

    def grant(self, lease: ShardLease, *, at: datetime = LONG_AGO) -> None:
        """Hold a shard from now on, the time `at`; it has to be read."""
        self._leases[lease.shard] = lease
        self.legacies.pop(lease.shard, None)
        if lease.broken_at is not None:
            self.legacies[lease.shard] = Legacy(lease.broken_at, at)
        self.read_anew(lease.shard)
        self.draining.discard(lease.shard)

    def read_anew(self, shard: ShardId) -> None:
        """Reload a held shard: notifications sent before this host owned it were lost."""
        self.readings += 1
        self.read_since[shard] = self.readings
        for phase in (self.loading, self.unread):
            phase.add(shard)
        self.lazy[shard] = None  # agents with lazy rows are looked up once it is read

    def holds(self, lease: ShardLease) -> bool:
        """Return True if this very lease is held: the shard was not lost, and claimed again, since."""
        # The epoch, not the owner: a host that froze may have lost the shard and claimed it again, and work
        # that began under the old epoch must not continue under the new one.
        current = self._leases.get(lease.shard)
        return current is not None and current.epoch == lease.epoch

    def remove(self, lease: ShardLease) -> bool:
        """Stop holding the shard; return False if it was not held."""
        if not self.holds(lease):
            return False
        del self._leases[lease.shard], self.read_since[lease.shard]
        for phase in (self.loading, self.unread, self.draining):
            phase.discard(lease.shard)
        self.lazy.pop(lease.shard, None)
        self.legacies.pop(lease.shard, None)
        return True

    def among(self, shards: Sequence[ShardId]) -> list[ShardLease]:
        """Return the leases of those that are held."""
        return [self._leases[shard] for shard in shards if shard in self._leases]

    def clear(self) -> None:
        """Stop holding any shard."""
        self._leases.clear()
        self.read_since.clear()
        self.lazy.clear()
        self.legacies.clear()
        for phase in (self.loading, self.unread, self.draining):
            phase.clear()


def run_lease(lease: ShardLease, run: RunRow, *, attempt: int | None = None) -> Lease:
    """Return the right to execute one run of a shard, in its present attempt or in `attempt`."""
    return Lease(
        lease.shard,
        lease.owner,
        lease.epoch,
        lease.expires_at,
        run.run_id,
        run.agent_id,
        max(run.attempt, 1) if attempt is None else attempt,
    )


class Completions:
    """Futures by run. Their result is the run's row, or None when the row has to be read."""

    def __init__(self) -> None:
        self._waiters: dict[RunId, list[asyncio.Future[RunRow | None]]] = {}

    def future_of(self, run_id: RunId) -> asyncio.Future[RunRow | None]:
        """Return a future that is done when the run has ended here, or has left this worker."""
        waiter: asyncio.Future[RunRow | None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(run_id, []).append(waiter)

        def forget(future: asyncio.Future[RunRow | None]) -> None:
            waiters = self._waiters.get(run_id, [])
            if future in waiters:
                waiters.remove(future)
                if not waiters:
                    del self._waiters[run_id]

        # A caller that gives up leaves no entry behind: its future would stay until the run ends, or for ever.
        waiter.add_done_callback(forget)
        return waiter

    def is_awaited(self, run_id: RunId) -> bool:
        """Return True if a caller in this process waits for the end of the run."""
        return run_id in self._waiters

    def complete(self, run_id: RunId, row: RunRow | None) -> None:
        """Complete the run's futures: it has ended, or another host has it now. Each has a row of its own."""
        for waiter in self._waiters.pop(run_id, ()):
            if not waiter.done():
                waiter.set_result(row)
                # A copy for the next caller: this one may change the result in place.
                row = None if row is None else replace(row, result=fresh(row.result))

    def release_all(self) -> None:
        """Complete all futures with None, so that each caller reads its run's row and waits there."""
        # A copy: `complete` takes each run out.
        for run_id in list(self._waiters):
            self.complete(run_id, None)
