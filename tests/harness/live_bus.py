"""A `DeltaBus` between the runtimes of one process, with delays that a test controls."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from actors._kernel.runtime.hints import Delta
    from actors._kernel.runtime.ids import AgentId, RunId


@dataclass(eq=False)
class LiveReader:
    """A subscription: the arrived pieces, and whether whole answers can be requested."""

    run: tuple[AgentId, RunId]
    arrived: deque[Delta | None] = field(default_factory=deque)
    came: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, delta: Delta | None) -> None:
        """Deliver a piece."""
        self.arrived.append(delta)
        self.came.set()


@dataclass
class LiveBus:
    """The bus of one process; `peer` is the other's.

    Attributes: readers: Subscriptions of this process. held: Undelivered requests for whole
    answers; None: they are delivered at once. ends: Waiters for ends of runs here.
    """

    readers: list[LiveReader] = field(default_factory=list)
    held: list[LiveReader] | None = None
    open_answers: Callable[[AgentId, RunId], Sequence[Delta]] = lambda *_: ()
    is_connected: bool = True
    _peer: LiveBus | None = None

    @property
    def peer(self) -> LiveBus:
        """The bus of the other process."""
        if self._peer is None:
            self._peer = LiveBus(_peer=self)
        return self._peer

    def publish(self, delta: Delta) -> None:
        """Deliver to the other process."""
        for reader in self.peer.readers:
            if reader.run == (delta.agent_id, delta.run_id):
                reader.put(delta)

    async def subscribe(
        self, agent_id: AgentId, run_id: RunId, *, whole: bool = False
    ) -> AsyncGenerator[Delta | None, None]:
        """Yield publications and answers of the other process."""
        reader = LiveReader((agent_id, run_id))
        self.readers.append(reader)
        if whole and self.held is not None:
            self.held.append(reader)
        elif whole:
            self.ask(reader)
        try:
            while True:
                await reader.came.wait()
                reader.came.clear()
                while reader.arrived:
                    yield reader.arrived.popleft()
        finally:
            self.readers.remove(reader)

    def ask(self, reader: LiveReader) -> None:
        """Let the other process answer now."""
        answers = self.peer.open_answers(*reader.run)
        for delta in answers:
            reader.put(delta)
        if answers:
            reader.put(None)

    def answer_by(self, open_answers: Callable[[AgentId, RunId], Sequence[Delta]]) -> None:
        """See `DeltaBus.answer_by`."""
        self.open_answers = open_answers

    def announce_end(self, agent_id: AgentId, run_id: RunId) -> None:
        """Do nothing."""

    def watch_end(
        self, agent_id: AgentId, run_id: RunId, on_end: Callable[[], None]
    ) -> Callable[[], None]:
        """Yield nothing."""
        del agent_id, run_id, on_end
        return lambda: None
