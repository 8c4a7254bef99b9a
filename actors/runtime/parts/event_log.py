"""The event log: a view over one RunStore, and one that keeps logs of any run in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

from typing_extensions import override

from actors.kernel.basics import Clock
from actors.kernel.runtime.commit import CONTINUE
from actors.kernel.runtime.ids import AgentId, RunId, derive_id
from actors.kernel.runtime.log_entry import NewEntry, RunLogEntry, check_entry
from actors.kernel.runtime.rows import NewRun
from actors.runtime.parts.view_parts import StoreView
from actors.runtime.replay.summary import row_of


class EventLogView(StoreView):
    """See `EventLog`. Appends go through the store's fence, to runs that exist."""

    async def append(self, run_id: RunId, entry: NewEntry, *, expected_seq: int) -> int:
        """See `EventLog.append`. An ended run takes no entry.

        Raises:
            UnknownRunError: There is no such run.
            IllegalTransitionError: It has ended.
        """
        check_entry(entry)
        row = await row_of(self._store, run_id)
        lease = self._lease(run_id, row.agent_id, attempt=max(row.attempt, 1))
        return await self._store.commits.append(lease, [entry], expected_seq=expected_seq)

    def read(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        """See `EventLog.read`."""
        return self._store.reads.entries(run_id, from_seq=from_seq)

    def tail(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        """See `EventLog.tail`."""
        return self._store.reads.tail(run_id, from_seq=from_seq)

    async def last_seq(self, run_id: RunId) -> int:
        """See `EventLog.last_seq`."""
        row = await self._store.reads.run(run_id)
        return -1 if row is None else row.last_seq


class InMemoryEventLog(EventLogView):
    """See `EventLog`. Nothing survives the process."""

    def __init__(self, *, clock: Clock) -> None:
        from actors.runtime.parts.private_store import PrivateStore  # noqa: PLC0415 - a store in memory

        store = PrivateStore(clock=clock)
        super().__init__(store, lease_of=store.lease_of)

    @override
    async def append(self, run_id: RunId, entry: NewEntry, *, expected_seq: int) -> int:
        """See `EventLog.append`. The first entry makes its run; a log has no end."""
        run = NewRun(run_id, AgentId("log", derive_id(run_id)))
        lease = self._lease(run_id, run.agent_id, attempt=1)
        commit = await self._write(lease, expected_seq, entry, then=CONTINUE, create=run)
        return commit.last_seq
