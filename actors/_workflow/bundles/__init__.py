"""Bundles of flows.

A bundle is a file with a manifest, flow documents and assets. A registry is a folder of bundles.
"""

from __future__ import annotations

from actors._workflow.bundles.bundle import WorkflowBundle, open_workflow_bundle
from actors._workflow.bundles.manifest import (
    WorkflowBundleEntrypoint,
    WorkflowBundleError,
    WorkflowBundleManifest,
)
from actors._workflow.bundles.packing import pack_workflow_bundle, packed_flow
from actors._workflow.bundles.registry import (
    InstalledBundle,
    WorkflowBundleRegistry,
    WorkflowBundleRegistryError,
    default_workflow_bundles_dir,
)
from actors._workflow.bundles.stored import (
    INSTALLED_APP,
    BundleRecord,
    BundleRegistry,
    FolderBundles,
    StoredBundles,
)

__all__ = [
    "INSTALLED_APP",
    "BundleRecord",
    "BundleRegistry",
    "FolderBundles",
    "InstalledBundle",
    "StoredBundles",
    "WorkflowBundle",
    "WorkflowBundleEntrypoint",
    "WorkflowBundleError",
    "WorkflowBundleManifest",
    "WorkflowBundleRegistry",
    "WorkflowBundleRegistryError",
    "default_workflow_bundles_dir",
    "open_workflow_bundle",
    "pack_workflow_bundle",
    "packed_flow",
]
