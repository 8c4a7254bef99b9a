"""The part of `RunContext` that is about long-term memory. Its verbs are imported when an agent uses them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actors.runtime.context.call import RunState
    from actors.runtime.context.effects import Effects
    from actors.runtime.context.memory.verbs import AgentMemory


class MemoryVerbs:
    """See the module's docstring."""

    _run: RunState
    _effects: Effects

    @cached_property
    def memory(self) -> AgentMemory:
        """Texts that the agent keeps beyond its conversations, found by words and by meaning."""
        from actors.runtime.context.memory.verbs import AgentMemory  # noqa: PLC0415 - few use it

        return AgentMemory(self._run, self._effects)
