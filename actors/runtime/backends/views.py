"""The sources' Protocols over one RunStore, so that every assembly offers them.

`EventLogView`, `JournalView`, `InboxView`, `SchedulerView` and `SignalBusView` keep nothing that
matters: what they write is rows of the store, under the leases of this host.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from actors.errors import IllegalTransitionError
from actors.kernel.runtime.commit import Suspend
from actors.kernel.runtime.effects import EffectResult
from actors.kernel.runtime.log_entry import EntryKind, NewEntry, check_entry
from actors.kernel.runtime.scheduler import RunStatus
from actors.kernel.runtime.wakeup import WakeSet
from actors.runtime.backends._inbox_view import InboxView
from actors.runtime.backends._journal import InMemoryJournal
from actors.runtime.backends._scheduler_view import ReadyRuns, SchedulerView
from actors.runtime.backends._view_parts import Author, LeaseOf

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from datetime import datetime

    from actors.kernel.clock import Clock, Entropy
    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.effects import EffectId
    from actors.kernel.runtime.ids import AgentId, RunId, ShardId
    from actors.kernel.runtime.log_entry import RunLogEntry
    from actors.kernel.runtime.store import RunStore

BUS_SENDER: Final = "client:signal-bus"
RESULT_KINDS: Final = frozenset(
    {EntryKind.EFFECT_RESULT, EntryKind.TOOL_RESULT, EntryKind.LLM_CALL}
)
_PAGE: Final = 200


class EventLogView:
    """See `EventLog`. Appends go through the store's fence, to runs that exist."""

    def __init__(self, store: RunStore, *, lease_of: LeaseOf) -> None:
        self._store = store
        self._author = Author(store, lease_of)

    async def append(self, run_id: RunId, entry: NewEntry, *, expected_seq: int) -> int:
        """See `EventLog.append`. An ended run takes no entry.

        Raises:
            UnknownRunError: There is no such run.
            IllegalTransitionError: It has ended.
        """
        check_entry(entry)
        row = await self._author.row(run_id)
        lease = self._author.lease(run_id, row.agent_id, attempt=max(row.attempt, 1))
        return await self._store.append(lease, [entry], expected_seq=expected_seq)

    def read(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        """See `EventLog.read`."""
        return self._store.entries(run_id, from_seq=from_seq)

    def tail(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        """See `EventLog.tail`."""
        return self._store.tail(run_id, from_seq=from_seq)

    async def last_seq(self, run_id: RunId) -> int:
        """See `EventLog.last_seq`."""
        row = await self._store.run(run_id)
        return -1 if row is None else row.last_seq


class JournalView:
    """See `Journal`. The log is the journal of record: results are found in the logs of open runs.

    A lookup reads those logs, newest run first: it is for recovery and for people, not for the path
    of an effect. `record` alone lasts as long as the process; durable is what is in the log.
    """

    def __init__(self, store: RunStore, *, shards: Callable[[], Sequence[ShardId]]) -> None:
        self._store = store
        self._shards = shards
        self._notes = InMemoryJournal()

    async def lookup(self, effect_id: EffectId) -> EffectResult | None:
        """See `Journal.lookup`."""
        noted = await self._notes.lookup(effect_id)
        return noted or await self._logged(effect_id)

    async def record(self, result: EffectResult) -> None:
        """See `Journal.record`. What the log says comes first."""
        await self._notes.record(await self._logged(result.effect_id) or result)

    async def _logged(self, effect_id: EffectId) -> EffectResult | None:
        after: RunId | None = None
        shards = list(self._shards())
        while page := await self._store.open_runs(shards, after=after, limit=_PAGE):
            for run in await self._store.load([row.run_id for row in page]):
                for entry in run.entries:
                    if entry.kind in RESULT_KINDS and entry.payload.get("id") == effect_id:
                        return result_of(entry)
            after = page[-1].run_id
        return None


def result_of(entry: RunLogEntry | NewEntry) -> EffectResult:
    """Return what an entry of kind effect.result, tool.result or llm.call recorded."""
    effect_id, error = str(entry.payload["id"]), entry.payload.get("error")
    if entry.payload.get("status") == "ok" or not isinstance(error, dict):
        return EffectResult(effect_id, "ok", entry.payload.get("value"))
    return EffectResult(effect_id, "error", error.get("message"), str(error.get("type")))


class SignalBusView:
    """See `SignalBus`. Signals are rows; a timer is part of a suspended run's wake set.

    Args:
        store: Whose rows these are.
        lease_of: This host's shard leases.
        clock: What a timer is compared with.
        entropy: Names each signal; sending one again is a new one here.
        wake: Called when something came for a run of this process.
    """

    def __init__(
        self,
        store: RunStore,
        *,
        lease_of: LeaseOf,
        clock: Clock,
        entropy: Entropy,
        wake: Callable[[AgentId, RunId], None] | None = None,
    ) -> None:
        self._store = store
        self._author = Author(store, lease_of)
        self._clock, self._entropy = clock, entropy
        self._wake = wake

    async def signal(self, run_id: RunId, name: str, payload: dict[str, JsonValue]) -> None:
        """See `SignalBus.signal`. Dropped when the run has ended.

        Raises:
            UnknownRunError: There is no such run.
        """
        outcome = await self._store.signal(
            run_id, name, payload, message_id=self._entropy.token(), sender=BUS_SENDER
        )
        if outcome.accepted and outcome.agent_id is not None and self._wake is not None:
            self._wake(outcome.agent_id, run_id)

    async def timer(self, run_id: RunId, at: datetime) -> None:
        """See `SignalBus.timer`. An earlier timer of the run stays; an ended run has none.

        Raises:
            UnknownRunError: There is no such run.
            IllegalTransitionError: It executes, or waits for its first or next attempt: only a
                suspended run waits for a timer, and a running one sets its own.
        """
        row = await self._author.row(run_id)
        if row.status.is_terminal:
            return
        if row.status is not RunStatus.SUSPENDED or row.parked is not None:
            raise IllegalTransitionError(run_id, row.status, RunStatus.SUSPENDED)
        wake = row.wake or WakeSet()
        if wake.at is None or at < wake.at:
            wake = replace(wake, at=at)
            lease = self._author.lease(run_id, row.agent_id, attempt=row.attempt)
            entry = NewEntry(EntryKind.RUN_SUSPENDED, "", {"wake": wake.to_json()})
            await self._author.write(lease, row.last_seq, entry, then=Suspend(wake))
        if at <= self._clock.now() and self._wake is not None:
            self._wake(row.agent_id, run_id)


__all__ = [
    "RESULT_KINDS",
    "EventLogView",
    "InboxView",
    "JournalView",
    "LeaseOf",
    "ReadyRuns",
    "SchedulerView",
    "SignalBusView",
    "result_of",
]
