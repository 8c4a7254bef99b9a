"""Registries of bundles with coroutines: the rows of a tenant, for all hosts of a deployment, or a folder."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol

from typing_extensions import override

from actors._kernel.runtime.ids import AgentId
from actors._kernel.stores.artifacts import ArtifactStores
from actors._kernel.stores.flows import FLOWS_SCOPE, FlowBundleRow, FlowBundleStore, NewFlowBundle
from actors._workflow.bundles.bundle import WorkflowBundle, input_schema, open_workflow_bundle
from actors._workflow.bundles.manifest import WorkflowBundleManifest
from actors._workflow.bundles.packing import unpacked
from actors._workflow.bundles.registry import (
    WorkflowBundleRegistry,
    WorkflowBundleRegistryError,
    order_of,
)
from actors._workflow.machine.spec import WorkflowSpec

_log = logging.getLogger("callboard.workflow")
INSTALLED_APP: Final = "installed"
"""The type of the agents whose runs are runs of installed flows."""
BUNDLE_TYPE: Final = "application/zip"


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleRecord:
    """An installed bundle.

    Attributes:
        manifest: The bundle's manifest.
        hash: The hash of the bundle's content, see `WorkflowBundle.hash`.
        size_bytes: Size of the bundle's file.
        place: The path of the file in a folder, or the id of the artifact.
        installed_by: The principal that installed the bundle; empty if it is not known.
        installed_at: The instant of the installation, or None if it is not known.
    """

    manifest: WorkflowBundleManifest
    hash: str
    size_bytes: int
    place: str
    installed_by: str = ""
    installed_at: datetime | None = None


class BundleRegistry(Protocol):
    """Installed bundles by ``id@version``. ``id`` alone means the newest version.

    If the process dies in an installation, the bundle is installed whole or not at all.
    """

    async def install(self, data: bytes, *, by: str = "") -> tuple[BundleRecord, bool]:
        """Install a bundle from its bytes; return it, and True if it is new.

        A bundle that is installed with the same content stays as it is.

        Raises:
            WorkflowBundleError: The data is not a bundle, or it is not safe to read.
            FlowError: Flows have mistakes; the error has all of them.
            WorkflowBundleRegistryError: Other content is installed under this id and version.
        """

    async def list(self) -> list[BundleRecord]:
        """Return all bundles by name, the newest version first."""

    async def find(self, ref: str) -> BundleRecord | None:
        """Return a bundle, or None if it is not installed."""

    async def open(self, ref: str) -> WorkflowBundle:
        """Return a bundle with its files.

        Raises:
            WorkflowBundleRegistryError: It is not installed.
        """

    async def remove(self, ref: str) -> int:
        """Remove a bundle, or all versions of ``id``; return the number of bundles removed.

        Raises:
            WorkflowBundleRegistryError: A run of the bundle is open (only in registries that know runs).
                Versions that were removed before the error stay removed.
        """


class FolderBundles(BundleRegistry):
    """A folder of bundles, see `WorkflowBundleRegistry`. It does not know runs.

    Args:
        registry: The folder.
    """

    def __init__(self, registry: WorkflowBundleRegistry) -> None:
        self._registry = registry

    @override
    async def install(self, data: bytes, *, by: str = "") -> tuple[BundleRecord, bool]:
        bundle = await unpacked(open_workflow_bundle, data)
        was_installed = await self.find(bundle.manifest.ref) is not None
        installed_bundle = await unpacked(self._registry.install_bytes, data)
        return self._record(installed_bundle.path), not was_installed

    @override
    async def list(self) -> list[BundleRecord]:
        return [self._record(bundle.path) for bundle in self._registry.list_bundles()]

    @override
    async def find(self, ref: str) -> BundleRecord | None:
        try:
            return self._record(self._registry.resolve_bundle(ref).path)
        except WorkflowBundleRegistryError:
            return None

    @override
    async def open(self, ref: str) -> WorkflowBundle:
        return self._registry.open(ref)

    @override
    async def remove(self, ref: str) -> int:
        return self._registry.remove(ref)

    @staticmethod
    def _record(path: Path) -> BundleRecord:
        bundle = open_workflow_bundle(path)
        size = path.stat().st_size
        return BundleRecord(
            manifest=bundle.manifest, hash=bundle.hash, size_bytes=size, place=str(path)
        )


class StoredBundles(BundleRegistry):
    """The bundles of a tenant as rows, with their files as artifacts. All hosts see the same bundles.

    If a process dies in an installation, the whole bundle is installed, or an unpinned artifact stays, which
    the garbage collection removes.

    Args:
        rows: The store of the rows.
        artifacts: The stores of the files.
        tenant: The owner.
    """

    def __init__(self, rows: FlowBundleStore, artifacts: ArtifactStores, tenant: str) -> None:
        self._rows, self._tenant = rows, tenant
        self._files = artifacts.of(tenant, FLOWS_SCOPE)

    @override
    async def install(
        self, data: bytes, *, by: str = "", dry_run: bool = False
    ) -> tuple[BundleRecord, bool]:
        """Install a bundle. See `BundleRegistry.install`.

        With `dry_run` nothing is installed. The record of a bundle that is not installed has the empty place.
        """
        bundle = await unpacked(_open_checked, data)
        manifest, hash_ = bundle.manifest, bundle.hash
        key = (self._tenant, manifest.bundle_id, manifest.bundle_version)
        existing = await self._rows.get(*key)
        row = existing
        if row is None and dry_run:
            size = len(data)
            new_record = BundleRecord(manifest=manifest, hash=hash_, size_bytes=size, place="")
            return new_record, True
        if row is None:
            # The file first: a row without its file could not be opened, a file without a row is collected.
            ref = await self._files.store(data, content_type=BUNDLE_TYPE)
            new_bundle = NewFlowBundle(
                bundle=manifest.bundle_id,
                version=manifest.bundle_version,
                hash=hash_,
                artifact=ref.id,
                size_bytes=len(data),
                manifest=manifest.model_dump_json(),
                installed_by=by,
            )
            row = await self._rows.put(self._tenant, new_bundle)
        if row is None:
            problem = "it was removed during its installation"
            raise WorkflowBundleRegistryError(manifest.ref, problem, "Install it again")
        if row.hash != hash_:
            problem = "other content is installed by this id and version"
            raise WorkflowBundleRegistryError(manifest.ref, problem, "Give it another version")
        return _record(row), existing is None

    @override
    async def list(self) -> list[BundleRecord]:
        rows = _newest_first(await self._rows.list(self._tenant))
        return [record for row in rows if (record := _readable_record(row)) is not None]

    @override
    async def find(self, ref: str) -> BundleRecord | None:
        bundle, separator, version = ref.partition("@")
        if separator:
            row = await self._rows.get(self._tenant, bundle, version)
            return None if row is None else _record(row)
        rows = _newest_first(await self._rows.list(self._tenant, bundle))
        return _record(rows[0]) if rows else None

    async def find_flow(self, name: str) -> tuple[BundleRecord, str] | None:
        """Return the bundle and the id of a flow, by the bundle's name or by ``id@version.flow``.

        The bundle's name means its default entry point. Returns None if no such flow is installed.
        """
        record = await self.find(name)
        if record is not None:
            return record, record.manifest.entry.flow_id
        for row in _newest_first(await self._rows.list(self._tenant, name.partition("@")[0])):
            record = _record(row)
            for flow_id, graph in record.manifest.graph_names.items():
                if graph == name:
                    return record, flow_id
        return None

    @override
    async def open(self, ref: str) -> WorkflowBundle:
        record = await self.find(ref)
        if record is None:
            remedy = "`callboard flows list` shows installed flows"
            raise WorkflowBundleRegistryError(ref, "it is not installed", remedy)
        return await self.load(record)

    async def load(self, record: BundleRecord) -> WorkflowBundle:
        """Return a bundle, found before, with its files.

        Raises:
            WorkflowBundleRegistryError: The bundle was removed after it was found.
        """
        return await unpacked(open_workflow_bundle, await self.read(record))

    async def read(self, record: BundleRecord) -> bytes:
        """Return the file of a bundle that was found before. See `load`."""
        try:
            return await self._files.read(record.place, limit=record.size_bytes)
        except KeyError:
            problem, remedy = "it was removed after it was found", "Install it again"
            raise WorkflowBundleRegistryError(record.manifest.ref, problem, remedy) from None

    async def versions(self, ref: str) -> Sequence[BundleRecord]:
        """Return a bundle, or all versions of ``id``, the newest first; empty if it is not installed."""
        bundle, separator, version = ref.partition("@")
        rows = _newest_first(await self._rows.list(self._tenant, bundle))
        return [_record(row) for row in rows if version == row.version or not separator]

    @override
    async def remove(self, ref: str) -> int:
        return await self.remove_found(await self.versions(ref))

    async def remove_found(self, records: Sequence[BundleRecord]) -> int:
        """Remove bundles that were found before; return the number of bundles removed. See `remove`."""
        return sum([await self._remove_bundle(record.manifest) for record in records])

    async def _remove_bundle(self, manifest: WorkflowBundleManifest) -> bool:
        keys = [
            str(AgentId(INSTALLED_APP, f"{name}:", self._tenant))
            for name in manifest.graph_names.values()
        ]
        key = (self._tenant, manifest.bundle_id, manifest.bundle_version)
        open_count = await self._rows.remove(*key, run_keys=keys)
        if open_count:
            problem = f"{open_count} of its runs {'is' if open_count == 1 else 'are'} open"
            remedy = (
                "Wait for their end, or cancel them: "
                f"`callboard graphs list {INSTALLED_APP} --flow {manifest.ref}`"
            )
            raise WorkflowBundleRegistryError(manifest.ref, problem, remedy)
        return open_count is not None


def _open_checked(data: bytes) -> WorkflowBundle:
    bundle = open_workflow_bundle(data)
    bundle.check()
    return bundle


async def graphs_of(bundles: StoredBundles, record: BundleRecord) -> dict[str, WorkflowSpec]:
    """Return the graphs of a bundle, found before, by name. They are compiled in a thread.

    Raises:
        WorkflowBundleRegistryError: The bundle was removed after it was found.
        FlowError: A flow of the bundle cannot be compiled here.
    """
    data = await bundles.read(record)
    return await unpacked(
        lambda: {spec.workflow_id: spec for spec in open_workflow_bundle(data).drawn_specs()}
    )


async def inputs_of(bundles: StoredBundles, record: BundleRecord, flow_id: str) -> dict[str, Any]:
    """Return the JSON Schema of the vars that a flow of a bundle, found before, begins with."""
    data = await bundles.read(record)
    return await unpacked(lambda: input_schema(open_workflow_bundle(data).flow_json(flow_id)))


def _record(row: FlowBundleRow) -> BundleRecord:
    return BundleRecord(
        manifest=WorkflowBundleManifest.model_validate_json(row.manifest),
        hash=row.hash,
        size_bytes=row.size_bytes,
        place=row.artifact,
        installed_by=row.installed_by,
        installed_at=row.installed_at,
    )


def _readable_record(row: FlowBundleRow) -> BundleRecord | None:
    """Return a record for a list. A row that cannot be read is named in the log, and hides no other."""
    try:
        return _record(row)
    except ValueError as exc:
        extra = {"bundle": f"{row.bundle}@{row.version}", "problem": str(exc)[:500]}
        _log.error("the manifest of installed flows cannot be read", extra=extra)
        return None


def _newest_first(rows: list[FlowBundleRow]) -> list[FlowBundleRow]:
    rows = sorted(rows, key=lambda row: order_of(row.version), reverse=True)
    return sorted(rows, key=lambda row: row.bundle)
