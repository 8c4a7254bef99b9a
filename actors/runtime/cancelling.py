"""Ends runs that were asked to stop and are not in memory."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from actors.kernel.agent.supervision import HistoryRetention
from actors.kernel.runtime.commit import Commit, Committed, Finish
from actors.runtime.history import History
from actors.runtime.outcome import cancelled, with_orphans
from actors.runtime.shards import run_lease

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from actors.kernel.runtime.commit import LoadedRun
    from actors.kernel.runtime.scheduler import ShardLease
    from actors.kernel.runtime.store import Nudge, RunStore

_log = logging.getLogger(__name__)


async def end_cancelled(
    store: RunStore,
    lease: ShardLease,
    found: LoadedRun,
    *,
    on_nudges: Callable[[Sequence[Nudge]], None],
    on_end: Callable[[LoadedRun, Finish], None],
) -> bool:
    """Write the terminal entry of a run without its code; False when the run has changed meanwhile."""
    run = found.row
    if run.status.is_terminal:
        return True
    policy = run.supervision.retention if run.supervision is not None else HistoryRetention.RUN
    left_behind = History.of(found.entries).left_behind
    verdict = with_orphans(cancelled(run.cancel_requested or ""), policy, left_behind)
    outcome = await store.commit(
        Commit(
            run_lease(lease, run), run.last_seq, verdict.entries, verdict.then,
            attempt=run.attempt, orphans=policy,
        )
    )  # fmt: skip
    if not isinstance(outcome, Committed):
        # It has ended, or goes on, or is somebody else's now: who changed it sees its cancel flag.
        _log.debug(
            "a cancel met a change of the run", extra={"run": run.run_id, "why": str(outcome)}
        )
    else:
        on_nudges(outcome.nudges)
        assert isinstance(verdict.then, Finish)
        on_end(found, verdict.then)
    return isinstance(outcome, Committed)
