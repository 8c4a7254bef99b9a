"""The parts that a program can hand in instead of a store: one per Protocol of `kernel`.

An event log, inbox, journal, scheduler, signal bus, fan-out, follow graph or supervisor enters; `assembly`
makes one store of them and leaves it to `runtime.runtime`. Views give each store those Protocols. Only
the rooms at the top see this one; below it are `actors.inmemory` and what the parts share with a host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.exports import lazy_exports

if TYPE_CHECKING:
    from actors.context.history import InMemoryHistoryProvider
    from actors.inmemory.runs.store import MemoryStore
    from actors.runtime.parts.composed import ComposedStore
    from actors.runtime.parts.inbox import InboxView, InMemoryInbox
    from actors.runtime.parts.logs import (
        EventLogView,
        InMemoryEventLog,
        InMemoryJournal,
        JournalView,
    )
    from actors.runtime.parts.scheduler import InMemoryScheduler, SchedulerView
    from actors.runtime.parts.signal_bus import InMemorySignalBus, SignalBusView
    from actors.runtime.parts.supervisor import SupervisorView
    from actors.runtime.parts.topics import (
        HybridFanout,
        InMemoryFollowGraph,
        PushAllFanout,
        StoreFanout,
    )
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "actors.context.history": ("InMemoryHistoryProvider",),
            "actors.inmemory.runs.store": ("MemoryStore",),
            "actors.runtime.parts.composed": ("ComposedStore",),
            "actors.runtime.parts.logs": (
                "EventLogView",
                "InMemoryEventLog",
                "InMemoryJournal",
                "JournalView",
            ),
            "actors.runtime.parts.topics": (
                "HybridFanout",
                "PushAllFanout",
                "StoreFanout",
                "InMemoryFollowGraph",
            ),
            "actors.runtime.parts.inbox": ("InboxView", "InMemoryInbox"),
            "actors.runtime.parts.scheduler": ("InMemoryScheduler", "SchedulerView"),
            "actors.runtime.parts.signal_bus": ("InMemorySignalBus", "SignalBusView"),
            "actors.runtime.parts.supervisor": ("SupervisorView",),
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
