"""An agent's memory of its conversations."""

from __future__ import annotations

from actors.context.config import ContextConfig
from actors.kernel.agent.message import ChatMessage
from actors.kernel.runtime.ids import AgentId


class AgentContext:
    """A config bound to one agent. See `AgentContextProtocol`.

    Args:
        agent_id: Whose turns are read.
        config: Where they are, and how they fit a window.
    """

    def __init__(self, agent_id: AgentId, config: ContextConfig) -> None:
        self.agent_id, self.config = agent_id, config

    async def get_prompt_window(self, session_id: str) -> list[ChatMessage]:
        """Return the session's turns as the model is to see them: read, then compacted.

        Before they go to a provider, `repaired` answers the calls that a crash left without a result.
        """
        raw = await self.config.history.get_messages(self.agent_id, session_id=session_id)
        return await self.config.pipeline.compact(raw)
