"""The event log and the journal: a view over one RunStore of each, and one in memory.

The journal in memory is a dict of the results of effects; its view finds them in logs as well.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Final

from typing_extensions import override

from actors._inmemory.runs.records import pack, unpack
from actors._kernel.basics import Clock
from actors._kernel.runtime.commit import CONTINUE
from actors._kernel.runtime.effects import EffectId, EffectResult
from actors._kernel.runtime.ids import AgentId, RunId, ShardId, derive_id
from actors._kernel.runtime.log_entry import EntryKind, NewEntry, RunLogEntry, check_entry
from actors._kernel.runtime.rows import NewRun
from actors._kernel.stores.run_store import RunStore
from actors._runtime.parts.inbox import StoreView
from actors._runtime.replay.verdict import row_of


class EventLogView(StoreView):
    """The `EventLog` of a store. Appends go through the store's fence, to runs that exist."""

    async def append(self, run_id: RunId, entry: NewEntry, *, expected_seq: int) -> int:
        """Append an entry and return its seq. An ended run takes no entry.

        Raises:
            UnknownRunError: There is no such run.
            IllegalTransitionError: It has ended.
        """
        check_entry(entry)
        row = await row_of(self._store, run_id)
        lease = self._lease(run_id, row.agent_id, attempt=max(row.attempt, 1))
        return await self._store.commits.append(lease, [entry], expected_seq=expected_seq)

    def read(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        """Yield the entries of a log from `from_seq` to its present end."""
        return self._store.reads.entries(run_id, from_seq=from_seq)

    def tail(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        """Yield the entries of a log from `from_seq`, then new ones as they come."""
        return self._store.reads.tail(run_id, from_seq=from_seq)

    async def last_seq(self, run_id: RunId) -> int:
        """Return the last seq of a log, -1 if it is empty."""
        row = await self._store.reads.run(run_id)
        return -1 if row is None else row.last_seq


class InMemoryEventLog(EventLogView):
    """An `EventLog` in memory. Nothing survives the process."""

    def __init__(self, *, clock: Clock) -> None:
        from actors._inmemory.runs.store import PrivateStore  # noqa: PLC0415 - a store in memory

        store = PrivateStore(clock=clock)
        super().__init__(store, lease_of=store.lease_of)

    @override
    async def append(self, run_id: RunId, entry: NewEntry, *, expected_seq: int) -> int:
        """Append an entry and return its seq. The first entry makes its run; a log has no end."""
        run = NewRun(run_id, AgentId("log", derive_id(run_id)))
        lease = self._lease(run_id, run.agent_id, attempt=1)
        commit = await self._write(lease, expected_seq, entry, then=CONTINUE, create=run)
        return commit.last_seq


RESULT_KINDS: Final = frozenset(
    {EntryKind.EFFECT_RESULT, EntryKind.TOOL_RESULT, EntryKind.LLM_CALL}
)
_PAGE: Final = 200


class InMemoryJournal:
    """A `Journal` in memory. Nothing survives the process."""

    def __init__(self) -> None:
        self._results: dict[EffectId, tuple[EffectResult, bytes]] = {}

    async def lookup(self, effect_id: EffectId) -> EffectResult | None:
        """Return the result of an effect, or None if there is none."""
        entry = self._results.get(effect_id)
        return replace(entry[0], value=unpack(entry[1])) if entry else None

    async def record(self, result: EffectResult) -> None:
        """Keep the result of an effect; the first one counts."""
        shell = replace(result, value=None)
        self._results.setdefault(result.effect_id, (shell, pack(result.value)))


class JournalView(InMemoryJournal):
    """The `Journal` of a store. The log is the journal of record: results are found in the logs of open runs.

    A lookup reads those logs, newest run first: it is for recovery and for people, not for the path
    of an effect. `record` alone lasts as long as the process; durable is what is in the log.
    """

    def __init__(self, store: RunStore, *, shards: Callable[[], Sequence[ShardId]]) -> None:
        super().__init__()
        self._store, self._shards = store, shards

    @override
    async def lookup(self, effect_id: EffectId) -> EffectResult | None:
        return await super().lookup(effect_id) or await self._logged(effect_id)

    @override
    async def record(self, result: EffectResult) -> None:
        """Keep the result of an effect; the first one counts. What the log says comes first."""
        await super().record(await self._logged(result.effect_id) or result)

    async def _logged(self, effect_id: EffectId) -> EffectResult | None:
        after: RunId | None = None
        shards = list(self._shards())
        while page := await self._store.backlog.open_runs(shards, after=after, limit=_PAGE):
            for run in await self._store.reads.load([row.run_id for row in page]):
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
