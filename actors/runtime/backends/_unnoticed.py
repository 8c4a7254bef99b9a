"""What the owner of runs in memory may not have heard of."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from actors.kernel.runtime.scheduler import RunStatus
from actors.kernel.runtime.store import Nudge

if TYPE_CHECKING:
    from datetime import datetime

    from actors.runtime.backends._records import RunRecord
    from actors.runtime.backends._rows import MemoryRows


def unnoticed(rows: MemoryRows, *, younger_than_s: float) -> list[Nudge]:
    """See `RunStore.unnoticed`. Answers are told whatever their age."""
    since = rows.clock.now() - timedelta(seconds=younger_than_s)
    return [nudge for run in rows.open_runs() if (nudge := _hint_of(run, since)) is not None]


def _hint_of(run: RunRecord, since: datetime) -> Nudge | None:
    cause = run.cause
    if run.cancel_requested is not None:
        return Nudge("cancel", cause.agent_id, cause.run_id)
    if run.status is RunStatus.PENDING and cause.parent is not None and not run.log:
        return Nudge("run", cause.agent_id, cause.run_id) if run.created_at > since else None
    keys = run.wake.runs if run.wake is not None and run.parked is None else ()
    if any(key in run.answers and not run.answers[key].is_taken for key in keys):
        return Nudge("signal", cause.agent_id, cause.run_id)
    return None
