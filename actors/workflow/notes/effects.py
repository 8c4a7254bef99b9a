"""The memory effects in the form in which both drivers execute them.

The effects MEMORY_NOTE and MEMORY_TAG.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from actors.errors import ContractError
from actors.kernel.runtime.ids import derive_id
from actors.kernel.workflow.effects import Effect, EffectOutcome, EffectType
from actors.kernel.workflow.run_state import RunState
from actors.workflow.handlers import EffectHandlers, Handler
from actors.workflow.machine.records import OpenStep
from actors.workflow.notes.compaction import Compaction, compaction_of, rehydrated
from actors.workflow.notes.evidence import EvidenceRecorder
from actors.workflow.notes.messages import PLACEMENTS, note_message, placed, without_known
from actors.workflow.notes.queries import queried
from actors.workflow.notes.spans import (
    NOTE,
    PREVIEW,
    SPAN_ID,
    Archive,
    Memories,
    MemoryRequest,
    Payload,
    SharedMemory,
    Span,
    span_at,
    spans_of,
    tagged,
)

if TYPE_CHECKING:
    from actors.workflow.notes.host_memory import HostMemory


def noted(request: MemoryRequest) -> EffectOutcome:
    """Store a note as an artifact, and its span in the index.

    The artifact's id is derived from the effect's idempotency key, so a second execution stores no second note.
    """
    run, payload, archive = request.run, request.payload, request.archive
    note, owner = payload.text("note"), request.memories.one(payload)
    if not note:
        raise payload.wrong("note", "is nothing to keep")
    span_id, tags = derive_id(request.opened.key, NOTE), payload.tags()
    where = payload.text("location")
    content = {
        "note": note,
        "sources": _sources(payload, run.run_id),
        "created_at": request.at,
        "tags": tags,
        "location": where or None,
        "created_by": run.actor_id,
        "session_id": run.session_id,
    }
    kept = archive.kept(span_id, content, run_id=owner.run_id, tags={**tags, "kind": NOTE})
    span = _span(span_id, kept)
    meta: dict[str, Any] = {"span_id": span_id, **span}
    changes: dict[str, Any] = {**request.memories.put(owner, span)}
    if payload.flag("keep_in_context"):
        before = archive.context_of(run)
        fresh = without_known([note_message(span_id, note, kept["created_at"])], before)
        if fresh:
            after = placed(before, [(span_id, fresh)], payload.choice("placement", *PLACEMENTS))
            changes["set"] = [archive.changed_context(run, after)]
        meta["kept_in_context"] = {"inserted": len(fresh), "skipped": 1 - len(fresh)}
    return request.met(f"Noted: span_id={span_id}", meta, changes=changes)


def _sources(payload: Payload, run_id: str) -> dict[str, Any]:
    given = payload.get("sources")
    if not isinstance(given, dict | None):
        raise payload.wrong("sources", "is no object")
    return {"run_id": run_id, "span_ids": [], "message_ids": []} | (given or {})


def _span(span_id: str, kept: dict[str, Any]) -> Span:
    made = kept["created_at"]
    span: Span = {"kind": NOTE, SPAN_ID: span_id, "created_at": made}
    span |= {"from_timestamp": made, "to_timestamp": made, "message_count": 0}
    span["note_preview"] = kept["note"][:PREVIEW]
    more = {name: kept.get(name) for name in ("tags", "location", "created_by")}
    return span | {name: value for name, value in more.items() if value}


def tag(request: MemoryRequest) -> EffectOutcome:
    """Add tags to a span, or replace its tags. The artifact stays as it is."""
    payload = request.payload
    tags, merge = payload.tags(), payload.flag("merge", default=True)
    if not tags and merge:
        raise payload.wrong("tags", "is nothing to add")
    owner, wanted = request.memories.one(payload), payload.get("span_id")
    spans = spans_of(owner.vars)
    found = span_at(spans, wanted)
    if found is None:
        known = f"its index has {len(spans)} spans: list them by memory_query with return='meta'"
        return request.refused(f"there is no span {wanted!r} in run {owner.run_id}; {known}")
    span = tagged(found, tags, merge=merge)
    meta = {"span_id": span[SPAN_ID], "tags": span["tags"]}
    changes = request.memories.put(owner, span)
    return request.met(f"Tagged: span_id={span[SPAN_ID]}", meta, changes=changes)


_EFFECTS: Final[dict[EffectType, Callable[[MemoryRequest], EffectOutcome]]] = {
    EffectType.MEMORY_NOTE: noted,
    EffectType.MEMORY_QUERY: queried,
    EffectType.MEMORY_TAG: tag,
    EffectType.MEMORY_REHYDRATE: rehydrated,
}
MEMORY_EFFECTS: Final = frozenset({*_EFFECTS, EffectType.MEMORY_COMPACT})


class MemoryEffects:
    """The memory effects of a driver.

    Args:
        store: Function that returns the artifact store, or None.
        shared: The memory of other runs, for `outcome`.
        handlers: The host's handlers. Their LLM_CALL makes summaries.
        summarizer: A handler that makes summaries instead of LLM_CALL, see `summarizing`.
    """

    def __init__(
        self,
        *,
        store: Callable[[], Any],
        shared: SharedMemory | None = None,
        handlers: EffectHandlers,
        summarizer: Handler | None = None,
    ) -> None:
        self._store, self._shared = store, shared
        self._has_summarizer = summarizer is not None
        own = {EffectType.MEMORY_COMPACT: summarizer} if summarizer is not None else {}
        self._summaries = EffectHandlers(own) if own else handlers

    def lacks(self, kind: EffectType) -> str:
        """Return the parameter that a memory effect needs and the driver does not have.

        Empty: the driver has all.
        """
        compacts = kind is EffectType.MEMORY_COMPACT and not self._has_summarizer
        if compacts and EffectType.LLM_CALL not in self._summaries:
            return "chat_summarizer"
        is_kept = kind in MEMORY_EFFECTS and kind is not EffectType.MEMORY_TAG
        return "artifact_store" if is_kept and self._store() is None else ""

    def outcome(self, run: RunState, opened: OpenStep, at: str) -> EffectOutcome:
        """Return the outcome of one attempt."""
        assert self._shared is not None
        found = self._begun(run, opened, at, self._shared)
        if isinstance(found, EffectOutcome):
            return found
        return found.ended(self._summaries.call(run, self._asked(found), None))

    async def awaited(
        self, run: RunState, opened: OpenStep, at: str, shared: HostMemory
    ) -> EffectOutcome:
        """Return the same as `outcome`. The handler that makes summaries may be a coroutine function.

        Spans that the effect puts into the memory `shared` are durable when this returns.
        """
        try:
            await shared.load(run, opened)
            found = self._begun(run, opened, at, shared)
            await shared.keep()
        except ContractError as exc:
            return EffectOutcome.failed(str(exc), retryable=False)
        except Exception as exc:  # noqa: BLE001 - a failure of the store, which is recorded
            return EffectOutcome.failed(f"{type(exc).__name__}: {exc}")
        if isinstance(found, EffectOutcome):
            return found
        return found.ended(await self._summaries.awaited(run, self._asked(found), None))

    def evidenced(
        self, outcome: Any, run: RunState, opened: OpenStep, now: Callable[[], str]
    ) -> Any:
        """Return the outcome of a handler of TOOL_CALLS with the evidence of its calls.

        `now` returns the instant.
        """
        store = self._store()
        is_kept = store is not None and opened.effect.type is EffectType.TOOL_CALLS
        if not is_kept or not isinstance(outcome, EffectOutcome):
            return outcome
        return EvidenceRecorder(store).recorded(outcome, run, opened, now())

    def _asked(self, found: Compaction) -> Effect:
        return found.asked_of_summarizer() if self._has_summarizer else found.asked_of_model()

    def _begun(
        self, run: RunState, opened: OpenStep, at: str, shared: SharedMemory
    ) -> EffectOutcome | Compaction:
        try:
            return self._done(run, opened, at, shared)
        except ContractError as exc:
            return EffectOutcome.failed(str(exc), retryable=False)
        except Exception as exc:  # noqa: BLE001 - a failure of the store, which is recorded
            return EffectOutcome.failed(f"{type(exc).__name__}: {exc}")

    def _done(
        self, run: RunState, opened: OpenStep, at: str, shared: SharedMemory
    ) -> EffectOutcome | Compaction:
        kind = opened.effect.type
        request = MemoryRequest(
            run=run,
            opened=opened,
            at=at,
            payload=Payload(kind.value, opened.effect.payload),
            archive=Archive(self._store(), kind.value),
            memories=Memories(run, shared),
        )
        effect = _EFFECTS.get(kind)
        if effect is not None:
            return effect(request)
        nothing = {"span_id": None, "compacted": 0}
        return compaction_of(request) or request.met("There is nothing to compact.", nothing)
