"""Installed bundles of flows in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial

from typing_extensions import override

from actors.kernel.stores.artifacts import ArtifactStore, ArtifactStores
from actors.kernel.stores.flows import FLOWS_SCOPE, FlowBundleRow, FlowBundleStore, NewFlowBundle


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
        place, files = (tenant, new.bundle, new.version), self._files(tenant)
        ref = await files.stat(new.artifact)
        if ref is None:
            return None
        if place not in self._rows:
            self._rows[place] = FlowBundleRow(**asdict(new), installed_at=self._now())
            await files.pin(ref, owner=new.ref)
        return self._rows[place]

    @override
    async def get(self, tenant: str, bundle: str, version: str) -> FlowBundleRow | None:
        return self._rows.get((tenant, bundle, version))

    @override
    async def list(self, tenant: str, bundle: str | None = None) -> list[FlowBundleRow]:
        found = [row for (owner, _, _), row in self._rows.items() if owner == tenant]
        return [row for row in found if bundle in (None, row.bundle)]

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
        for place in self._rows:
            if place[0] == tenant:
                yield partial(self._rows.pop, place, None)

    def _files(self, tenant: str) -> ArtifactStore:
        return self._artifacts.of(tenant, FLOWS_SCOPE)
