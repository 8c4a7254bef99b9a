"""Names of the source."""

import os  # noqa: F401

from actors.workflow import *  # noqa: F403
from persistence.files import *  # noqa: F403
from tests.compat.abstractruntime.command_stores import *  # noqa: F403
