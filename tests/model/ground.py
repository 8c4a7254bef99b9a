"""What a case is played on: a `MemoryStore` in a simulation."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from actors.kernel.agent.message import Message
from actors.runtime.backends.memory import MemoryStore
from tests.harness.simloop import SimClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from actors.kernel.runtime.ids import AgentId, HostIncarnation, RunId
    from actors.kernel.runtime.store import RunStore
    from actors.kernel.runtime.transport import Transport
    from tests.harness.simloop import SimLoop

OUTSIDER = "test"


@dataclass(frozen=True, slots=True)
class Stead:
    """What a host stands on: its store, and its way to the broker if there is one.

    Attributes:
        heartbeat_s: Where leases are kept by heartbeats; they also repair a claim whose answer was lost.
    """

    store: RunStore
    owner: HostIncarnation | None = None
    transport: Transport | None = None
    heartbeat_s: float | None = None


class Ground(Protocol):
    """Rows that outlive hosts, and the ways to them.

    Attributes:
        store: For onlookers.
    """

    store: RunStore

    @property
    def elsewhere(self) -> RunStore:
        """Another process's store."""
        ...

    def host(self) -> AbstractAsyncContextManager[Stead]:
        """What a new host stands on, as long as it lives."""
        ...

    async def send(self, agent: AgentId, payload: dict[str, Any], *, id: str) -> None:  # noqa: A002
        """Send mail to the agent, as an outside service."""
        ...

    async def signal(
        self,
        agent: AgentId,
        run_id: RunId,
        name: str,
        payload: dict[str, Any],
        *,
        id: str,  # noqa: A002
    ) -> None:
        """Send a signal to a run, as an outside service."""
        ...

    async def is_settled(self) -> bool:
        """Whether nothing is on its way between agents."""
        ...


class MemoryGround:
    """See `Ground`."""

    def __init__(self, loop: SimLoop) -> None:
        self._first = MemoryStore(clock=SimClock(loop))
        self.store: RunStore = self._first
        self._outside = self._first.sibling()

    @property
    def elsewhere(self) -> RunStore:
        """See `Ground`."""
        return self._outside

    @asynccontextmanager
    async def host(self) -> AsyncIterator[Stead]:
        """See `Ground.host`."""
        yield Stead(self._first.sibling())

    async def send(self, agent: AgentId, payload: dict[str, Any], *, id: str) -> None:  # noqa: A002
        """See `Ground.send`."""
        await self._outside.deliver([Message.of(agent, payload, id=id).sent_by(f"ext:{OUTSIDER}")])

    async def signal(
        self,
        agent: AgentId,
        run_id: RunId,
        name: str,
        payload: dict[str, Any],
        *,
        id: str,  # noqa: A002
    ) -> None:
        """See `Ground.signal`."""
        await self._outside.signal(run_id, name, payload, message_id=id, sender=f"ext:{OUTSIDER}")

    async def is_settled(self) -> bool:
        """See `Ground.is_settled`."""
        return True
