"""The memory effects of a driver, and the effects MEMORY_NOTE, MEMORY_QUERY and MEMORY_TAG themselves.

A query searches spans by id, words, time, tags, authors and locations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from actors._kernel.runtime.ids import derive_id
from actors._kernel.workflow.effects import Effect, EffectOutcome, EffectType
from actors._kernel.workflow.run_state import RunState
from actors._workflow.handlers import EffectHandlers, Handler
from actors._workflow.machine.records import OpenStep
from actors._workflow.notes.compaction import Compaction, compaction_of, rehydrated
from actors._workflow.notes.compaction import content_of as content_of_span
from actors._workflow.notes.evidence import EvidenceRecorder
from actors._workflow.notes.messages import (
    PLACEMENTS,
    content_of,
    note_message,
    placed,
    summaries_in,
    without_known,
)
from actors._workflow.notes.spans import (
    NOTE,
    PREVIEW,
    SPAN_ID,
    Archive,
    Memories,
    MemoryRequest,
    Payload,
    SharedMemory,
    Span,
    SpanFilter,
    has_words,
    neighbours,
    newest_first,
    span_at,
    spans_of,
    tagged,
    text_of_index,
)
from actors.errors import ContractError

if TYPE_CHECKING:
    from actors._workflow.notes.host_memory import HostMemory  # its values need pydantic

DEFAULT_SPANS: Final = 5
DEFAULT_MESSAGES: Final = 80
LONGEST_OUTPUT: Final = 100_000
"""Maximum length of a result's text, in characters."""
LEVELS: Final[Mapping[str, tuple[int, int]]] = {
    "urgent": (3, 20),
    "standard": (10, 80),
    "deep": (50, 400),
}
"""Maximum numbers of spans and messages of a result, by the request's level of recall."""


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


def noted(request: MemoryRequest) -> EffectOutcome:
    """Store a note as an artifact, and its span in the index.

    The artifact's id is derived from the effect's idempotency key, so a second execution stores no second note.
    """
    run, payload, archive = request.run, request.payload, request.archive
    note, owner = payload.text("note"), request.memories.one(payload)
    if not note:
        raise payload.wrong("note", "is nothing to keep")
    sources = payload.get("sources")
    if not isinstance(sources, dict | None):
        raise payload.wrong("sources", "is no object")
    span_id, tags = derive_id(request.opened.key, NOTE), payload.tags()
    where = payload.text("location")
    content = {
        "note": note,
        "sources": {"run_id": run.run_id, "span_ids": [], "message_ids": []} | (sources or {}),
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


@dataclass(slots=True)
class Effort:
    """The limits of the work for a request.

    Attributes:
        level: The level of recall. Empty: the request names none, and no limit is lowered.
        spans: Maximum number of spans.
        messages: Maximum number of messages.
        deep: True if artifacts are read for words that the index does not have.
        hops: Number of neighbours in time, in each direction, that are returned with each span.
        warnings: A text for each limit that was lowered.
    """

    level: str
    spans: int
    messages: int
    deep: bool
    hops: int
    warnings: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, payload: Payload) -> Effort:
        """Return the limits that a request asks for, lowered to its level of recall."""
        level = payload.choice("recall_level", "", *LEVELS)
        made = cls(
            level=level,
            spans=payload.count("limit_spans", DEFAULT_SPANS, least=1),
            messages=payload.count("max_messages", DEFAULT_MESSAGES),
            deep=payload.flag("deep", default=level != "urgent"),
            hops=payload.count("neighbor_hops", 1) if payload.flag("connected") else 0,
        )
        if level:
            most_spans, most_messages = LEVELS[level]
            made.spans = made._lowered(payload, "limit_spans", made.spans, most_spans)
            made.messages = made._lowered(payload, "max_messages", made.messages, most_messages)
        return made

    def _lowered(self, payload: Payload, name: str, wanted: int, most: int) -> int:
        if wanted > most and payload.get(name) is not None:
            self.warnings.append(
                f"{name} {wanted} is lowered to {most} by recall_level {self.level}"
            )
        return min(wanted, most)

    def to_dict(self) -> dict[str, Any]:
        """Return the limits as JSON data."""
        applied = {"limit_spans": self.spans, "max_messages": self.messages}
        applied |= {"deep": self.deep, "connected": self.hops > 0, "neighbor_hops": self.hops}
        return {"recall_level": self.level or None, "applied": applied}


def queried(request: MemoryRequest) -> EffectOutcome:
    """Return the spans that fit all conditions of a request, the newest first, as text, as data or as both."""
    payload, archive = request.payload, request.archive
    effort, shown = Effort.of(payload), payload.choice("return", "rendered", "meta", "both")
    query = payload.text("query")
    found: list[tuple[str, Span]] = []
    near: list[tuple[str, Span]] = []
    for owner in request.memories.some(payload):
        spans = spans_of(owner.vars)
        wanted = newest_first(filter(filter_of(payload, spans).fits, spans))
        if query:
            reader = _Words(query, archive, effort, summaries_in(archive.context_of(owner)))
            wanted = reader.found_in(wanted)
        wanted = wanted[: effort.spans]
        found += [(owner.run_id, one) for one in wanted]
        near += [(owner.run_id, one) for one in neighbours(spans, wanted, effort.hops)]
    told_spans = [*found[: effort.spans], *near]
    output = _rendered(told_spans, archive, effort) if shown != "meta" else None
    meta = {
        "matches": [{**one, "owner_run_id": run_id} for run_id, one in told_spans],
        "span_ids": [one[SPAN_ID] for _, one in told_spans],
        "effort": effort.to_dict(),
        "warnings": effort.warnings,
    }
    return request.met(output, meta if shown != "rendered" else None)


def filter_of(payload: Payload, spans: list[Span]) -> SpanFilter:
    """Return the filter of a request. Ids that are numbers are places in the index."""
    named = payload.names("span_ids", "span_id")
    ids = [found[SPAN_ID] if (found := span_at(spans, one)) else one for one in named]
    return SpanFilter(
        ids=ids,
        since=payload.instant("since"),
        until=payload.instant("until"),
        tags=payload.wanted_tags(),
        any_tag=payload.choice("tags_mode", "all", "any") == "any",
        authors=payload.names("authors", "author", "created_by"),
        locations=payload.names("locations", "location"),
    )


@dataclass(frozen=True, slots=True)
class _Words:
    """A search for words in the index and the summaries of a context, then in the artifacts."""

    query: str
    archive: Archive
    effort: Effort
    summaries: Mapping[str, str]

    def found_in(self, spans: list[Span]) -> list[Span]:
        """Return the first spans that have the words. Artifacts are read only until enough spans are found."""
        return [*islice(filter(self._has, spans), self.effort.spans)]

    def _has(self, span: Span) -> bool:
        if has_words(text_of_index(span, self.summaries), self.query):
            return True
        messages = content_of_span(self.archive, span[SPAN_ID])[1] if self.effort.deep else []
        return has_words("\n".join(map(content_of, messages)), self.query)


def _rendered(found: list[tuple[str, Span]], archive: Archive, effort: Effort) -> str:
    parts, room = [], effort.messages
    for _, one in found:
        messages = content_of_span(archive, one[SPAN_ID])[1]
        head = [f"span_id={one[SPAN_ID]}", f"kind={one.get('kind')}"]
        head += [
            f"{name}={one[name]}" for name in ("from_timestamp", "to_timestamp") if one.get(name)
        ]
        head += [f"{name}={value}" for name, value in (one.get("tags") or {}).items()]
        lines = [f"{each.get('role')}: {content_of(each)}" for each in messages[:room]]
        left = len(messages) - len(lines)
        room -= len(lines)
        more = (
            [f"({left} more messages: raise max_messages, or rehydrate the span)"] if left else []
        )
        parts.append("\n".join([f"[{' '.join(head)}]", *lines, *more]))
    text = "\n\n".join(parts) or "Nothing was found."
    if len(text) <= LONGEST_OUTPUT:
        return text
    return (
        f"{text[:LONGEST_OUTPUT]}\n(cut: {len(text)} characters. Ask for fewer spans or messages)"
    )


_EFFECTS: Final[dict[EffectType, Callable[[MemoryRequest], EffectOutcome]]] = {
    EffectType.MEMORY_NOTE: noted,
    EffectType.MEMORY_QUERY: queried,
    EffectType.MEMORY_TAG: tag,
    EffectType.MEMORY_REHYDRATE: rehydrated,
}
MEMORY_EFFECTS: Final = frozenset({*_EFFECTS, EffectType.MEMORY_COMPACT})
