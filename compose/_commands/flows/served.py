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
from compose._commands.api import Api, ApiNotFoundError, ApiRefusedError, quote_name

_FLOWS: Final = "/v1/flows"


class _Installed(BaseModel):
    """A bundle in an answer: fields of the server's `InstalledFlowJson`."""

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
        status, answer = await self._api.ask("POST", _FLOWS, data)
        return self._record(answer), status == HTTPStatus.CREATED

    @override
    async def list(self) -> list[BundleRecord]:
        _, answer = await self._api.ask("GET", _FLOWS)
        if not isinstance(answer, dict) or not isinstance(answer.get("installed"), list):
            raise self._api.unexpected_answer(str(answer))
        return [self._record(bundle_data) for bundle_data in answer["installed"]]

    @override
    async def find(self, ref: str) -> BundleRecord | None:
        try:
            _, answer = await self._api.ask("GET", f"{_FLOWS}/{quote_name(ref)}")
        except ApiNotFoundError:
            return None
        return self._record(answer)

    @override
    async def open(self, ref: str) -> WorkflowBundle:
        _, data = await self._api.read("GET", f"{_FLOWS}/{quote_name(ref)}/bundle")
        return await unpacked(open_workflow_bundle, data)

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
                await self._api.read("DELETE", f"{_FLOWS}/{quote_name(f'{bundle}@{version}')}")
                count += 1
        return count

    async def drawing(self, flow: str) -> str:
        """Return the drawing of a flow as SVG."""
        _, svg = await self._api.read("GET", f"{_FLOWS}/{quote_name(flow)}/svg")
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
            return [_finding(file, error) for error in exc.errors]
        return []

    def _record(self, data: Any) -> BundleRecord:
        try:
            bundle = _Installed.model_validate(data)
        except ValidationError:
            raise self._api.unexpected_answer(str(data)) from None
        return BundleRecord(
            manifest=bundle.manifest,
            hash=bundle.hash,
            size_bytes=bundle.size_bytes,
            place=f"{self._api.url}{_FLOWS}/{quote_name(bundle.manifest.ref)}/bundle",
            installed_by=bundle.installed_by,
            installed_at=bundle.installed_at,
        )


def _finding(file: str, error: Mapping[str, str]) -> FlowFinding:
    path, _, pointer = error.get("where", "").partition("#")
    inner_file = path.partition("/")[2]  # of a bundle: the flow's file in it
    name = f"{file}/{inner_file}" if inner_file else file
    return FlowFinding(name, pointer, error.get("problem", ""), error.get("remedy", ""))
