"""An application whose host prints its loaded modules when it is about to serve."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actors._kernel.runtime.ids import AgentId
    from actors._runtime import Runtime


class Idle:
    """Does nothing."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: Any, inbox: Any) -> None:
        """End at once."""


async def app(runtime: Runtime) -> None:
    """Serve agents that do nothing, and print the names of all modules."""
    await runtime.register_type("idle", Idle)
    sys.stdout.write(json.dumps(sorted(sys.modules)) + "\n")
    sys.stdout.flush()
