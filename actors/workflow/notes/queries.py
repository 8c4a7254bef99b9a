"""The effect MEMORY_QUERY: search of spans by id, words, time, tags, authors and locations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from actors.kernel.workflow.effects import EffectOutcome
from actors.workflow.notes.compaction import content_of as content_of_span
from actors.workflow.notes.messages import content_of, summaries_in
from actors.workflow.notes.spans import (
    SPAN_ID,
    Archive,
    MemoryRequest,
    Payload,
    Span,
    SpanFilter,
    has_words,
    neighbours,
    newest_first,
    span_at,
    spans_of,
    text_of_index,
)

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
