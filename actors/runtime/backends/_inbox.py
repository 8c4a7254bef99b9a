"""InMemoryInbox: mail of all agents, with a counter of failures per message."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count, islice
from typing import TYPE_CHECKING

from actors.kernel.agent.message import MessageKey
from actors.kernel.runtime.commit import DeadLetter
from actors.runtime.backends._records import InboxRow

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from actors.kernel.agent.message import Message
    from actors.kernel.clock import Clock
    from actors.kernel.runtime.ids import AgentId


@dataclass(slots=True)
class _Dead:
    id: int
    row: InboxRow
    attempts: int
    error: str
    at: datetime


class InMemoryInbox:
    """See `Inbox`. Nothing survives the process.

    Args:
        clock: Stamps dead letters.
        max_retries: After so many nacks a message becomes a dead letter.
    """

    def __init__(self, *, clock: Clock, max_retries: int = 3) -> None:
        self._clock = clock
        self._max_retries = max_retries
        self._known: set[MessageKey] = set()
        self._waiting: dict[AgentId, dict[MessageKey, InboxRow]] = {}
        self._nacks: dict[MessageKey, int] = {}
        self._dead: dict[AgentId, list[_Dead]] = {}
        self._arrivals, self._dead_ids = count(1), count(1)
        self._hook: Callable[[AgentId], None] | None = None

    async def deliver(self, agent_id: AgentId, msg: Message, *, notify: bool = True) -> bool:
        """See `Inbox.deliver`."""
        key = MessageKey(agent_id, msg.sender or "", msg.id)
        if key in self._known:
            return False
        self._known.add(key)
        self._put(InboxRow.of(key, msg, next(self._arrivals), at=self._clock.now()))
        if notify and self._hook is not None:
            self._hook(agent_id)
        return True

    async def drain(self, agent_id: AgentId, *, max: int = 100) -> list[Message]:  # noqa: A002
        """See `Inbox.drain`."""
        rows = self._waiting.get(agent_id, {}).values()
        return [row.message() for row in islice(rows, max)]

    async def ack(self, agent_id: AgentId, msg_id: str) -> None:
        """See `Inbox.ack`. Of two senders' messages with this id the older one is meant."""
        row = self._find(agent_id, msg_id)
        if row is not None:
            self._remove(row)

    async def nack(self, agent_id: AgentId, msg_id: str, *, error: str = "") -> None:
        """See `Inbox.nack`. The message keeps its place in the queue."""
        row = self._find(agent_id, msg_id)
        if row is None:
            return
        attempts = self._nacks[row.key] = self._nacks.get(row.key, 0) + 1
        if attempts >= self._max_retries:
            self._remove(row)
            dead = _Dead(next(self._dead_ids), row, attempts, error, self._clock.now())
            self._dead.setdefault(agent_id, []).append(dead)

    async def dead_letters(self, agent_id: AgentId) -> list[DeadLetter]:
        """See `Inbox.dead_letters`. Oldest first."""
        return [
            DeadLetter(
                id=dead.id,
                agent_id=agent_id,
                message=dead.row.message(),
                reason="max_retries",
                attempts=dead.attempts,
                last_error=dead.error,
                at=dead.at,
            )
            for dead in self._dead.get(agent_id, [])
        ]

    async def redrive(self, agent_id: AgentId, msg_id: str) -> bool:
        """See `Inbox.redrive`. The message goes to the end of the queue."""
        letters = self._dead.get(agent_id, [])
        for dead in letters:
            if dead.row.key.message_id == msg_id:
                letters.remove(dead)
                self._put(replace(dead.row, arrival=next(self._arrivals)))
                if self._hook is not None:
                    self._hook(agent_id)
                return True
        return False

    async def pending_count(self, agent_id: AgentId) -> int:
        """See `Inbox.pending_count`."""
        return len(self._waiting.get(agent_id, ()))

    def set_deliver_hook(self, hook: Callable[[AgentId], None] | None) -> None:
        """See `Inbox.set_deliver_hook`."""
        self._hook = hook

    def _put(self, row: InboxRow) -> None:
        self._waiting.setdefault(row.key.agent, {})[row.key] = row

    def _find(self, agent_id: AgentId, msg_id: str) -> InboxRow | None:
        rows = self._waiting.get(agent_id, {}).values()
        return next((row for row in rows if row.key.message_id == msg_id), None)

    def _remove(self, row: InboxRow) -> None:
        waiting = self._waiting[row.key.agent]
        del waiting[row.key]
        if not waiting:
            del self._waiting[row.key.agent]
        if row.key in self._nacks:
            del self._nacks[row.key]
