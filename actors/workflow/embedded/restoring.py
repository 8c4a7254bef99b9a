"""Runs that begin with the state of another one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from actors.kernel.workflow.drawn import new_id, utc_now_iso
from actors.kernel.workflow.errors import GraphError, RunIdentityConflict, SpecChangedError
from actors.kernel.workflow.run_state import RunState
from actors.kernel.workflow.snapshots import Snapshot
from actors.workflow.machine.spec import WorkflowSpec
from actors.workflow.machine.starting import check_nodes, start_record
from actors.workflow.machine.variables import RECORDS, RUNTIME, with_path


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
    if snapshot.spec_hash is not None and snapshot.spec_hash != workflow.hash and not force:
        raise SpecChangedError(snapshot.snapshot_id, snapshot.spec_hash, workflow.hash)
    saved = RunState.from_dict(snapshot.run_state).copied()
    if saved.status.is_terminal:
        problem = f"its run was {saved.status.value}: there is nothing to go on with"
        raise GraphError(f"snapshot {snapshot.snapshot_id}", problem)
    check_nodes(f"snapshot {snapshot.snapshot_id}", workflow, saved)
    now = utc_now_iso()
    run = replace(
        saved,
        run_id=run_id or new_id(),
        workflow_id=workflow.workflow_id,
        vars=with_path(saved.vars, [RUNTIME, RECORDS], 0),
        parent_run_id=None,
        created_at=now,
        updated_at=now,
    )
    _, made = run_store.create_if_absent(run)
    if not made:
        raise RunIdentityConflict(run.run_id, "it is there already")
    ledger_store.append(start_record(run, restored_from=snapshot.snapshot_id))
    return run.run_id
