"""Runs that begin with the state of another one."""

from __future__ import annotations

from typing import Any

from actors.kernel.workflow.drawn import new_id, utc_now_iso
from actors.kernel.workflow.errors import RunIdentityConflict
from actors.kernel.workflow.snapshots import Snapshot
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
    """Make a run that begins with the state of a snapshot, with its open wait; return its id.

    The run of the snapshot stays as it is. The new one has a ledger of its own, whose first record says where
    it comes from.

    Raises:
        SpecChangedError: The graph is another one than that of the snapshot, and not `force`.
        GraphError: The run had ended, or the graph has not the node that is next.
        RunIdentityConflict: There is a run of this `run_id`.
    """
    run = restored_run(snapshot, workflow, run_id=run_id or new_id(), at=utc_now_iso(), force=force)
    _, made = run_store.create_if_absent(run)
    if not made:
        raise RunIdentityConflict(run.run_id, "it is there already")
    ledger_store.append(start_record(run, restored_from=snapshot.snapshot_id))
    return run.run_id
