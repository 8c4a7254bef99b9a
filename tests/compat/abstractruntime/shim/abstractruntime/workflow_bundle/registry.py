"""Names of AbstractRuntime over ours; see the package."""

from actors.workflow.bundles.registry import *  # noqa: F403
