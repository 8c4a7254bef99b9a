"""Names of the source."""

from actors.workflow import *  # noqa: F403
from actors.workflow import WorkflowRuntime as Runtime  # noqa: F401
