"""Names of AbstractRuntime over ours; see the package."""

from actors.workflow.bundles import *  # noqa: F403
