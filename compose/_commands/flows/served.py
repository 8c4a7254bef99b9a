"""Installed flows of a running server, over its HTTP API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from typing_extensions import override

from actors._workflow.bundles import (
    BundleRecord,
    BundleRegistry,
    WorkflowBundle,
    WorkflowBundleManifest,
    open_workflow_bundle,
)
from actors._workflow.bundles.packing import unpacked
from actors._workflow.documents.findings import FlowFinding
from compose._commands.api import Api, ApiNotFoundError, ApiRefusedError, quoted

_FLOWS: Final = "/v1/flows"


class _Installed(BaseModel):
    """A bundle in an answer of the API. See `InstalledFlowJson`."""

    manifest: WorkflowBundleManifest
    hash: str
    size_bytes: int
    installed_by: str
    installed_at: datetime | None


class ServedBundles(BundleRegistry):
    """The installed bundles of the tenant of the token, at a server.

    Args:
        api: The server.
    """

    def __init__(self, api: Api) -> None:
        self._api = api

    @override
    async def install(self, data: bytes, *, by: str = "") -> tuple[BundleRecord, bool]:
        del by  # the server takes the token's principal
        status, told = await self._api.ask("POST", _FLOWS, data)
        return self._record(told), status == HTTPStatus.CREATED

    @override
    async def list(self) -> list[BundleRecord]:
        _, told = await self._api.ask("GET", _FLOWS)
        if not isinstance(told, dict) or not isinstance(told.get("installed"), list):
            raise self._api.odd(str(told))
        return [self._record(one) for one in told["installed"]]

    @override
    async def find(self, ref: str) -> BundleRecord | None:
        try:
            _, told = await self._api.ask("GET", f"{_FLOWS}/{quoted(ref)}")
        except ApiNotFoundError:
            return None
        return self._record(told)

    @override
    async def open(self, ref: str) -> WorkflowBundle:
        _, data = await self._api.read("GET", f"{_FLOWS}/{quoted(ref)}/bundle")
        return await unpacked(open_workflow_bundle, data)

    @override
    async def remove(self, ref: str) -> int:
        bundle, at, exact = ref.partition("@")
        versions = [exact] if at else []
        if not at:
            manifests = [record.manifest for record in await self.list()]
            versions = [one.bundle_version for one in manifests if one.bundle_id == bundle]
        count = 0
        for version in versions:
            with suppress(ApiNotFoundError):
                await self._api.read("DELETE", f"{_FLOWS}/{quoted(f'{bundle}@{version}')}")
                count += 1
        return count

    async def drawing(self, flow: str) -> str:
        """Return the drawing of a flow as SVG."""
        _, svg = await self._api.read("GET", f"{_FLOWS}/{quoted(flow)}/svg")
        return svg.decode()

    async def mistakes(self, file: str, data: bytes, version: str | None) -> Sequence[FlowFinding]:
        """Return why the server would not install a flow; empty if it would. Nothing is installed."""
        query = {"dry_run": "true", "version": version}
        try:
            await self._api.ask("POST", _FLOWS, data, query=query)
        except ApiRefusedError as exc:
            if not exc.code.startswith(("flow_", "bundle_")):
                raise
            if not exc.errors:
                return [FlowFinding(file, "", exc.detail, exc.remedy)]
            return [_finding(file, one) for one in exc.errors]
        return []

    def _record(self, told: Any) -> BundleRecord:
        try:
            one = _Installed.model_validate(told)
        except ValidationError:
            raise self._api.odd(str(told)) from None
        return BundleRecord(
            manifest=one.manifest,
            hash=one.hash,
            size_bytes=one.size_bytes,
            place=f"{self._api.url}{_FLOWS}/{quoted(one.manifest.ref)}/bundle",
            installed_by=one.installed_by,
            installed_at=one.installed_at,
        )


def _finding(file: str, told: Mapping[str, str]) -> FlowFinding:
    place, _, pointer = told.get("where", "").partition("#")
    within = place.partition("/")[2]  # of a bundle: the flow's file in it
    name = f"{file}/{within}" if within else file
    return FlowFinding(name, pointer, told.get("problem", ""), told.get("remedy", ""))
