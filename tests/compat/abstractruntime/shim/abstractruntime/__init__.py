"""The names of AbstractRuntime over ours: no behaviour. Its own tests import them."""

from __future__ import annotations

from actors.workflow import *  # noqa: F403
from actors.workflow import WorkflowRuntime as Runtime
from persistence.files import *  # noqa: F403
from persistence.sqlite import *  # noqa: F403

__all__ = ["Runtime"]
