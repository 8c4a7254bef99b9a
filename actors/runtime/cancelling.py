"""Ends runs that were asked to stop and are not in memory."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from actors.kernel.runtime.commit import Commit, Committed
from actors.runtime.outcome import cancelled
from actors.runtime.shards import run_lease

if TYPE_CHECKING:
    from actors.kernel.runtime.commit import RunRow
    from actors.kernel.runtime.scheduler import ShardLease
    from actors.kernel.runtime.store import RunStore

_log = logging.getLogger(__name__)


async def end_cancelled(store: RunStore, lease: ShardLease, run: RunRow) -> bool:
    """Write the terminal entry of a run without its code; False when the run has changed meanwhile."""
    if run.status.is_terminal:
        return True
    verdict = cancelled(run.cancel_requested or "")
    outcome = await store.commit(
        Commit(
            run_lease(lease, run), run.last_seq, verdict.entries, verdict.then, attempt=run.attempt
        )
    )
    if not isinstance(outcome, Committed):
        _log.warning(
            "a cancel met a change of the run", extra={"run": run.run_id, "why": str(outcome)}
        )
    return isinstance(outcome, Committed)
