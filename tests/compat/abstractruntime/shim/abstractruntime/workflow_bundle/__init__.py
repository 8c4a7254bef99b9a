"""Names of AbstractRuntime over ours; see the package."""

from actors._workflow.bundles import *  # noqa: F403
