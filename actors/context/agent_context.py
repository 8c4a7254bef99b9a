"""An agent's memory of its conversations."""

from __future__ import annotations

from actors.context.config import ContextConfig
from actors.kernel.agent.message import ChatMessage
from actors.kernel.runtime.ids import AgentId


class AgentContext:
    """The context of one agent: its id and its config. See `AgentContextProtocol`.

    Args:
        agent_id: The agent whose turns are read.
        config: The history of the turns, and the pipeline that makes the window.
    """

    def __init__(self, agent_id: AgentId, config: ContextConfig) -> None:
        self.agent_id, self.config = agent_id, config

    async def get_prompt_window(self, session_id: str) -> list[ChatMessage]:
        """Read the session's turns and compact them; return the window for the model.

        Before the window is sent to a provider, `repaired` adds results to tool calls that a crash left without
        one.
        """
        raw = await self.config.history.get_messages(self.agent_id, session_id=session_id)
        return await self.config.pipeline.compact(raw)
