"""Names of the source."""

from actors.workflow import *  # noqa: F403
from persistence.files import *  # noqa: F403
