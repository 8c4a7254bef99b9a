"""Installed flows: their bundles, and the cache of their graphs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from actors.workflow.bundles import BundleRecord, StoredBundles, WorkflowBundleManifest
from actors.workflow.bundles.stored import graphs_of as loaded_graphs
from actors.workflow.machine.spec import WorkflowSpec
from compose.web.endpoint import ShownModel, WebCall

MOST_KEPT: Final = 32
"""Maximum number of bundles whose graphs a process caches."""


class InstalledFlowJson(ShownModel):
    """An installed bundle of flows.

    Attributes:
        flow: ``id@version`` of the bundle, which names its entry flow.
        hash: SHA-256 of the bundle's content.
        title: Title of the entry flow.
        flows: Names of all flows of the bundle.
        interfaces: Names of the interfaces that the entry flow implements.
        size_bytes: Size of the bundle's file.
        installed_by: The principal that installed it; empty if it is not installed.
        installed_at: The instant of the install; null if it is not installed.
        manifest: The bundle's manifest.
    """

    flow: str
    hash: str
    title: str
    flows: list[str]
    interfaces: list[str]
    size_bytes: int
    installed_by: str
    installed_at: datetime | None
    manifest: WorkflowBundleManifest


@dataclass(slots=True)
class InstalledGraphs:
    """Cache of the graphs of installed flows in one process.

    Attributes:
        installing: Lock around the check of a bundle, so that a process unpacks one bundle at a time.
        kept: Graphs by the hash of their bundle, in the order of their last use.
    """

    installing: asyncio.Lock = field(default_factory=asyncio.Lock)
    kept: dict[str, Mapping[str, WorkflowSpec]] = field(default_factory=dict)


def bundles_of(call: WebCall) -> StoredBundles:
    """Return the installed bundles of the principal's tenant."""
    store = call.runtime.store
    return StoredBundles(store.flow_bundles, store.artifacts, call.principal.tenant)


def graphs_of(call: WebCall) -> InstalledGraphs:
    """Return this process's cache of installed flows."""
    found: InstalledGraphs = call.api.kept.setdefault(InstalledGraphs, InstalledGraphs())
    return found


async def specs_of(call: WebCall, record: BundleRecord) -> Mapping[str, WorkflowSpec]:
    """Return the graphs of a bundle by name.

    Raises:
        WorkflowBundleRegistryError: The bundle was removed meanwhile.
        FlowError: A flow of the bundle cannot be compiled here.
    """
    kept = graphs_of(call).kept
    found = kept.pop(record.hash, None)
    if found is None:
        found = await loaded_graphs(bundles_of(call), record)
    kept[record.hash] = found
    if len(kept) > MOST_KEPT:
        del kept[next(iter(kept))]
    return found


async def installed_spec(call: WebCall, flow: str) -> WorkflowSpec | None:
    """Return the graph of an installed flow; None if no installed flow has this name."""
    found = await bundles_of(call).find_flow(flow)
    if found is None:
        return None
    record, flow_id = found
    return (await specs_of(call, record)).get(record.manifest.graph_names[flow_id])


def shown_bundle(record: BundleRecord) -> InstalledFlowJson:
    """Return a bundle in the form in which clients receive it."""
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
        manifest=manifest,
    )
