"""Installed flows as requests find them: their bundles, and their graphs, which a process keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from actors.workflow.bundles import BundleRecord, StoredBundles
from actors.workflow.machine.spec import WorkflowSpec
from compose.web.endpoint import ShownModel, WebCall

MOST_KEPT: Final = 32
"""So many bundles' graphs are kept by a process."""


class InstalledFlowJson(ShownModel):
    """An installed bundle of flows.

    Attributes:
        flow: ``id@version``, the name of its first flow.
        hash: SHA-256 of its content.
        title: Of its first flow.
        flows: The names of all its flows.
        interfaces: Names of what its first flow can be used as.
        size_bytes: Of its file.
        installed_by: The principal.
        installed_at: The instant.
    """

    flow: str
    hash: str
    title: str
    flows: list[str]
    interfaces: list[str]
    size_bytes: int
    installed_by: str
    installed_at: datetime | None


@dataclass(slots=True)
class InstalledGraphs:
    """Graphs of installed flows that a process keeps.

    Attributes:
        installing: Held while a bundle is checked: one at a time is unpacked.
        kept: Graphs by the hash of their bundle, the one that was used last at the end.
    """

    installing: asyncio.Lock = field(default_factory=asyncio.Lock)
    kept: dict[str, Mapping[str, WorkflowSpec]] = field(default_factory=dict)


def bundles_of(call: WebCall) -> StoredBundles:
    """Return the installed bundles of the principal's tenant."""
    store = call.runtime.store
    return StoredBundles(store.flow_bundles, store.artifacts, call.principal.tenant)


def graphs_of(call: WebCall) -> InstalledGraphs:
    """Return what this process keeps of installed flows."""
    found: InstalledGraphs = call.api.kept.setdefault(InstalledGraphs, InstalledGraphs())
    return found


async def specs_of(call: WebCall, record: BundleRecord) -> Mapping[str, WorkflowSpec]:
    """Return the graphs of a bundle by name.

    Raises:
        WorkflowBundleRegistryError: It was removed meanwhile.
        FlowError: A flow cannot be compiled here.
    """
    kept = graphs_of(call).kept
    found = kept.pop(record.hash, None)
    if found is None:
        bundle = await bundles_of(call).load(record)
        found = {one.workflow_id: one for one in bundle.drawn_specs()}
    kept[record.hash] = found
    if len(kept) > MOST_KEPT:
        del kept[next(iter(kept))]
    return found


async def installed_spec(call: WebCall, flow: str) -> WorkflowSpec | None:
    """Return the graph of an installed flow; None: there is none of this name."""
    found = await bundles_of(call).find_flow(flow)
    if found is None:
        return None
    record, flow_id = found
    return (await specs_of(call, record)).get(record.manifest.graph_names[flow_id])


def shown_bundle(record: BundleRecord) -> InstalledFlowJson:
    """Return a bundle as clients read it."""
    manifest = record.manifest
    return InstalledFlowJson(
        flow=manifest.ref,
        hash=record.hash,
        title=manifest.entry.name or manifest.bundle_id,
        flows=sorted(manifest.graph_names.values()),
        interfaces=[*manifest.entry.interfaces],
        size_bytes=record.size_bytes,
        installed_by=record.installed_by,
        installed_at=record.installed_at,
    )
