"""Summaries of a run for others: its progress, and its result."""

from __future__ import annotations

from typing import Final

from actors.errors import UnknownRunError
from actors.kernel.json import JsonValue
from actors.kernel.json_data import clean_text
from actors.kernel.runtime.communication import RunStatusSummary
from actors.kernel.runtime.ids import RunId
from actors.kernel.runtime.rows import RunRow
from actors.kernel.runtime.scheduler import RunStatus
from actors.kernel.runtime.sources import RunHandle, RunResult
from actors.kernel.runtime.waits import Answer, AnswerStatus
from actors.kernel.stores.run_store import RunStore
from actors.kernel.text import is_name

ANSWER_OF: Final[dict[RunStatus, AnswerStatus]] = {
    RunStatus.COMPLETED: "completed",
    RunStatus.FAILED: "failed",
    RunStatus.CANCELLED: "cancelled",
}
"""Statuses of the answer that the end of a run gives to waiting runs."""

_MILESTONES: Final = ("run.", "effect.", "tool.", "llm.", "child.", "ask.", "orphans.")
_LOOK_BACK: Final = 100


def known_id(run: RunHandle | RunId | str) -> RunId:
    """Return the id of a run that is named by its handle or its id.

    Raises:
        UnknownRunError: No run can have this id.
    """
    run_id = run.run_id if isinstance(run, RunHandle) else run
    if not is_name(run_id):
        raise UnknownRunError(clean_text(str(run_id), 60))
    return RunId(run_id)


async def row_of(store: RunStore, run_id: RunId) -> RunRow:
    """Return a run's row.

    Raises:
        UnknownRunError: There is no such run.
    """
    row = await store.reads.run(known_id(run_id))
    if row is None:
        raise UnknownRunError(run_id)
    return row


async def summary_of(store: RunStore, row: RunRow) -> RunStatusSummary:
    """Return how far the run is. Its last milestone is looked for among its last 100 entries."""
    milestone = None
    if row.last_seq >= 0:
        start = max(0, row.last_seq + 1 - _LOOK_BACK)
        async for entry in store.reads.entries(row.run_id, from_seq=start):
            if entry.seq <= row.last_seq and entry.kind.startswith(_MILESTONES):
                milestone = str(entry.kind)
    return RunStatusSummary(
        run_id=row.run_id,
        status=row.status,
        last_seq=row.last_seq,
        last_milestone=milestone,
        parked=row.parked,
        updated_at=row.updated_at,
    )


def answer_of_row(waiter: RunId, key: str, row: RunRow) -> Answer:
    """Return what the end of a run answers, read from the run itself."""
    return Answer(
        waiter,
        key,
        ANSWER_OF[row.status],
        result=row.result if row.status is RunStatus.COMPLETED else None,
        error=error_of_row(row),
        by=row.run_id,
        last_seq=row.last_seq,
    )


def error_of_row(row: RunRow) -> dict[str, JsonValue] | None:
    """Return why a run failed, or was cancelled."""
    if row.status is RunStatus.CANCELLED:
        return {"message": row.cancel_requested or ""}
    return row.error if row.status is RunStatus.FAILED else None


def result_of_row(row: RunRow) -> RunResult:
    """Return how a run ended that has ended."""
    return RunResult(
        run_id=row.run_id,
        status=row.status,
        output=row.result if row.status is RunStatus.COMPLETED else None,
        error=error_of_row(row),
    )
