"""Graphs by name, for callers that have only a run."""

from __future__ import annotations

from actors.workflow.machine.spec import WorkflowSpec


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
        """Return a graph. None: no graph of this name is registered."""
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
