"""Parts of `RunContext` that few runs use: memory and graphs. Their verbs are imported when a run uses them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actors.runtime.verbs.call import RunState
    from actors.runtime.verbs.effects import Effects
    from actors.runtime.verbs.graph import GraphVerbs
    from actors.runtime.verbs.host_services import HostServices
    from actors.runtime.verbs.memory import AgentMemory
    from actors.runtime.verbs.waits import Waits


class RareVerbs:
    """See the module's docstring."""

    _run: RunState
    _effects: Effects
    _waits: Waits
    _env: HostServices

    @cached_property
    def memory(self) -> AgentMemory:
        """Texts that the agent keeps beyond its conversations, found by words and by meaning."""
        from actors.runtime.verbs.memory import AgentMemory  # noqa: PLC0415 - few use it

        return AgentMemory(self._run, self._effects)

    @cached_property
    def graph(self) -> GraphVerbs:
        """The verbs of graphs: for `actors.workflow`, not for authors."""
        from actors.runtime.verbs.graph import GraphVerbs  # noqa: PLC0415 - few use it
        from actors.runtime.verbs.model_calls import Live  # noqa: PLC0415 - as above

        live = Live(self._run, self._env)
        return GraphVerbs(self._run, self._effects, self._waits, live, self._env.on_nudges)
