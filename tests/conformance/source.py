"""Single parts under test: the in-memory class, or a view over a store."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import pytest

from actors._kernel.runtime.ids import AgentId, RunId
from actors._runtime.parts import (
    EventLogView,
    InboxView,
    InMemoryEventLog,
    InMemoryInbox,
    InMemoryJournal,
    InMemoryScheduler,
    InMemorySignalBus,
    JournalView,
    SchedulerView,
    SignalBusView,
)
from tests.conformance.bed import DESK, Turns
from tests.conformance.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from actors._kernel.basics import Clock
    from actors._kernel.runtime.effects import Journal
    from actors._kernel.runtime.log_entry import EventLog
    from actors._kernel.runtime.scheduler import Scheduler
    from actors._kernel.runtime.sources import Inbox
    from actors._kernel.runtime.waits import SignalBus
    from tests.conformance.bed import Bed

Capability: TypeAlias = Literal["clock", "lease expiry"]
"""clock: the test can let time pass. lease expiry: one run's lease ends without a heartbeat."""

_SHARD: Final = "a run's lease lasts as long as its shard's"
LACKS: Final[Mapping[str, Mapping[Capability, str]]] = {
    "in-memory": {},
    "memory-view": {"lease expiry": _SHARD},
    "postgres-view": {"lease expiry": _SHARD, "clock": "time is the database's"},
}
"""What a source cannot do, and why. A test of it is skipped by name, never silently."""


class FixedEntropy:
    """See `Entropy`. No jitter: `random` is always one half."""

    def random(self) -> float:
        """See `Entropy.random`."""
        return 0.5

    def token(self) -> str:
        """See `Entropy.token`."""
        return uuid.uuid4().hex


@dataclass
class Source:
    """Makes one part of each Protocol."""

    kind: str
    clock: Clock
    bed: Bed | None = None
    entropy: FixedEntropy = field(default_factory=FixedEntropy)

    def needs(self, capability: Capability) -> None:
        """Skip the test where this is declared to be missing."""
        reason = LACKS[self.kind].get(capability)
        if reason is not None:
            pytest.skip(f"{self.kind} lacks {capability}: {reason}")

    def advance(self, seconds: float) -> None:
        """Let time pass; needs the capability ``clock``."""
        assert isinstance(self.clock, ManualClock)
        self.clock.advance(seconds)

    async def new_run(self, agent: AgentId = DESK) -> RunId:
        """A run without entries."""
        if self.bed is None:
            return RunId(uuid.uuid4().hex)
        return (await self.bed.submit(agent=agent, id=uuid.uuid4().hex)).run_id

    async def turns_of(self, run_id: RunId) -> Turns:
        """A run of a view's store, to be driven beside the view."""
        assert self.bed is not None
        return await Turns(self.bed, run_id).start()

    def event_log(self) -> EventLog:
        """An `EventLog`."""
        if self.bed is None:
            return InMemoryEventLog(clock=self.clock)
        return EventLogView(self.bed.store, lease_of=self.bed.lease_of)

    def journal(self) -> Journal:
        """A `Journal`."""
        if self.bed is None:
            return InMemoryJournal()
        bed = self.bed
        return JournalView(bed.store, shards=lambda: bed.shards)

    def inbox(self, *, max_retries: int = 3) -> Inbox:
        """An `Inbox`."""
        if self.bed is None:
            return InMemoryInbox(clock=self.clock, max_retries=max_retries)
        return InboxView(
            self.bed.store, lease_of=self.bed.lease_of, clock=self.clock, max_retries=max_retries
        )

    def scheduler(self) -> Scheduler:
        """A `Scheduler`."""
        if self.bed is None:
            return InMemoryScheduler(clock=self.clock, entropy=self.entropy)
        bed = self.bed
        return SchedulerView(
            bed.store,
            lease_of=bed.lease_of,
            shards=lambda: bed.shards,
            clock=self.clock,
            entropy=self.entropy,
        )

    def signal_bus(self, wake: Callable[[RunId], None] | None = None) -> SignalBus:
        """A `SignalBus`."""
        if self.bed is None:
            return InMemorySignalBus(clock=self.clock, wake=wake)
        return SignalBusView(
            self.bed.store,
            lease_of=self.bed.lease_of,
            clock=self.clock,
            entropy=self.entropy,
            wake=None if wake is None else lambda _agent, run_id: wake(run_id),
        )
