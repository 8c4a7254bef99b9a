"""The journal: results of effects in a dict, and a view that finds them in logs as well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from typing_extensions import override

from actors.inmemory.runs.records import pack, unpack
from actors.kernel.runtime.effects import EffectId, EffectResult
from actors.kernel.runtime.ids import RunId, ShardId
from actors.kernel.runtime.log_entry import EntryKind, NewEntry, RunLogEntry
from actors.kernel.stores.run_store import RunStore

RESULT_KINDS: Final = frozenset(
    {EntryKind.EFFECT_RESULT, EntryKind.TOOL_RESULT, EntryKind.LLM_CALL}
)
_PAGE: Final = 200


class InMemoryJournal:
    """See `Journal`. Nothing survives the process."""

    def __init__(self) -> None:
        self._results: dict[EffectId, tuple[EffectResult, bytes]] = {}

    async def lookup(self, effect_id: EffectId) -> EffectResult | None:
        """See `Journal.lookup`."""
        found = self._results.get(effect_id)
        return replace(found[0], value=unpack(found[1])) if found else None

    async def record(self, result: EffectResult) -> None:
        """See `Journal.record`."""
        shell = replace(result, value=None)
        self._results.setdefault(result.effect_id, (shell, pack(result.value)))


class JournalView(InMemoryJournal):
    """See `Journal`. The log is the journal of record: results are found in the logs of open runs.

    A lookup reads those logs, newest run first: it is for recovery and for people, not for the path
    of an effect. `record` alone lasts as long as the process; durable is what is in the log.
    """

    def __init__(self, store: RunStore, *, shards: Callable[[], Sequence[ShardId]]) -> None:
        super().__init__()
        self._store, self._shards = store, shards

    @override
    async def lookup(self, effect_id: EffectId) -> EffectResult | None:
        """See `Journal.lookup`."""
        return await super().lookup(effect_id) or await self._logged(effect_id)

    @override
    async def record(self, result: EffectResult) -> None:
        """See `Journal.record`. What the log says comes first."""
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
