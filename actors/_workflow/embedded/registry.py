"""Work on runs beside their execution: graphs by name, restored snapshots, deletion, identities of actors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from actors._kernel.workflow.artifacts import CollectableArtifactStore
from actors._kernel.workflow.durable import durable_copy, json_digest, new_id, utc_now_iso
from actors._kernel.workflow.errors import GraphError, RunIdentityConflict
from actors._kernel.workflow.run_state import Snapshot
from actors._kernel.workflow.stores import tree_of
from actors._workflow.embedded.stores.ledgers import delete_records
from actors._workflow.machine.spec import WorkflowSpec
from actors._workflow.machine.starting import restored_run, start_record


class WorkflowRegistry:
    """The graphs that this process knows."""

    def __init__(self) -> None:
        self._specs: dict[str, WorkflowSpec] = {}

    def __contains__(self, workflow_id: object) -> bool:
        return workflow_id in self._specs

    def __len__(self) -> int:
        return len(self._specs)

    def register(self, workflow: WorkflowSpec) -> None:
        """Add a graph.

        Raises:
            ValueError: A graph of this name is registered.
        """
        if workflow.workflow_id in self._specs:
            msg = f"graph {workflow.workflow_id!r} is already registered. Unregister it first"
            raise ValueError(msg)
        self._specs[workflow.workflow_id] = workflow

    def unregister(self, workflow_id: str) -> None:
        """Remove a graph.

        Raises:
            KeyError: No graph of this name is registered.
        """
        if self._specs.pop(workflow_id, None) is None:
            raise KeyError(f"graph {workflow_id!r} is not registered")

    def get(self, workflow_id: str) -> WorkflowSpec | None:
        """Return a graph, or None if no graph of this name is registered."""
        return self._specs.get(workflow_id)

    def get_or_raise(self, workflow_id: str) -> WorkflowSpec:
        """Return a graph.

        Raises:
            KeyError: No graph of this name is registered.
        """
        if workflow_id not in self._specs:
            raise KeyError(f"graph {workflow_id!r} is not registered")
        return self._specs[workflow_id]

    def list_ids(self) -> list[str]:
        """Return the names, in the order of registration."""
        return [*self._specs]


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
    _, is_new = run_store.create_if_absent(run)
    if not is_new:
        raise RunIdentityConflict(run.run_id, "it is there already")
    ledger_store.append(start_record(run, restored_from=snapshot.snapshot_id))
    return run.run_id


def delete_tree(
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


@dataclass(frozen=True, slots=True)
class ActorFingerprint:
    """An identity.

    Attributes:
        actor_id: The id, derived from the other attributes: ``ar_`` and 24 hexadecimal digits.
        kind: For example ``agent`` or ``human``.
        display_name: A name for people to read.
        metadata: Further facts, as JSON data.
    """

    actor_id: str
    kind: str
    display_name: str
    metadata: dict[str, Any]

    @classmethod
    def from_metadata(
        cls, *, kind: str, display_name: str = "", **metadata: Any
    ) -> ActorFingerprint:
        """Return the identity of these facts. Equal facts have the same `actor_id`."""
        clean_metadata = durable_copy(metadata, "metadata")
        digest = json_digest([kind, display_name, clean_metadata])
        return cls(f"ar_{digest[:24]}", kind, display_name, clean_metadata)
