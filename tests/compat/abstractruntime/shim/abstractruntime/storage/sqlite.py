"""Names of the source."""

from persistence.sqlite import *  # noqa: F403
