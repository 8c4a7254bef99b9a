"""Bundles of flows: one file with a manifest, flow documents and assets. A registry is a folder of bundles."""

from actors._workflow.bundles import (
    INSTALLED_APP,
    BundleRecord,
    BundleRegistry,
    FolderBundles,
    InstalledBundle,
    StoredBundles,
    WorkflowBundle,
    WorkflowBundleEntrypoint,
    WorkflowBundleError,
    WorkflowBundleManifest,
    WorkflowBundleRegistry,
    WorkflowBundleRegistryError,
    default_workflow_bundles_dir,
    open_workflow_bundle,
    pack_workflow_bundle,
    packed_flow,
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
