"""Flows in one process: installed bundles, and snapshots of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial

from typing_extensions import override

from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.stores.artifacts import ArtifactStore, ArtifactStores
from actors._kernel.stores.flows import (
    FLOWS_SCOPE,
    FlowBundleRow,
    FlowBundleStore,
    NewFlowBundle,
    NewRunSnapshot,
    RunSnapshot,
    RunSnapshotStore,
    SnapshotFilter,
)


class InMemoryFlowBundles(FlowBundleStore):
    """A `FlowBundleStore` whose rows are lost with its process.

    Args:
        now: The clock for the instants of installations.
        artifacts: The stores of the files.
        open_runs: Function that returns the number of open runs of agents whose address begins with one of the
            given texts.
    """

    def __init__(
        self,
        now: Callable[[], datetime],
        artifacts: ArtifactStores,
        open_runs: Callable[[Sequence[str]], int],
    ) -> None:
        self._now, self._artifacts, self._open_runs = now, artifacts, open_runs
        self._rows: dict[tuple[str, str, str], FlowBundleRow] = {}

    @override
    async def put(self, tenant: str, new: NewFlowBundle) -> FlowBundleRow | None:
        key, files = (tenant, new.bundle, new.version), self._files(tenant)
        ref = await files.stat(new.artifact)
        if ref is None:
            return None
        if key not in self._rows:
            self._rows[key] = FlowBundleRow(**asdict(new), installed_at=self._now())
            await files.pin(ref, owner=new.ref)
        return self._rows[key]

    @override
    async def get(self, tenant: str, bundle: str, version: str) -> FlowBundleRow | None:
        return self._rows.get((tenant, bundle, version))

    @override
    async def list(self, tenant: str, bundle: str | None = None) -> list[FlowBundleRow]:
        rows = [row for (owner, _, _), row in self._rows.items() if owner == tenant]
        return [row for row in rows if bundle in (None, row.bundle)]

    @override
    async def remove(
        self, tenant: str, bundle: str, version: str, *, run_keys: Sequence[str]
    ) -> int | None:
        row = self._rows.get((tenant, bundle, version))
        if row is None:
            return None
        open_count = self._open_runs(run_keys)
        if not open_count:
            del self._rows[tenant, bundle, version]
            files = self._files(tenant)
            ref = await files.stat(row.artifact)
            if ref is not None:
                await files.unpin(ref, owner=row.ref)
        return open_count

    def removals(self, tenant: str) -> Iterator[Callable[[], object]]:
        """Yield for each bundle of a tenant a function that removes it."""
        for key in self._rows:
            if key[0] == tenant:
                yield partial(self._rows.pop, key, None)

    def _files(self, tenant: str) -> ArtifactStore:
        return self._artifacts.of(tenant, FLOWS_SCOPE)


class InMemoryRunSnapshots(RunSnapshotStore):
    """A `RunSnapshotStore` whose rows are lost with its process.

    Args:
        now: The clock for the snapshots' instants.
        is_there: Function that returns True if a run exists.
    """

    def __init__(self, now: Callable[[], datetime], run_exists: Callable[[RunId], bool]) -> None:
        self._now, self._run_exists = now, run_exists
        self._rows: dict[tuple[str, str], tuple[RunSnapshot, str]] = {}

    @override
    async def put(self, new: NewRunSnapshot, state: str) -> RunSnapshot | None:
        if not self._run_exists(new.run_id):
            return None
        facts = asdict(new) | {"agent_id": new.agent_id}
        row = RunSnapshot(**facts, created_at=self._now())
        self._rows[new.agent_id.tenant, new.id] = row, state
        return row

    @override
    async def get(self, tenant: str, id: str) -> tuple[RunSnapshot, str] | None:
        return self._rows.get((tenant, id))

    @override
    async def list(
        self, tenant: str, among: SnapshotFilter, *, limit: int = 100
    ) -> list[RunSnapshot]:
        rows = (row for (owner, _), (row, _) in self._rows.items() if owner == tenant)
        return _filter_rows(rows, among)[:limit]

    @override
    async def remove(self, tenant: str, id: str) -> bool:
        return self._rows.pop((tenant, id), None) is not None

    def removals(self, covers: Callable[[AgentId], bool]) -> Iterator[Callable[[], object]]:
        """Yield for each snapshot of the covered agents a function that removes it."""
        for key, (row, _) in self._rows.items():
            if covers(row.agent_id):
                yield partial(self._rows.pop, key, None)


def _filter_rows(rows: Iterable[RunSnapshot], among: SnapshotFilter) -> list[RunSnapshot]:
    """Return the rows among these that `RunSnapshotStore.list` returns for a filter."""
    word = (among.query or "").casefold()
    matches = [
        row
        for row in rows
        if (among.apps is None or row.agent_id.type in among.apps)
        and among.run in {None, row.run_id}
        and (among.tag is None or among.tag in row.tags)
        and word in row.folded
        and (among.after is None or _sort_key(row) < _sort_key(among.after))
    ]
    return sorted(matches, key=_sort_key, reverse=True)


def _sort_key(row: RunSnapshot) -> tuple[datetime, str]:
    return row.created_at, row.id
