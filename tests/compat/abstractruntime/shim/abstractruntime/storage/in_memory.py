"""Names of the source."""

from actors.workflow import *  # noqa: F403
from tests.compat.abstractruntime.driver import *  # noqa: F403
