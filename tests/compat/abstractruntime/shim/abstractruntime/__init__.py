"""The names of AbstractRuntime over ours: no behaviour. Its own tests import them."""

from __future__ import annotations

from actors.workflow import *  # noqa: F403
from persistence.files import *  # noqa: F403
from persistence.sqlite import *  # noqa: F403
from tests.compat.abstractruntime.driver import *  # noqa: F403
