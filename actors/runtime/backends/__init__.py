"""The in-memory parts, and the views that give every store the sources' Protocols."""

from actors.runtime.backends._event_log import InMemoryEventLog
from actors.runtime.backends._fanout import HybridFanout, PushAllFanout, StoreFanout
from actors.runtime.backends._follow_graph import InMemoryFollowGraph
from actors.runtime.backends._history import InMemoryHistoryProvider
from actors.runtime.backends._inbox import InMemoryInbox
from actors.runtime.backends._journal import InMemoryJournal
from actors.runtime.backends._scheduler import InMemoryScheduler
from actors.runtime.backends._signal_bus import InMemorySignalBus
from actors.runtime.backends._supervisor import SupervisorView
from actors.runtime.backends.composed import ComposedStore
from actors.runtime.backends.memory import MemoryStore
from actors.runtime.backends.views import (
    EventLogView,
    InboxView,
    JournalView,
    SchedulerView,
    SignalBusView,
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
