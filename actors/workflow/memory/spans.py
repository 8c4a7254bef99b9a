"""The index of a run's memory: its spans, and the filters by which they are found."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from actors.kernel.workflow.durable import normalize_utc_iso
from actors.workflow.machine.variables import RUNTIME, namespace

SPANS: Final = "memory_spans"
"""Name in `_runtime`. Its value has the spans of a run, in the order of their creation."""
SPANS_PATH: Final = [RUNTIME, SPANS]
SPAN_ID: Final = "artifact_id"
NOTE: Final = "memory_note"
CONVERSATION: Final = "conversation_span"
PREVIEW: Final = 160
"""Maximum length of the part of a note or summary that the index has, in characters."""
_NUMBER: Final = re.compile(r"[0-9]{1,9}")

Span = dict[str, Any]


def spans_of(variables: Mapping[str, Any]) -> list[Span]:
    """Return the spans in a run's vars. Items that are not spans are left out."""
    found = namespace(variables, RUNTIME).get(SPANS)
    items = found if isinstance(found, list) else []
    return [one for one in items if isinstance(one, dict) and isinstance(one.get(SPAN_ID), str)]


def span_at(spans: list[Span], wanted: Any) -> Span | None:
    """Return the span with an id, or with a number from 1 in the order of the index. None: there is none."""
    text = str(wanted).strip()
    by_id = next((one for one in spans if one[SPAN_ID] == text), None)
    if by_id is not None or isinstance(wanted, bool) or not _NUMBER.fullmatch(text):
        return by_id
    place = int(text)
    return spans[place - 1] if 1 <= place <= len(spans) else None


def tagged(span: Span, tags: Mapping[str, str], *, merge: bool) -> Span:
    """Return a span with these tags added, or with these tags only."""
    before = span.get("tags")
    kept = before if merge and isinstance(before, dict) else {}
    return {**span, "tags": {**kept, **tags}}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanFilter:
    """A filter of spans. A condition that is not set fits all spans. Texts are compared regardless of case.

    Attributes:
        ids: The ids of the spans' artifacts.
        since: An instant in ISO 8601. Spans fit that end then or later.
        until: An instant in ISO 8601. Spans fit that begin then or before.
        tags: By tag, the values of which a span has one.
        any_tag: True if one of `tags` is enough.
        authors: The actors for one of which a span was made.
        locations: The locations of which a span has one, in its field or its tag ``location``.
    """

    ids: Collection[str] = ()
    since: str | None = None
    until: str | None = None
    tags: Mapping[str, Collection[str]] = field(default_factory=dict)
    any_tag: bool = False
    authors: Collection[str] = ()
    locations: Collection[str] = ()

    def fits(self, span: Span) -> bool:
        """Return True if the span fits all conditions."""
        own = span.get("tags") if isinstance(span.get("tags"), dict) else {}
        place = span.get("location") or (own or {}).get("location")
        return (
            (not self.ids or span[SPAN_ID] in self.ids)
            and self._is_in_time(span)
            and self._is_tagged(own or {})
            and _is_one_of(span.get("created_by"), self.authors)
            and _is_one_of(place, self.locations)
        )

    def _is_in_time(self, span: Span) -> bool:
        since, until = normalize_utc_iso(self.since), normalize_utc_iso(self.until)
        first, last = instants_of(span)
        return (since is None or since <= last) and (
            until is None or (bool(first) and first <= until)
        )

    def _is_tagged(self, own: Mapping[str, Any]) -> bool:
        if not self.tags:
            return True
        found = (_is_one_of(own.get(name), values) for name, values in self.tags.items())
        return any(found) if self.any_tag else all(found)


def _is_one_of(value: Any, wanted: Collection[str]) -> bool:
    return not wanted or str(value or "").casefold() in {one.casefold() for one in wanted}


def instants_of(span: Span) -> tuple[str, str]:
    """Return the first and the last instant of a span, in UTC. Empty: the span has no valid instant."""
    made = span.get("created_at")
    first, last = (
        normalize_utc_iso(span.get(name) or made) for name in ("from_timestamp", "to_timestamp")
    )
    return first or "", last or ""


def newest_first(spans: Iterable[Span]) -> list[Span]:
    """Return spans ordered by their last instant, the newest first."""
    return sorted(spans, key=lambda one: instants_of(one)[1], reverse=True)


def neighbours(spans: Iterable[Span], found: Iterable[Span], hops: int) -> list[Span]:
    """Return the spans that are at most `hops` places in time from a found span, except found spans."""
    line = newest_first(spans)
    ids = {one[SPAN_ID] for one in found}
    places = [at for at, one in enumerate(line) if one[SPAN_ID] in ids]
    near = sorted({at + step for at in places for step in range(-hops, hops + 1)})
    return [line[at] for at in near if 0 <= at < len(line) and line[at][SPAN_ID] not in ids]


def has_words(text: str, query: str) -> bool:
    """Return True if a text has all words of a query, in any order."""
    held = text.casefold()
    return all(one in held for one in query.casefold().split())


def text_of_index(span: Span, summaries: Mapping[str, str]) -> str:
    """Return all words about a span in the index and in the summaries of a context."""
    own = span.get("tags") if isinstance(span.get("tags"), dict) else {}
    words = [span.get("note_preview"), span.get("summary_preview"), span.get("location")]
    told = [str(one) for one in (*words, *(own or {}).values()) if one]
    return "\n".join([*told, summaries.get(span[SPAN_ID], "")])
