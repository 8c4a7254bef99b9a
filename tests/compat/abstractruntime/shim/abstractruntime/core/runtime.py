"""Names of the source."""

from actors.workflow import *  # noqa: F403
