"""The ground of a case: a `MemoryStore` in a simulation."""

from __future__ import annotations

from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from actors._inmemory.runs.store import MemoryStore
from actors._kernel.agent.message import Message
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import run_id_of_submit
from actors._kernel.runtime.rows import NewRun

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from actors._kernel.basics import Clock
    from actors._kernel.runtime.ids import AgentId, HostIncarnation, RunId
    from actors._kernel.stores.run_store import RunStore
    from actors._kernel.stores.transport import Transport

OUTSIDER = "test"
SENDER = f"ext:{OUTSIDER}"


def message_of(agent: AgentId, payload: dict[str, Any], id: str) -> Message:  # noqa: A002
    """Return a message of the external client."""
    return Message.of(agent, payload, id=id).sent_by(SENDER)


def run_of(agent: AgentId, payload: dict[str, Any], id: str) -> tuple[NewRun, Message]:  # noqa: A002
    """Return a run that the external client submits, and its message."""
    run = NewRun(run_id_of_submit(agent, SENDER, id), agent)
    return run, message_of(agent, payload, id)


_APART: Final = ("transcripts", "artifacts", "memories", "sessions", "tokens")
"""Rows in memory that are values of their own."""


@dataclass(frozen=True, slots=True)
class Stead:
    """The resources of a host: its store, and its broker if there is one.

    Attributes: heartbeat_s: If leases are kept by heartbeats; they also repair a claim whose answer
    was lost.
    """

    store: RunStore
    owner: HostIncarnation | None = None
    transport: Transport | None = None
    heartbeat_s: float | None = None


class Ground(Protocol):
    """Rows that survive hosts, and the access to them.

    Attributes: store: For observers.
    """

    store: RunStore

    @property
    def elsewhere(self) -> RunStore:
        """Return another process's store."""
        ...

    def host(self) -> AbstractAsyncContextManager[Stead]:
        """Yield the resources of a new host, until it ends."""
        ...

    async def send(self, agent: AgentId, payload: dict[str, Any], *, id: str) -> None:  # noqa: A002
        """Send a message to the agent, as an external client."""
        ...

    async def submit(self, agent: AgentId, payload: dict[str, Any], *, id: str) -> None:  # noqa: A002
        """Submit a run to the agent, under the sender's name."""
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
        """Send a signal to a run, as an external client."""
        ...

    async def is_settled(self) -> bool:
        """Return whether no message between agents is in flight."""
        ...


class MemoryGround:
    """See `Ground`."""

    def __init__(self, clock: Clock) -> None:
        self._first = MemoryStore(clock=clock)
        self.store: RunStore = self._first
        self._outside = self._first.sibling()

    @property
    def elsewhere(self) -> RunStore:
        """See `Ground`."""
        return self._outside

    def copied(self) -> dict[str, Any]:
        """Return a copy of all rows, for `go_back`."""
        excluded_names = (
            "clock",
            "hooks",
            "transcripts",
            "artifacts",
            "flow_bundles",
            "run_snapshots",
            "audit",
            "memories",
            "sessions",
            "tokens",
            "_transcripts",
            "_open_runs",
            "_now",
            "_is_held",
            "_readers",
        )
        rows = self._first._rows
        stores = {"": rows} | {name: getattr(rows, name) for name in _APART}
        return {
            name: deepcopy({key: x for key, x in vars(store).items() if key not in excluded_names})
            for name, store in stores.items()
        }

    def go_back(self, rows: dict[str, Any]) -> None:
        """Replace the rows by an earlier copy, as a server that lags behind would."""
        vars(self._first._rows).update(rows[""])
        for name in _APART:
            vars(getattr(self._first._rows, name)).update(rows[name])
        self._first._rows.nudge(object(), Nudge("incarnation"))

    @asynccontextmanager
    async def host(self) -> AsyncIterator[Stead]:
        """See `Ground.host`."""
        yield Stead(self._first.sibling())

    async def send(self, agent: AgentId, payload: dict[str, Any], *, id: str) -> None:  # noqa: A002
        """See `Ground.send`."""
        await self._outside.arrivals.deliver([message_of(agent, payload, id)])

    async def submit(self, agent: AgentId, payload: dict[str, Any], *, id: str) -> None:  # noqa: A002
        """See `Ground.submit`."""
        await self._outside.arrivals.submit(*run_of(agent, payload, id))

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
        await self._outside.arrivals.signal(run_id, name, payload, message_id=id, sender=SENDER)

    async def is_settled(self) -> bool:
        """See `Ground.is_settled`."""
        return True
