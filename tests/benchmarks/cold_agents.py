"""The application of the host of a cold start: its imports count as the host's start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import AgentId


class Idler:
    """An agent that only takes its messages."""

    def __init__(self, id: AgentId) -> None:  # noqa: A002
        self.id = id

    async def run(self, ctx: Any, inbox: list[Message]) -> None:
        """Receive the messages."""


AGENTS = {"bench": Idler}
