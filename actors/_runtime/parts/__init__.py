"""The parts that a program can hand in instead of a store: one per Protocol of `kernel`.

An event log, inbox, journal, scheduler, signal bus, fan-out, follow graph or supervisor enters; `assembly`
makes one store of them and leaves it to `runtime.runtime`. Views give each store those Protocols. Only
the rooms at the top see this one; below it are `actors._inmemory` and what the parts share with a host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors._exports import lazy_exports

if TYPE_CHECKING:
    from actors._context.history import InMemoryHistoryProvider
    from actors._inmemory.runs.store import MemoryStore
    from actors._runtime.parts.composed import ComposedStore
    from actors._runtime.parts.inbox import InboxView, InMemoryInbox
    from actors._runtime.parts.logs import (
        EventLogView,
        InMemoryEventLog,
        InMemoryJournal,
        JournalView,
    )
    from actors._runtime.parts.scheduler import InMemoryScheduler, SchedulerView
    from actors._runtime.parts.signal_bus import InMemorySignalBus, SignalBusView
    from actors._runtime.parts.supervisor import SupervisorView
    from actors._runtime.parts.topics import (
        HybridFanout,
        InMemoryFollowGraph,
        PushAllFanout,
        StoreFanout,
    )
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "actors._context.history": ("InMemoryHistoryProvider",),
            "actors._inmemory.runs.store": ("MemoryStore",),
            "actors._runtime.parts.composed": ("ComposedStore",),
            "actors._runtime.parts.logs": (
                "EventLogView",
                "InMemoryEventLog",
                "InMemoryJournal",
                "JournalView",
            ),
            "actors._runtime.parts.topics": (
                "HybridFanout",
                "PushAllFanout",
                "StoreFanout",
                "InMemoryFollowGraph",
            ),
            "actors._runtime.parts.inbox": ("InboxView", "InMemoryInbox"),
            "actors._runtime.parts.scheduler": ("InMemoryScheduler", "SchedulerView"),
            "actors._runtime.parts.signal_bus": ("InMemorySignalBus", "SignalBusView"),
            "actors._runtime.parts.supervisor": ("SupervisorView",),
        },
    )

__all__ = [
    "ComposedStore",
    "EventLogView",
    "HybridFanout",
    "InMemoryEventLog",
    "InMemoryFollowGraph",
    "InMemoryHistoryProvider",
    "InMemoryInbox",
    "InMemoryJournal",
    "InMemoryScheduler",
    "InMemorySignalBus",
    "InboxView",
    "JournalView",
    "MemoryStore",
    "PushAllFanout",
    "SchedulerView",
    "SignalBusView",
    "StoreFanout",
    "SupervisorView",
]
