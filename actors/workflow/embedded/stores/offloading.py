"""Stores over other stores, which keep large values as artifacts: checkpoints stay small."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from typing_extensions import override

from actors.kernel.json import canonical_json
from actors.kernel.workflow.artifacts import REF_KEY, artifact_ref, is_artifact_ref
from actors.kernel.workflow.branches import GraphFork
from actors.kernel.workflow.errors import LedgerBrokenError
from actors.kernel.workflow.ledger_store import LedgerStore
from actors.kernel.workflow.run_state import RunState
from actors.kernel.workflow.step_record import StepRecord
from actors.workflow.embedded.stores.ledgers import LedgerOver, append_all, append_linked
from actors.workflow.machine.variables import LIMITS, RUNTIME

MAX_INLINE_BYTES: Final = 64 * 1024
OFFLOADED: Final = "$offloaded"
"""In a reference that a ledger made: it is read back as the value."""
_IN_PATCH: Final = re.compile(r"\.patch\.set\[\d+\]\[1\]")
_KEPT: Final = frozenset({RUNTIME, LIMITS})


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
    """Return JSON data with references in the place of what is larger than `max_inline_bytes` as JSON text.

    The smallest large parts are replaced first; what holds them only if it is still too large.

    Args:
        value: JSON data; it stays as it is.
        artifact_store: Keeps what is replaced.
        run_id: The run that the artifacts belong to.
        max_inline_bytes: The limit.
        root_path: Begins the paths for `allow_offload`.
        allow_offload: Whether the value at a path may be replaced.
        allow_root_replace: Whether `value` itself may be.
    """

    def kept(part: Any, path: str, *, root: bool) -> Any:
        if not isinstance(part, str | dict | list) or is_artifact_ref(part):
            return part
        if _size(part) <= max_inline_bytes:
            return part
        if isinstance(part, dict):
            part = {name: kept(one, f"{path}.{name}", root=False) for name, one in part.items()}
        elif isinstance(part, list):
            part = [kept(one, f"{path}[{index}]", root=False) for index, one in enumerate(part)]
        may = (allow_root_replace or not root) and allow_offload(path, part)
        if not may or _size(part) <= max_inline_bytes:
            return part
        return artifact_ref(_stored(artifact_store, part, run_id))

    return kept(value, root_path, root=True)


class OffloadingRunStore:
    """A run store whose runs hold references in the place of large values; all else is the inner store's.

    Ids and names of a run, its limits and what the runtime keeps stay as they are. The artifacts belong to the
    run.

    Args:
        inner: Keeps the runs.
        artifact_store: Keeps the values.
        max_inline_bytes: The limit of a value, as JSON text.
    """

    def __init__(
        self, inner: Any, *, artifact_store: Any, max_inline_bytes: int = MAX_INLINE_BYTES
    ) -> None:
        self._inner, self._artifacts, self._limit = inner, artifact_store, max_inline_bytes
        for name in _verbs_of(inner):
            setattr(self, name, getattr(inner, name))

    def offloaded(self, run: RunState) -> RunState:
        """Return the run as `save` keeps it."""
        variables = {
            name: value if name in _KEPT else self._kept(run.run_id, f"vars.{name}", value)
            for name, value in run.vars.items()
        }
        output = self._kept(run.run_id, "output", run.output, root=False)
        return replace(run, vars=variables, output=output, fork=self._slim_fork(run))

    def _slim_fork(self, run: RunState) -> GraphFork | None:
        """Return the branches with references in the place of large values of their patches."""
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
        """See `RunStore.save`."""
        run.to_dict()  # refused before anything is kept
        self._inner.save(self.offloaded(run))

    def load(self, run_id: str) -> RunState | None:
        """See `RunStore.load`; references are not followed: see `resolve_artifact`."""
        found: RunState | None = self._inner.load(run_id)
        return found

    def create_if_absent(self, run: RunState) -> tuple[RunState, bool]:
        """See `CreatingRunStore.create_if_absent`."""
        made: tuple[RunState, bool] = self._inner.create_if_absent(self.offloaded(run))
        return made

    def _kept(self, run_id: str, path: str, value: Any, *, root: bool = True) -> Any:
        return offload_large_values(
            value,
            artifact_store=self._artifacts,
            run_id=run_id,
            max_inline_bytes=self._limit,
            root_path=path,
            allow_root_replace=root,
        )


class OffloadingLedgerStore(LedgerOver):
    """A ledger whose records hold references in the place of large values, and are read back whole.

    Args:
        inner: Keeps the records.
        artifact_store: Keeps the values.
        max_inline_bytes: The limit of a value, as JSON text.

    Raises:
        LedgerBrokenError: An artifact of a record that is read is missing.
    """

    def __init__(
        self, inner: LedgerStore, *, artifact_store: Any, max_inline_bytes: int = MAX_INLINE_BYTES
    ) -> None:
        super().__init__(inner)
        self._artifacts, self._limit = artifact_store, max_inline_bytes

    def append(self, record: StepRecord) -> None:
        """See `LedgerStore.append`."""
        self.inner.append(self._slim(record))

    def append_many(self, records: Sequence[StepRecord]) -> None:
        """See `PagedLedgerStore.append_many`."""
        append_all(self.inner, [self._slim(record) for record in records])

    def append_chained(self, record: StepRecord) -> None:
        """See `ChainableLedgerStore.append_chained`; the chain is that of `inner`, with references."""
        append_linked(self.inner, self._slim(record))

    @override
    def list(self, run_id: str) -> list[dict[str, Any]]:
        return [self._whole(one, run_id) for one in super().list(run_id)]

    @override
    def list_after(
        self, *, run_id: str, after: int, limit: int = 1000
    ) -> tuple[Sequence[Any], int]:
        page, behind = super().list_after(run_id=run_id, after=after, limit=limit)
        return [self._whole(one, run_id) for one in page], behind

    def _slim(self, record: StepRecord) -> StepRecord:
        whole = record.to_dict()
        parts = {
            name: self._part(record.run_id, whole[name]) for name in ("effect", "result", "delta")
        }
        return replace(record, **parts)

    def _part(self, run_id: str, value: Any) -> Any:
        if not isinstance(value, str | dict | list) or _size(value) <= self._limit:
            return value
        if isinstance(value, dict):
            value = {name: self._part(run_id, one) for name, one in value.items()}
        elif isinstance(value, list):
            value = [self._part(run_id, one) for one in value]
        if _size(value) <= self._limit:
            return value
        kept = "text" if isinstance(value, str) else "json"
        return artifact_ref(_stored(self._artifacts, value, run_id)) | {OFFLOADED: kept}

    def _whole(self, value: Any, run_id: str) -> Any:
        if isinstance(value, list):
            return [self._whole(one, run_id) for one in value]
        if not isinstance(value, dict):
            return value
        if OFFLOADED not in value:
            return {name: self._whole(one, run_id) for name, one in value.items()}
        found = self._artifacts.load(value[REF_KEY])
        if found is None:
            problem = f"artifact {value[REF_KEY]} of a record is missing"
            raise LedgerBrokenError(f"ledger of run {run_id}", problem)
        inside = found.as_text() if value[OFFLOADED] == "text" else found.as_json()
        return self._whole(inside, run_id)


def _stored(artifact_store: Any, part: Any, run_id: str | None) -> str:
    keep = artifact_store.store_text if isinstance(part, str) else artifact_store.store_json
    return str(keep(part, run_id=run_id).artifact_id)


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode())
    return len(canonical_json(value).encode())


def _verbs_of(inner: Any) -> list[str]:
    """Return the verbs of a store that pass it by."""
    names = (
        "delete",
        "lock",
        "grouped",
        "list_runs",
        "list_due_wait_until",
        "list_children",
        "list_run_index",
        "list_event_waiters",
    )
    return [name for name in names if hasattr(inner, name)]
