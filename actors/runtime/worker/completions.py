"""The futures of callers in this process that wait for the end of a run."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from actors.kernel.json import fresh
from actors.kernel.runtime.ids import RunId
from actors.kernel.runtime.rows import RunRow


class Completions:
    """Futures by run. Their result is the run's row, or None when the row has to be read."""

    def __init__(self) -> None:
        self._waiters: dict[RunId, list[asyncio.Future[RunRow | None]]] = {}

    def future_of(self, run_id: RunId) -> asyncio.Future[RunRow | None]:
        """Return a future that is done when the run has ended here, or has left this worker."""
        waiter: asyncio.Future[RunRow | None] = asyncio.get_running_loop().create_future()
        self._waiters.setdefault(run_id, []).append(waiter)
        waiter.add_done_callback(lambda done: self._forget(run_id, done))
        return waiter

    def is_awaited(self, run_id: RunId) -> bool:
        """Return True if a caller in this process waits for the end of the run."""
        return run_id in self._waiters

    def complete(self, run_id: RunId, row: RunRow | None) -> None:
        """Complete the run's futures: it has ended, or another host has it now. Each has a row of its own."""
        for waiter in self._waiters.pop(run_id, ()):
            if not waiter.done():
                waiter.set_result(row)
                row = None if row is None else replace(row, result=fresh(row.result))

    def release_all(self) -> None:
        """Complete all futures with None, so that each caller reads its run's row and waits there."""
        for run_id in list(self._waiters):
            self.complete(run_id, None)

    def _forget(self, run_id: RunId, waiter: asyncio.Future[RunRow | None]) -> None:
        waiters = self._waiters.get(run_id, [])
        if waiter in waiters:
            waiters.remove(waiter)
            if not waiters:
                del self._waiters[run_id]
