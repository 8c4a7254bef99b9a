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
from actors._workflow.notes.compaction import Compaction, compaction_of, rehydrate_spans
from actors._workflow.notes.compaction import content_of as content_of_span
from actors._workflow.notes.evidence import EvidenceRecorder
from actors._workflow.notes.messages import (
    PLACEMENTS,
    content_of,
    insert_messages,
    note_message,
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
    text_of_index,
    with_tags,
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
        summarizers = {EffectType.MEMORY_COMPACT: summarizer} if summarizer is not None else {}
        self._summaries = EffectHandlers(summarizers) if summarizers else handlers

    def missing_parameter(self, kind: EffectType) -> str:
        """Return the parameter that a memory effect needs and the driver does not have, or an empty text."""
        is_compaction = kind is EffectType.MEMORY_COMPACT and not self._has_summarizer
        if is_compaction and EffectType.LLM_CALL not in self._summaries:
            return "chat_summarizer"
        needs_store = kind in MEMORY_EFFECTS and kind is not EffectType.MEMORY_TAG
        return "artifact_store" if needs_store and self._store() is None else ""

    def outcome(self, run: RunState, open_step: OpenStep, at: str) -> EffectOutcome:
        """Return the outcome of one attempt."""
        assert self._shared is not None
        outcome_or_compaction = self._execute_or_fail(run, open_step, at, self._shared)
        if isinstance(outcome_or_compaction, EffectOutcome):
            return outcome_or_compaction
        return outcome_or_compaction.outcome(
            self._summaries.call(run, self._summary_request(outcome_or_compaction), None)
        )

    async def outcome_async(
        self, run: RunState, open_step: OpenStep, at: str, shared: HostMemory
    ) -> EffectOutcome:
        """Return the same as `outcome`. The handler that makes summaries may be a coroutine function.

        Spans that the effect puts into the memory `shared` are durable when this returns.
        """
        try:
            await shared.load(run, open_step)
            outcome_or_compaction = self._execute_or_fail(run, open_step, at, shared)
            await shared.keep()
        except ContractError as exc:
            return EffectOutcome.failed(str(exc), retryable=False)
        except Exception as exc:  # noqa: BLE001 - the rows of `shared` may fail, see `_execute_or_fail`
            return EffectOutcome.failed(f"{type(exc).__name__}: {exc}")
        if isinstance(outcome_or_compaction, EffectOutcome):
            return outcome_or_compaction
        return outcome_or_compaction.outcome(
            await self._summaries.call_async(
                run, self._summary_request(outcome_or_compaction), None
            )
        )

    def evidenced(
        self, outcome: Any, run: RunState, open_step: OpenStep, now: Callable[[], str]
    ) -> Any:
        """Return the outcome of a handler of TOOL_CALLS with the evidence of its calls.

        `now` returns the instant.
        """
        store = self._store()
        takes_evidence = store is not None and open_step.effect.type is EffectType.TOOL_CALLS
        if not takes_evidence or not isinstance(outcome, EffectOutcome):
            return outcome
        return EvidenceRecorder(store).record(outcome, run, open_step, now())

    def _summary_request(self, compaction: Compaction) -> Effect:
        return (
            compaction.summarizer_request() if self._has_summarizer else compaction.model_request()
        )

    def _execute_or_fail(
        self, run: RunState, open_step: OpenStep, at: str, shared: SharedMemory
    ) -> EffectOutcome | Compaction:
        try:
            return self._execute(run, open_step, at, shared)
        except ContractError as exc:  # a wrong request, which is wrong at the next attempt, too
            return EffectOutcome.failed(str(exc), retryable=False)
        # A store may raise anything, and may work at the next attempt: its failure is an outcome of this one.
        except Exception as exc:  # noqa: BLE001
            return EffectOutcome.failed(f"{type(exc).__name__}: {exc}")

    def _execute(
        self, run: RunState, open_step: OpenStep, at: str, shared: SharedMemory
    ) -> EffectOutcome | Compaction:
        kind = open_step.effect.type
        request = MemoryRequest(
            run=run,
            open_step=open_step,
            at=at,
            payload=Payload(kind.value, open_step.effect.payload),
            archive=Archive(self._store(), kind.value),
            memories=Memories(run, shared),
        )
        effect = _EFFECTS.get(kind)
        if effect is not None:
            return effect(request)
        empty_meta = {"span_id": None, "compacted": 0}
        return compaction_of(request) or request.succeed("There is nothing to compact.", empty_meta)


def write_note(request: MemoryRequest) -> EffectOutcome:
    """Store a note as an artifact, and its span in the index.

    The artifact's id is derived from the effect's idempotency key, so a second execution stores no second note.
    """
    run, payload, archive = request.run, request.payload, request.archive
    note, owner = payload.text("note"), request.memories.owner_to_write(payload)
    if not note:
        raise payload.wrong("note", "is nothing to keep")
    sources = payload.get("sources")
    if not isinstance(sources, dict | None):
        raise payload.wrong("sources", "is no object")
    span_id, tags = derive_id(request.open_step.key, NOTE), payload.tags()
    location = payload.text("location")
    content = {
        "note": note,
        "sources": {"run_id": run.run_id, "span_ids": [], "message_ids": []} | (sources or {}),
        "created_at": request.at,
        "tags": tags,
        "location": location or None,
        "created_by": run.actor_id,
        "session_id": run.session_id,
    }
    stored_note = archive.store_once(
        span_id, content, run_id=owner.run_id, tags={**tags, "kind": NOTE}
    )
    span = _span(span_id, stored_note)
    meta: dict[str, Any] = {"span_id": span_id, **span}
    changes: dict[str, Any] = {**request.memories.put(owner, span)}
    if payload.flag("keep_in_context"):
        context = archive.context_of(run)
        new_messages = without_known(
            [note_message(span_id, note, stored_note["created_at"])], context
        )
        if new_messages:
            new_context = insert_messages(
                context, [(span_id, new_messages)], payload.choice("placement", *PLACEMENTS)
            )
            changes["set"] = [archive.context_change(run, new_context)]
        meta["kept_in_context"] = {"inserted": len(new_messages), "skipped": 1 - len(new_messages)}
    return request.succeed(f"Noted: span_id={span_id}", meta, changes=changes)


def _span(span_id: str, note: dict[str, Any]) -> Span:
    created_at = note["created_at"]
    span: Span = {"kind": NOTE, SPAN_ID: span_id, "created_at": created_at}
    span |= {"from_timestamp": created_at, "to_timestamp": created_at, "message_count": 0}
    span["note_preview"] = note["note"][:PREVIEW]
    optional = {name: note.get(name) for name in ("tags", "location", "created_by")}
    return span | {name: value for name, value in optional.items() if value}


def change_tags(request: MemoryRequest) -> EffectOutcome:
    """Add tags to a span, or replace its tags. The artifact stays as it is."""
    payload = request.payload
    tags, merge = payload.tags(), payload.flag("merge", default=True)
    if not tags and merge:
        raise payload.wrong("tags", "is nothing to add")
    owner, id_or_number = request.memories.owner_to_write(payload), payload.get("span_id")
    spans = spans_of(owner.vars)
    old_span = span_at(spans, id_or_number)
    if old_span is None:
        hint = f"its index has {len(spans)} spans: list them by memory_query with return='meta'"
        return request.fail(f"there is no span {id_or_number!r} in run {owner.run_id}; {hint}")
    span = with_tags(old_span, tags, merge=merge)
    meta = {"span_id": span[SPAN_ID], "tags": span["tags"]}
    changes = request.memories.put(owner, span)
    return request.succeed(f"Tagged: span_id={span[SPAN_ID]}", meta, changes=changes)


@dataclass(slots=True)
class Effort:
    """The limits of the work for a request.

    Attributes:
        level: The level of recall; empty if the request names none, so that no limit is lowered.
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
        effort = cls(
            level=level,
            spans=payload.count("limit_spans", DEFAULT_SPANS, least=1),
            messages=payload.count("max_messages", DEFAULT_MESSAGES),
            deep=payload.flag("deep", default=level != "urgent"),
            hops=payload.count("neighbor_hops", 1) if payload.flag("connected") else 0,
        )
        if level:
            most_spans, most_messages = LEVELS[level]
            effort.spans = effort._lower(payload, "limit_spans", effort.spans, most_spans)
            effort.messages = effort._lower(payload, "max_messages", effort.messages, most_messages)
        return effort

    def _lower(self, payload: Payload, name: str, limit: int, maximum: int) -> int:
        if limit > maximum and payload.get(name) is not None:
            self.warnings.append(
                f"{name} {limit} is lowered to {maximum} by recall_level {self.level}"
            )
        return min(limit, maximum)

    def to_dict(self) -> dict[str, Any]:
        """Return the limits as JSON data."""
        limits = {"limit_spans": self.spans, "max_messages": self.messages}
        limits |= {"deep": self.deep, "connected": self.hops > 0, "neighbor_hops": self.hops}
        return {"recall_level": self.level or None, "applied": limits}


def query_spans(request: MemoryRequest) -> EffectOutcome:
    """Return the spans that fit all conditions of a request, the newest first, as text, as data or as both."""
    payload, archive = request.payload, request.archive
    effort, answer_form = Effort.of(payload), payload.choice("return", "rendered", "meta", "both")
    query = payload.text("query")
    matches: list[tuple[str, Span]] = []
    nearby: list[tuple[str, Span]] = []
    for owner in request.memories.owners_to_search(payload):
        spans = spans_of(owner.vars)
        owner_spans = newest_first(filter(filter_of(payload, spans).fits, spans))
        if query:
            reader = _Words(query, archive, effort, summaries_in(archive.context_of(owner)))
            owner_spans = reader.search(owner_spans)
        owner_spans = owner_spans[: effort.spans]
        matches += [(owner.run_id, span) for span in owner_spans]
        nearby += [(owner.run_id, span) for span in neighbours(spans, owner_spans, effort.hops)]
    answer_spans = [*matches[: effort.spans], *nearby]
    output = _render(answer_spans, archive, effort) if answer_form != "meta" else None
    meta = {
        "matches": [{**span, "owner_run_id": run_id} for run_id, span in answer_spans],
        "span_ids": [span[SPAN_ID] for _, span in answer_spans],
        "effort": effort.to_dict(),
        "warnings": effort.warnings,
    }
    return request.succeed(output, meta if answer_form != "rendered" else None)


def filter_of(payload: Payload, spans: list[Span]) -> SpanFilter:
    """Return the filter of a request. Ids that are numbers are places in the index."""
    ids_or_numbers = payload.names("span_ids", "span_id")
    ids = [span[SPAN_ID] if (span := span_at(spans, i)) else i for i in ids_or_numbers]
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

    def search(self, spans: list[Span]) -> list[Span]:
        """Return the first spans that have the words. Artifacts are read only until enough spans are found."""
        return [*islice(filter(self._has, spans), self.effort.spans)]

    def _has(self, span: Span) -> bool:
        if has_words(text_of_index(span, self.summaries), self.query):
            return True
        messages = content_of_span(self.archive, span[SPAN_ID])[1] if self.effort.deep else []
        return has_words("\n".join(map(content_of, messages)), self.query)


def _render(owned_spans: list[tuple[str, Span]], archive: Archive, effort: Effort) -> str:
    parts, remaining = [], effort.messages
    for _, span in owned_spans:
        messages = content_of_span(archive, span[SPAN_ID])[1]
        head = [f"span_id={span[SPAN_ID]}", f"kind={span.get('kind')}"]
        head += [
            f"{name}={span[name]}" for name in ("from_timestamp", "to_timestamp") if span.get(name)
        ]
        head += [f"{name}={value}" for name, value in (span.get("tags") or {}).items()]
        lines = [f"{m.get('role')}: {content_of(m)}" for m in messages[:remaining]]
        omitted_count = len(messages) - len(lines)
        remaining -= len(lines)
        hint = (
            [f"({omitted_count} more messages: raise max_messages, or rehydrate the span)"]
            if omitted_count
            else []
        )
        parts.append("\n".join([f"[{' '.join(head)}]", *lines, *hint]))
    text = "\n\n".join(parts) or "Nothing was found."
    if len(text) <= LONGEST_OUTPUT:
        return text
    return (
        f"{text[:LONGEST_OUTPUT]}\n(cut: {len(text)} characters. Ask for fewer spans or messages)"
    )


_EFFECTS: Final[dict[EffectType, Callable[[MemoryRequest], EffectOutcome]]] = {
    EffectType.MEMORY_NOTE: write_note,
    EffectType.MEMORY_QUERY: query_spans,
    EffectType.MEMORY_TAG: change_tags,
    EffectType.MEMORY_REHYDRATE: rehydrate_spans,
}
MEMORY_EFFECTS: Final = frozenset({*_EFFECTS, EffectType.MEMORY_COMPACT})
