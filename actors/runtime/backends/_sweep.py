"""Taking away what ended runs leave behind in the in-memory store."""

from __future__ import annotations

from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING

from actors.kernel.agent.supervision import HistoryRetention

if TYPE_CHECKING:
    from datetime import datetime

    from actors.runtime.backends._records import RunRecord
    from actors.runtime.backends._rows import MemoryRows


def sweep_runs(rows: MemoryRows, *, older_than_s: float, limit: int) -> int:
    """See `RunStore.sweep`. Ids of messages stay: they are all that is left of those."""
    before = rows.clock.now() - timedelta(seconds=older_than_s)
    old = (run for run in rows.runs.values() if _may_go(run, before))
    swept = list(islice(old, limit))
    for run in swept:
        run.sweep()
    for root in {run.cause.root or run.cause.run_id for run in swept} & rows.accounts.keys():
        if not any(run.cause.root == root for run in rows.open_runs()):
            del rows.accounts[root]
    return len(swept)


def _may_go(run: RunRecord, before: datetime) -> bool:
    if run.swept or not run.status.is_terminal:
        return False
    terms = run.cause.supervision
    is_traceless = terms is not None and terms.retention is HistoryRetention.NONE
    return is_traceless or run.updated_at < before
