"""Names of the source."""

from tests.compat.abstractruntime.memory import *  # noqa: F403
