"""Stores that wrap other stores and keep large values as artifacts, so that checkpoints stay small."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from typing_extensions import override

from actors._kernel.json import canonical_json
from actors._kernel.workflow.artifacts import REF_KEY, artifact_ref, is_artifact_ref
from actors._kernel.workflow.errors import LedgerBrokenError
from actors._kernel.workflow.run_state import GraphFork, RunState
from actors._kernel.workflow.step_record import StepRecord
from actors._kernel.workflow.stores import LedgerStore
from actors._workflow.embedded.stores.ledgers import (
    LedgerOver,
    append_all,
    append_linked,
    append_unsynced,
)
from actors._workflow.machine.variables import LIMITS, RUNTIME

MAX_INLINE_BYTES: Final = 64 * 1024
OFFLOADED: Final = "$offloaded"
"""Name in a reference that a ledger made. Such a reference is read back as the value."""
_IN_PATCH: Final = re.compile(r"\.patch\.set\[\d+\]\[1\]")
_INLINE_NAMES: Final = frozenset({RUNTIME, LIMITS})


def offload_large_values(
    value: Any,
    *,
    artifact_store: Any,
    run_id: str | None,
    max_inline_bytes: int = MAX_INLINE_BYTES,
    root_path: str = "",
    allow_offload: Callable[[str, Any], bool] = lambda _path, _value: True,
    allow_root_replace: bool = False,
) -> Any:
    """Return JSON data in which values of more than `max_inline_bytes` are references to artifacts.

    Sizes are those of the values as JSON text. The innermost large values are replaced first. The values around
    them are replaced only if they are still too large.

    Args:
        value: JSON data. It is not changed.
        artifact_store: The store of the replaced values.
        run_id: The run that the artifacts belong to.
        max_inline_bytes: The largest size of a value that is not replaced.
        root_path: The prefix of the paths that `allow_offload` gets.
        allow_offload: Function that returns True if the value at a path may be replaced.
        allow_root_replace: True if `value` itself may be replaced.
    """

    def offload(part: Any, path: str, *, root: bool) -> Any:
        if not isinstance(part, str | dict | list) or is_artifact_ref(part):
            return part
        if _size(part) <= max_inline_bytes:
            return part
        if isinstance(part, dict):
            part = {
                name: offload(item, f"{path}.{name}", root=False) for name, item in part.items()
            }
        elif isinstance(part, list):
            part = [
                offload(item, f"{path}[{index}]", root=False) for index, item in enumerate(part)
            ]
        may_offload = (allow_root_replace or not root) and allow_offload(path, part)
        if not may_offload or _size(part) <= max_inline_bytes:
            return part
        return artifact_ref(_store(artifact_store, part, run_id))

    return offload(value, root_path, root=True)


class OffloadingRunStore:
    """A run store that keeps large values of runs as artifacts. All else is done by the wrapped store.

    Ids and names of a run, its limits and the runtime's own vars stay as they are. The artifacts belong to the
    run.

    Args:
        inner: The store of the runs.
        artifact_store: The store of the large values.
        max_inline_bytes: The limit of a value, as JSON text.
    """

    def __init__(
        self, inner: Any, *, artifact_store: Any, max_inline_bytes: int = MAX_INLINE_BYTES
    ) -> None:
        self._inner, self._artifacts, self._limit = inner, artifact_store, max_inline_bytes
        for name in _verbs_of(inner):
            setattr(self, name, getattr(inner, name))

    def offloaded(self, run: RunState) -> RunState:
        """Return the run in the form that `save` stores."""
        variables = {
            name: value
            if name in _INLINE_NAMES
            else self._offload(run.run_id, f"vars.{name}", value)
            for name, value in run.vars.items()
        }
        output = self._offload(run.run_id, "output", run.output, root=False)
        return replace(run, vars=variables, output=output, fork=self._slim_fork(run))

    def _slim_fork(self, run: RunState) -> GraphFork | None:
        """Return the branches with references in place of the large values of their patches."""
        if run.fork is None:
            return None
        slim = offload_large_values(
            run.fork.to_dict(),
            artifact_store=self._artifacts,
            run_id=run.run_id,
            max_inline_bytes=self._limit,
            allow_offload=lambda path, _value: _IN_PATCH.search(path) is not None,
        )
        return GraphFork.from_dict(slim)

    def save(self, run: RunState) -> None:
        """Store the large values as artifacts, then save the run with references to them."""
        run.to_dict()  # a run that is not JSON data is refused before any artifact is stored
        self._inner.save(self.offloaded(run))

    def load(self, run_id: str) -> RunState | None:
        """Return the last checkpoint with its references, which `resolve_artifact` resolves, or None."""
        run: RunState | None = self._inner.load(run_id)
        return run

    def create_if_absent(self, run: RunState) -> tuple[RunState, bool]:
        """Return the run of this id with its references, and True if this call made it."""
        run_and_is_new: tuple[RunState, bool] = self._inner.create_if_absent(self.offloaded(run))
        return run_and_is_new

    def _offload(self, run_id: str, path: str, value: Any, *, root: bool = True) -> Any:
        return offload_large_values(
            value,
            artifact_store=self._artifacts,
            run_id=run_id,
            max_inline_bytes=self._limit,
            root_path=path,
            allow_root_replace=root,
        )


class OffloadingLedgerStore(LedgerOver):
    """A ledger that keeps large values of records as artifacts. Records are read back whole.

    Args:
        inner: The store of the records.
        artifact_store: The store of the large values.
        max_inline_bytes: The limit of a value, as JSON text.

    Raises:
        LedgerBrokenError: The artifact of a value is missing when its record is read.
    """

    def __init__(
        self, inner: LedgerStore, *, artifact_store: Any, max_inline_bytes: int = MAX_INLINE_BYTES
    ) -> None:
        super().__init__(inner)
        self._artifacts, self._limit = artifact_store, max_inline_bytes

    def append(self, record: StepRecord) -> None:
        """Store the large values as artifacts, then append the record with references to them."""
        self.inner.append(self._slim(record))

    def append_many(self, records: Sequence[StepRecord]) -> None:
        """Append records of one run in order, as `append` does."""
        append_all(self.inner, [self._slim(record) for record in records])

    def append_unsynced(self, records: Sequence[StepRecord]) -> None:
        """Append records of one run in order without a sync. Their artifacts are synced."""
        append_unsynced(self.inner, [self._slim(record) for record in records])

    def append_chained(self, record: StepRecord) -> None:
        """Append a record, linked to the last one of its run by its hash.

        The chain is made of the records of `inner`, with references.
        """
        append_linked(self.inner, self._slim(record))

    @override
    def list(self, run_id: str) -> list[dict[str, Any]]:
        return [self._whole(record, run_id) for record in super().list(run_id)]

    @override
    def list_after(
        self, *, run_id: str, after: int, limit: int = 1000
    ) -> tuple[Sequence[Any], int]:
        page, next_after = super().list_after(run_id=run_id, after=after, limit=limit)
        return [self._whole(record, run_id) for record in page], next_after

    def _slim(self, record: StepRecord) -> StepRecord:
        data = record.to_dict()
        parts = {
            name: self._part(record.run_id, data[name]) for name in ("effect", "result", "delta")
        }
        return replace(record, **parts)

    def _part(self, run_id: str, value: Any) -> Any:
        if not isinstance(value, str | dict | list) or _size(value) <= self._limit:
            return value
        if isinstance(value, dict):
            value = {name: self._part(run_id, item) for name, item in value.items()}
        elif isinstance(value, list):
            value = [self._part(run_id, item) for item in value]
        if _size(value) <= self._limit:
            return value
        form = "text" if isinstance(value, str) else "json"
        return artifact_ref(_store(self._artifacts, value, run_id)) | {OFFLOADED: form}

    def _whole(self, value: Any, run_id: str) -> Any:
        if isinstance(value, list):
            return [self._whole(item, run_id) for item in value]
        if not isinstance(value, dict):
            return value
        if OFFLOADED not in value:
            return {name: self._whole(item, run_id) for name, item in value.items()}
        artifact = self._artifacts.load(value[REF_KEY])
        if artifact is None:
            problem = f"artifact {value[REF_KEY]} of a record is missing"
            raise LedgerBrokenError(f"ledger of run {run_id}", problem)
        content = artifact.as_text() if value[OFFLOADED] == "text" else artifact.as_json()
        return self._whole(content, run_id)


def _store(artifact_store: Any, part: Any, run_id: str | None) -> str:
    store_value = artifact_store.store_text if isinstance(part, str) else artifact_store.store_json
    return str(store_value(part, run_id=run_id).artifact_id)


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode())
    return len(canonical_json(value).encode())


def _verbs_of(inner: Any) -> list[str]:
    """Return the names of the store's methods that are used without a change."""
    names = (
        "delete",
        "lock",
        "grouped",
        "list_runs",
        "list_due_wait_until",
        "list_page",
        "list_children",
        "list_run_index",
        "list_event_waiters",
    )
    return [name for name in names if hasattr(inner, name)]
