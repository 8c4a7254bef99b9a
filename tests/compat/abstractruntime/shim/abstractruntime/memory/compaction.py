"""Names of the source."""

from actors._workflow.notes.messages import *  # noqa: F403
