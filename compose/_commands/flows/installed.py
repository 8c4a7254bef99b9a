"""Installed flows of a deployment, as a registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from typing_extensions import override

from actors._workflow.bundles import (
    BundleRecord,
    BundleRegistry,
    WorkflowBundle,
    open_workflow_bundle,
)
from actors._workflow.bundles.packing import unpacked
from actors._workflow.documents.findings import FlowFinding
from compose._client.http import ApiNotFoundError, ApiRefusedError, quote_name

if TYPE_CHECKING:
    from compose._client.callboard import Callboard
    from compose._web.flows.flows import InstalledFlowJson


class InstalledBundles(BundleRegistry):
    """The installed bundles of a client's tenant.

    Args:
        callboard: The client.
        url: The address of the server; None over a database.
    """

    def __init__(self, callboard: Callboard, url: str | None = None) -> None:
        self._flows, self._url = callboard.flows, url

    @override
    async def install(self, data: bytes, *, by: str = "") -> tuple[BundleRecord, bool]:
        del by  # the principal of the requests
        flow, is_new = await self._flows.install(data)
        return self._record(flow), is_new

    @override
    async def list(self) -> list[BundleRecord]:
        return [self._record(flow) for flow in (await self._flows.list()).installed]

    @override
    async def find(self, ref: str) -> BundleRecord | None:
        with suppress(ApiNotFoundError):
            return self._record(await self._flows.get(ref))
        return None

    @override
    async def open(self, ref: str) -> WorkflowBundle:
        return await unpacked(open_workflow_bundle, await self._flows.bundle(ref))

    @override
    async def remove(self, ref: str) -> int:
        bundle, at_sign, exact_version = ref.partition("@")
        versions = [exact_version] if at_sign else []
        if not at_sign:
            manifests = [record.manifest for record in await self.list()]
            versions = [
                manifest.bundle_version for manifest in manifests if manifest.bundle_id == bundle
            ]
        count = 0
        for version in versions:
            # Another client removed the version meanwhile, so it does not count.
            with suppress(ApiNotFoundError):
                await self._flows.remove(f"{bundle}@{version}")
                count += 1
        return count

    async def mistakes(self, file: str, data: bytes, version: str | None) -> Sequence[FlowFinding]:
        """Return why the deployment would not install a flow; empty if it would. Nothing is installed."""
        try:
            await self._flows.install(data, version=version, dry_run=True)
        except ApiRefusedError as exc:
            if not exc.code.startswith(("flow_", "bundle_")):
                raise
            if not exc.errors:
                return [FlowFinding(file, "", exc.detail, exc.remedy)]
            return [_finding(file, error) for error in exc.errors]
        return []

    def _record(self, flow: InstalledFlowJson) -> BundleRecord:
        path = f"/v1/flows/{quote_name(flow.flow)}/bundle"
        place = "the database" if self._url is None else f"{self._url.rstrip('/')}{path}"
        return BundleRecord(
            manifest=flow.manifest,
            hash=flow.hash,
            size_bytes=flow.size_bytes,
            place=place,
            installed_by=flow.installed_by,
            installed_at=flow.installed_at,
        )


def _finding(file: str, error: Mapping[str, str]) -> FlowFinding:
    path, _, pointer = error.get("where", "").partition("#")
    inner_file = path.partition("/")[2]  # of a bundle: the flow's file in it
    name = f"{file}/{inner_file}" if inner_file else file
    return FlowFinding(name, pointer, error.get("problem", ""), error.get("remedy", ""))
