"""The mailbox of one agent: idempotent delivery, order per sender, dead letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from actors.kernel.agent.message import Message
from actors.kernel.runtime.ids import AgentId
from actors.kernel.runtime.rows import DeadLetter


class Inbox(Protocol):
    """Messages waiting for agents."""

    async def deliver(self, agent_id: AgentId, msg: Message, *, notify: bool = True) -> bool:
        """Keep a message for the agent; False (and no change) when its id is known from its sender.

        `notify=False` leaves the deliver hook uncalled: the caller starts the run itself.
        """

    async def drain(self, agent_id: AgentId, *, max: int = 100) -> list[Message]:  # noqa: A002
        """Return up to `max` waiting messages, in arrival order per sender, without removing them."""

    async def ack(self, agent_id: AgentId, msg_id: str) -> None:
        """Mark a message as handled; delivering it again stays refused."""

    async def nack(self, agent_id: AgentId, msg_id: str, *, error: str = "") -> None:
        """Count a failed attempt; after the limit the message becomes a dead letter."""

    async def dead_letters(self, agent_id: AgentId) -> list[DeadLetter]:
        """Return the agent's messages that were given up."""

    async def redrive(self, agent_id: AgentId, msg_id: str) -> bool:
        """Make a dead letter wait again with a fresh counter; False when there is none of that id."""

    async def pending_count(self, agent_id: AgentId) -> int:
        """Return how many messages wait or are being handled."""

    def set_deliver_hook(self, hook: Callable[[AgentId], None] | None) -> None:
        """Call `hook` once per new message delivered with `notify=True`."""
