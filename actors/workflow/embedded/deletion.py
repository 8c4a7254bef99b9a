"""The deletion of runs."""

from __future__ import annotations

from typing import Any

from actors.kernel.workflow.artifacts import CollectableArtifactStore
from actors.kernel.workflow.errors import GraphError
from actors.kernel.workflow.stores import tree_of
from actors.workflow.embedded.stores.ledgers import delete_records


def deleted_tree(
    runs: Any, ledger: Any, artifacts: Any, run_id: str, *, commands: Any = None
) -> int:
    """Delete a run and the runs below it, the lowest first, with their commands; return the number of runs.

    The run itself is deleted last. If the process dies before that, the deletion can be repeated.

    Raises:
        GraphError: A run of the tree has not ended. Nothing is deleted.
    """
    root = runs.load(run_id)
    tree = [] if root is None else tree_of(runs, root)
    for run in tree:
        if not run.status.is_terminal:
            raise GraphError(f"run {run.run_id}", f"it is {run.status.value}: cancel it first")
    for run in reversed(tree):
        delete_records(ledger, run.run_id)
        if artifacts is not None:
            artifacts.delete_by_run(run.run_id)
        if commands is not None:
            commands.delete(run.run_id)
        if run is root and isinstance(artifacts, CollectableArtifactStore):
            artifacts.gc(dry_run=False)
        runs.delete(run.run_id)
    return len(tree)
