"""Names of AbstractRuntime over ours; see the package."""

from actors._workflow.bundles.registry import *  # noqa: F403
