"""Names of the source."""

from persistence.sqlite import *  # noqa: F403
from tests.compat.abstractruntime.command_stores import *  # noqa: F403
