"""The names behind which there is a driver: the embedded one, or with `COMPAT_DRIVER=actors` that of actors."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING or os.environ.get("COMPAT_DRIVER") != "actors":
    from actors.workflow import (
        InMemoryLedgerStore,
        InMemoryRunStore,
        ScheduledRuntime,
        Scheduler,
        create_scheduled_runtime,
    )
    from actors.workflow import WorkflowRuntime as Runtime
else:
    from tests.compat.abstractruntime.actor_driver.runtime import Runtime
    from tests.compat.abstractruntime.actor_driver.scheduler import (
        ScheduledRuntime,
        Scheduler,
        create_scheduled_runtime,
    )
    from tests.compat.abstractruntime.actor_driver.views import (
        InMemoryLedgerStore,
        InMemoryRunStore,
    )

__all__ = [
    "InMemoryLedgerStore",
    "InMemoryRunStore",
    "Runtime",
    "ScheduledRuntime",
    "Scheduler",
    "create_scheduled_runtime",
]
