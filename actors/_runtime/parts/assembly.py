"""The sources' eight parts of a runtime: the injected ones, else views over its one store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from actors._kernel.basics import Clock, Entropy
from actors._kernel.runtime.effects import Journal
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import ShardId
from actors._kernel.runtime.log_entry import EventLog
from actors._kernel.runtime.scheduler import Scheduler
from actors._kernel.runtime.sources import Inbox
from actors._kernel.runtime.waits import SignalBus
from actors._kernel.stores.run_store import RunStore
from actors._kernel.stores.topics import FanoutStrategy, FollowGraph
from actors._runtime.parts.inbox import InboxView
from actors._runtime.parts.logs import EventLogView, JournalView
from actors._runtime.parts.scheduler import SchedulerView
from actors._runtime.parts.signal_bus import SignalBusView
from actors._runtime.parts.topics import PushAllFanout, StoreFanout
from actors._runtime.verbs.messaging import Topics
from actors._runtime.worker.worker import Worker
from actors.errors import ContractError


@dataclass(frozen=True, slots=True)
class Foreign:
    """Parts that were handed in; None for those that are views over the store."""

    event_log: EventLog | None = None
    inbox: Inbox | None = None
    journal: Journal | None = None
    scheduler: Scheduler | None = None
    signal_bus: SignalBus | None = None
    follow_graph: FollowGraph | None = None
    fanout: FanoutStrategy | None = None

    def store(self, store: RunStore | None, clock: Clock) -> RunStore:
        """Return the given store, one composed of these parts, or one in memory.

        Raises:
            ContractError: Both a store and parts of one are given.
        """
        rows = (self.event_log, self.inbox, self.journal, self.scheduler, self.signal_bus)
        if not any(part is not None for part in rows):
            if store is not None:
                return store
            from actors._inmemory.runs.store import MemoryStore  # noqa: PLC0415 - hosts need none

            return MemoryStore(clock=clock)
        if store is not None:
            msg = "Runtime takes a store, or parts to compose one of, not both"
            raise ContractError(msg)
        from actors._runtime.parts.composed import ComposedStore  # noqa: PLC0415 - rows in memory

        return ComposedStore(
            clock=clock,
            event_log=self.event_log,
            inbox=self.inbox,
            journal=self.journal,
            scheduler=self.scheduler,
            signal_bus=self.signal_bus,
        )


class Parts:
    """Event log, inbox, journal, scheduler, signal bus, follow graph and fan-out of one runtime."""

    def __init__(
        self,
        store: RunStore,
        foreign: Foreign,
        *,
        clock: Clock,
        entropy: Entropy,
        worker: Worker,
        on_nudge: Callable[[Nudge], None] = lambda _: None,
    ) -> None:
        def shards() -> list[ShardId]:
            return [lease.shard for lease in worker.held.leases]

        lease_of = worker.lease_of
        self.event_log = foreign.event_log or EventLogView(store, lease_of=lease_of)
        self.inbox = foreign.inbox or InboxView(store, lease_of=lease_of, clock=clock)
        self.journal = foreign.journal or JournalView(store, shards=shards)
        self.scheduler = foreign.scheduler or SchedulerView(
            store, lease_of=lease_of, shards=shards, clock=clock, entropy=entropy
        )
        self.signal_bus = foreign.signal_bus or SignalBusView(
            store,
            lease_of=lease_of,
            clock=clock,
            entropy=entropy,
            wake=lambda agent_id, run_id: worker.intake.signalled(run_id, agent_id),
        )
        self.follow_graph = foreign.follow_graph or store.follows
        self.fanout: FanoutStrategy
        if foreign.fanout is not None:
            self.fanout = foreign.fanout
        elif foreign.follow_graph is not None:
            self.fanout = PushAllFanout()  # followers of another graph have no rows here
        else:
            self.fanout = StoreFanout(store.posts, on_nudge=on_nudge)
        self.topics = Topics(
            self.follow_graph,
            self.fanout,
            self.inbox,
            is_foreign_graph=foreign.follow_graph is not None,
            is_foreign_fanout=foreign.fanout is not None or foreign.follow_graph is not None,
        )
