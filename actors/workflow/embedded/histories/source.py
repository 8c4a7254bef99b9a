"""The stores of a history. A part that cannot be read is left out and named in a warning."""

from __future__ import annotations

from typing import Any, Final

from actors.kernel.workflow.artifacts import (
    get_artifact_id,
    is_artifact_ref,
    plain_value,
    references,
)
from actors.kernel.workflow.run_state import RunState
from actors.kernel.workflow.stores import tree_of

MOST_PLAIN_BYTES: Final = 4 * 1024 * 1024


class HistorySource:
    """The stores of runs. Each ledger is read once.

    Args:
        run_store: The store of the runs.
        ledger_store: The store of their records.
        artifact_store: The store of their artifacts. None: only the artifacts' ids are known.

    Attributes:
        warnings: The parts that could not be read, as objects with ``code``, ``run_id`` and ``detail``.
    """

    def __init__(self, run_store: Any, ledger_store: Any, artifact_store: Any) -> None:
        self.runs, self.ledger, self.artifacts = run_store, ledger_store, artifact_store
        self.warnings: list[dict[str, Any]] = []
        self._records: dict[str, list[dict[str, Any]]] = {}

    def warn(self, code: str, run: RunState, detail: str, **more: Any) -> None:
        """Add a warning about a part that is missing in the history."""
        self.warnings.append({"code": code, "run_id": run.run_id, "detail": detail, **more})

    def tree(self, root: RunState) -> list[RunState]:
        """Return a run and the runs below it."""
        try:
            return tree_of(self.runs, root)
        except Exception as exc:  # noqa: BLE001 - the store failed, and the failure is reported as a warning
            self.warn("subtree_discovery_failed", root, f"{type(exc).__name__}: {exc}")
            return [root]

    def records(self, run: RunState) -> list[dict[str, Any]]:
        """Return the records of a run."""
        if run.run_id not in self._records:
            try:
                self._records[run.run_id] = self.ledger.list(run.run_id)
            except Exception as exc:  # noqa: BLE001 - the failure is reported as a warning
                self.warn("ledger_read_failed", run, f"{type(exc).__name__}: {exc}")
                self._records[run.run_id] = []
        return self._records[run.run_id]

    def artifacts_of(self, run: RunState) -> list[dict[str, Any]]:
        """Return descriptions of the artifacts of a run, the oldest first, and of those that it refers to."""
        store = self.artifacts
        own = (
            {} if store is None else {one.artifact_id: one for one in store.list_by_run(run.run_id)}
        )
        told = dict(reversed(own.items()))
        for name in references([run.vars, run.output]):
            told.setdefault(name, None if store is None else store.get_metadata(name))
        return [
            {"artifact_id": name, "missing": True} if one is None else one.to_dict()
            for name, one in told.items()
        ]

    def plain(self, run: RunState, value: Any) -> Any:
        """Return a value of a run. A reference to an artifact of the run is replaced by the artifact's content.

        A reference stays if the artifact has more than 4 MiB or belongs to another run.
        """
        if self.artifacts is None or not is_artifact_ref(value):
            return value
        about = self.artifacts.get_metadata(get_artifact_id(value))
        if about is None or about.run_id != run.run_id or about.size_bytes > MOST_PLAIN_BYTES:
            return value
        return plain_value(value, self.artifacts)
