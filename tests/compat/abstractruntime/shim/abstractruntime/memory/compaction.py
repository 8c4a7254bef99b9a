"""Names of the source."""

from actors.workflow.notes.messages import *  # noqa: F403
