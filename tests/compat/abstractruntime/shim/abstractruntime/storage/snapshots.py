"""Names of the source."""

from persistence.files.snapshots import *  # noqa: F403
from actors.workflow import *  # noqa: F403
from persistence.files import *  # noqa: F403
