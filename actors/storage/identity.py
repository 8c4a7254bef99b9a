"""The identity of the executing agent, for functions that its `run` calls without a reference to it.

The runtime sets the variables inside the agent's task, before its code begins. Branches, steps and tools of
the run have the same values, and so has every replay. Outside of an agent's code they raise `LookupError`.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from actors.kernel.runtime.ids import AgentId

current_thread_id: Final[ContextVar[str]] = ContextVar("callboard_thread_id")
"""The conversation, which is the run's session."""
current_agent_id: Final[ContextVar[str]] = ContextVar("callboard_agent_id")
"""The agent, as `AgentId.parse` reads it."""
current_agent_label: Final[ContextVar[str]] = ContextVar("callboard_agent_label")
"""The agent's name for a person to read: ``type/key``, without the tenant."""
current_parent_agent_id: Final[ContextVar[str | None]] = ContextVar("callboard_parent_agent_id")
"""The agent whose run spawned this run. None: no agent spawned it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentIdentity:
    """The identity of the agent and the conversation of one run.

    Attributes:
        agent_id: The agent.
        thread_id: The run's session.
        parent_agent_id: The agent whose run spawned this run. None: no agent spawned it.
    """

    agent_id: AgentId
    thread_id: str
    parent_agent_id: str | None = None

    def enter(self) -> None:
        """Set the variables in the current task and in tasks that it starts."""
        current_thread_id.set(self.thread_id)
        current_agent_id.set(str(self.agent_id))
        current_agent_label.set(f"{self.agent_id.type}/{self.agent_id.key}")
        current_parent_agent_id.set(self.parent_agent_id)
