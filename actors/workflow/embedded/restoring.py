"""Runs that begin with the state of another run."""

from __future__ import annotations

from typing import Any

from actors.kernel.workflow.durable import new_id, utc_now_iso
from actors.kernel.workflow.errors import RunIdentityConflict
from actors.kernel.workflow.run_state import Snapshot
from actors.workflow.machine.spec import WorkflowSpec
from actors.workflow.machine.starting import restored_run, start_record


def restore_snapshot(
    snapshot: Snapshot,
    workflow: WorkflowSpec,
    *,
    run_store: Any,
    ledger_store: Any,
    run_id: str | None = None,
    force: bool = False,
) -> str:
    """Create a run that begins with the state of a snapshot and its open wait; return the run's id.

    The run of the snapshot stays as it is. The new run has a ledger of its own, whose first record names the
    snapshot.

    Raises:
        SpecChangedError: The graph is not the snapshot's graph, and `force` is false.
        GraphError: The run of the snapshot had ended, or the graph does not have the run's next node.
        RunIdentityConflict: A run with this `run_id` exists.
    """
    run = restored_run(snapshot, workflow, run_id=run_id or new_id(), at=utc_now_iso(), force=force)
    _, made = run_store.create_if_absent(run)
    if not made:
        raise RunIdentityConflict(run.run_id, "it is there already")
    ledger_store.append(start_record(run, restored_from=snapshot.snapshot_id))
    return run.run_id
