"""Names of the source."""

from actors.workflow.memory.messages import *  # noqa: F403
