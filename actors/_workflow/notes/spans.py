"""The index of a run's memory: its spans, their artifacts, and the requests of nodes for them.

Notes and archived messages are artifacts, each stored once; references in them are resolved. A value of the
wrong type in a request's payload raises an error that names it. The owner of a memory is the run itself, or a
run that a session or all runs share.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from actors._kernel.json import canonical_json
from actors._kernel.workflow.artifacts import ArtifactStore, is_artifact_ref, plain_value
from actors._kernel.workflow.durable import durable_copy, normalize_utc_iso
from actors._kernel.workflow.effects import EffectOutcome
from actors._kernel.workflow.errors import GraphError
from actors._kernel.workflow.run_state import RunState
from actors._workflow.machine.records import OpenStep
from actors._workflow.machine.variables import CONTEXT, RUNTIME, namespace

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
    index = namespace(variables, RUNTIME).get(SPANS)
    items = index if isinstance(index, list) else []
    return [s for s in items if isinstance(s, dict) and isinstance(s.get(SPAN_ID), str)]


def span_at(spans: list[Span], id_or_number: Any) -> Span | None:
    """Return the span with an id, or with a number from 1 in the order of the index, or None."""
    text = str(id_or_number).strip()
    span = next((s for s in spans if s[SPAN_ID] == text), None)
    if span is not None or isinstance(id_or_number, bool) or not _NUMBER.fullmatch(text):
        return span
    number = int(text)
    return spans[number - 1] if 1 <= number <= len(spans) else None


def with_tags(span: Span, tags: Mapping[str, str], *, merge: bool) -> Span:
    """Return a span with these tags added, or with these tags only."""
    span_tags = span.get("tags")
    base_tags = span_tags if merge and isinstance(span_tags, dict) else {}
    return {**span, "tags": {**base_tags, **tags}}


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
        tags = span.get("tags") if isinstance(span.get("tags"), dict) else {}
        location = span.get("location") or (tags or {}).get("location")
        return (
            (not self.ids or span[SPAN_ID] in self.ids)
            and self._is_in_time(span)
            and self._is_tagged(tags or {})
            and _is_one_of(span.get("created_by"), self.authors)
            and _is_one_of(location, self.locations)
        )

    def _is_in_time(self, span: Span) -> bool:
        since_iso, until_iso = normalize_utc_iso(self.since), normalize_utc_iso(self.until)
        first_iso, last_iso = instants_of(span)
        return (since_iso is None or since_iso <= last_iso) and (
            until_iso is None or (bool(first_iso) and first_iso <= until_iso)
        )

    def _is_tagged(self, tags: Mapping[str, Any]) -> bool:
        if not self.tags:
            return True
        matches = (_is_one_of(tags.get(name), values) for name, values in self.tags.items())
        return any(matches) if self.any_tag else all(matches)


def _is_one_of(value: Any, allowed_values: Collection[str]) -> bool:
    return not allowed_values or str(value or "").casefold() in {
        text.casefold() for text in allowed_values
    }


def instants_of(span: Span) -> tuple[str, str]:
    """Return the first and the last instant of a span, in UTC; empty texts if it has no valid instant."""
    created_at = span.get("created_at")
    first_iso, last_iso = (
        normalize_utc_iso(span.get(name) or created_at)
        for name in ("from_timestamp", "to_timestamp")
    )
    return first_iso or "", last_iso or ""


def newest_first(spans: Iterable[Span]) -> list[Span]:
    """Return spans ordered by their last instant, the newest first."""
    return sorted(spans, key=lambda span: instants_of(span)[1], reverse=True)


def neighbours(spans: Iterable[Span], matches: Iterable[Span], hops: int) -> list[Span]:
    """Return the spans that are at most `hops` places in time from a found span, except found spans."""
    ordered_spans = newest_first(spans)
    match_ids = {span[SPAN_ID] for span in matches}
    positions = [index for index, span in enumerate(ordered_spans) if span[SPAN_ID] in match_ids]
    indexes = sorted({index + step for index in positions for step in range(-hops, hops + 1)})
    return [
        ordered_spans[index]
        for index in indexes
        if 0 <= index < len(ordered_spans) and ordered_spans[index][SPAN_ID] not in match_ids
    ]


def has_words(text: str, query: str) -> bool:
    """Return True if a text has all words of a query, in any order."""
    folded_text = text.casefold()
    return all(word in folded_text for word in query.casefold().split())


def text_of_index(span: Span, summaries: Mapping[str, str]) -> str:
    """Return all words about a span in the index and in the summaries of a context."""
    tags = span.get("tags") if isinstance(span.get("tags"), dict) else {}
    fields = [span.get("note_preview"), span.get("summary_preview"), span.get("location")]
    texts = [str(value) for value in (*fields, *(tags or {}).values()) if value]
    return "\n".join([*texts, summaries.get(span[SPAN_ID], "")])


MESSAGES = "messages"


class Archive:
    """The artifacts that an effect reads and writes.

    Args:
        store: The store of the artifacts. If it is None, methods that need it raise an error with the remedy.
        name: The effect's type, for errors.
    """

    def __init__(self, store: ArtifactStore | None, name: str) -> None:
        self._optional_store, self._name = store, name

    def store_once(
        self, artifact_id: str, data: Mapping[str, Any], *, run_id: str, tags: Mapping[str, str]
    ) -> dict[str, Any]:
        """Store JSON data under this id, unless the id is in use; return the stored data.

        So if an effect is executed again after a crash, the data of the first execution stays.

        Raises:
            NotSerializableError: The data is not JSON data. Nothing is stored.
            GraphError: The driver has no artifact store.
        """
        existing: dict[str, Any] | None = self.load(artifact_id)
        if existing is not None:
            return existing
        stored_data: dict[str, Any] = durable_copy(dict(data), f"artifact of {self._name}")
        content = canonical_json(stored_data).encode()
        options: dict[str, Any] = {"run_id": run_id, "tags": tags, "artifact_id": artifact_id}
        self._store.store(content, content_type="application/json", **options)
        return stored_data

    def load(self, artifact_id: str) -> dict[str, Any] | None:
        """Return the JSON object in an artifact, or None if there is no such artifact or no JSON object in it.

        Raises:
            GraphError: The driver has no artifact store.
        """
        try:
            artifact = self._store.load(artifact_id)
            data = None if artifact is None else artifact.as_json()
        except (json.JSONDecodeError, UnicodeDecodeError):
            return None
        return data if isinstance(data, dict) else None

    def context_of(self, run: RunState) -> list[dict[str, Any]]:
        """Return the messages in a run's context, with references replaced by their values."""
        context = self._resolve(run.vars.get(CONTEXT))
        messages = context.get(MESSAGES) if isinstance(context, dict) else None
        return [m for m in messages if isinstance(m, dict)] if isinstance(messages, list) else []

    def context_change(self, run: RunState, messages: list[dict[str, Any]]) -> list[Any]:
        """Return the change, as path and value, that sets the messages of a run's context."""
        context = run.vars.get(CONTEXT)
        if is_artifact_ref(context):
            return [[CONTEXT], {**self._resolve(context), MESSAGES: messages}]
        return [[CONTEXT, MESSAGES], messages]

    def _resolve(self, value: Any) -> Any:
        """Return JSON data with its references replaced by the values of their artifacts."""
        if is_artifact_ref(value):
            return self._resolve(plain_value(value, self._store))
        if isinstance(value, dict):
            return {name: self._resolve(item) for name, item in value.items()}
        return [self._resolve(item) for item in value] if isinstance(value, list) else value

    @property
    def _store(self) -> ArtifactStore:
        if self._optional_store is None:
            remedy = "Pass artifact_store=… to the WorkflowRuntime, or to the Flows"
            raise GraphError(self._name, f"there is no artifact store for the memory. {remedy}")
        return self._optional_store


_OWN_TAG: Final = "kind"
"""The tag with an artifact's kind. Only the runtime sets it."""


class Payload:
    """The payload of an effect. Each method raises `GraphError` if a value has the wrong type.

    Args:
        name: The effect's type, for errors.
        data: The payload.
    """

    def __init__(self, name: str, data: Mapping[str, Any]) -> None:
        self.name, self._data = name, data

    def get(self, name: str) -> Any:
        """Return a value as it is, or None if the payload does not have it."""
        return self._data.get(name)

    def text(self, name: str, default: str = "") -> str:
        """Return a text without spaces around it, or the default if it is missing or empty."""
        value = self._data.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(name, "is no text")
        return value.strip() or default

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Return a boolean, or the default if it is missing."""
        value = self._data.get(name)
        if not isinstance(value, bool | None):
            raise self.wrong(name, "is neither true nor false")
        return default if value is None else value

    def count(self, name: str, default: int, *, least: int = 0) -> int:
        """Return a whole number that is at least `least`, or the default if it is missing."""
        value = self._data.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.wrong(name, f"is no whole number from {least} on")
        return value

    def choice(self, name: str, *choices: str) -> str:
        """Return one of these words. If the value is missing, return the first word."""
        word = self.text(name, choices[0]).lower()
        if word not in choices:
            raise self.wrong(name, f"is none of {', '.join(choices)}")
        return word

    def names(self, *names: str) -> tuple[str, ...]:
        """Return the texts and numbers in these fields, each of which has one or a list."""
        texts: list[str] = []
        for name in names:
            value = self._data.get(name)
            for item in value if isinstance(value, list) else [] if value is None else [value]:
                if isinstance(item, bool) or not isinstance(item, str | int):
                    raise self.wrong(name, "is neither a text nor a list of texts")
                texts.append(str(item))
        return tuple(texts)

    def instant(self, name: str) -> str | None:
        """Return an instant in UTC, or None if the value is missing."""
        value = self._data.get(name)
        if value is None or value == "":
            return None
        at = normalize_utc_iso(value)
        if at is None:
            raise self.wrong(name, "is no ISO timestamp")
        return at

    def tags(self) -> dict[str, str]:
        """Return the tags to set, without ``kind``, which the runtime sets."""
        tags = self.wanted_tags()
        if isinstance(self._data.get("tags"), dict) and any(
            isinstance(value, list) for value in self._data["tags"].values()
        ):
            raise self.wrong("tags", "has a list: a tag has one value")
        return {name: values[0] for name, values in tags.items() if name != _OWN_TAG}

    def wanted_tags(self) -> dict[str, tuple[str, ...]]:
        """Return the tags to search for. Each has one value, or a list of which one value is enough."""
        tags = self._data.get("tags")
        if not isinstance(tags, dict | None):
            raise self.wrong("tags", "is no object of texts")
        values_by_tag = {}
        for name, value in (tags or {}).items():
            values = value if isinstance(value, list) else [value]
            if not all(isinstance(v, str | int | float) for v in values):
                raise self.wrong(f"tags.{name}", "is neither a text nor a list of texts")
            values_by_tag[str(name)] = tuple(map(str, values))
        return values_by_tag

    def wrong(self, name: str, problem: str) -> GraphError:
        """Return the error for a value."""
        return GraphError(
            f"{self.name}: payload.{name}", f"{self._data.get(name)!r:.100} {problem}"
        )


RUN: Final = "run"
SESSION: Final = "session"
GLOBAL: Final = "global"
ALL: Final = "all"
SCOPES: Final = (RUN, SESSION, GLOBAL)


class SharedMemory(Protocol):
    """The memory of other runs."""

    def owner(self, run: RunState, scope: str) -> RunState:
        """Return the run that has the memory of a scope for this run. The scope is ``session`` or ``global``.

        Raises:
            GraphError: The run's driver has no memory of this scope.
        """

    def named(self, run: RunState, run_id: str) -> RunState:
        """Return the run of this id.

        Raises:
            GraphError: There is no such run, or the driver cannot read other runs.
        """

    def put(self, owner: RunState, span: Span) -> None:
        """Add a span durably to the memory of a run that `owner` or `named` returned.

        A span of the same id is added once.
        """


@dataclass(frozen=True, slots=True)
class Memories:
    """The memories that a request may read or write.

    Attributes:
        run: The run that makes the request.
        shared: The memory of other runs.
    """

    run: RunState
    shared: SharedMemory

    def owner_to_write(self, payload: Payload) -> RunState:
        """Return the owner of the memory that a request writes to."""
        target = payload.text("target_run_id")
        if target:
            return self.run if target == self.run.run_id else self.shared.named(self.run, target)
        return self._of(payload.choice("scope", *SCOPES))

    def owners_to_search(self, payload: Payload) -> list[RunState]:
        """Return the owners of the memories that a request searches."""
        if payload.text("target_run_id") or payload.choice("scope", *SCOPES, ALL) != ALL:
            return [self.owner_to_write(payload)]
        owners_by_id = {owner.run_id: owner for owner in map(self._of, SCOPES)}
        return [*owners_by_id.values()]

    def _of(self, scope: str) -> RunState:
        return self.run if scope == RUN else self.shared.owner(self.run, scope)

    def put(self, owner: RunState, span: Span) -> dict[str, list[object]]:
        """Add a span to a memory; return the changes of the requesting run.

        They are empty if another run owns the memory.
        """
        if owner.run_id == self.run.run_id:
            return {"put": [[SPANS_PATH, SPAN_ID, span]]}
        self.shared.put(owner, span)
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRequest:
    """A request for memory.

    Attributes:
        run: The run that makes the request.
        open_step: The effect.
        at: The instant of this attempt, in ISO 8601 in UTC.
        payload: The request's payload.
        archive: The artifacts.
        memories: The memories that the request may read or write.
    """

    run: RunState
    open_step: OpenStep
    at: str
    payload: Payload
    archive: Archive
    memories: Memories

    def succeed(
        self, output: str | None, meta: Any = None, *, changes: dict[str, Any] | None = None
    ) -> EffectOutcome:
        """Return the outcome of a successful request.

        The result has the form of a tool's result, which models can read.
        """
        optional = {} if meta is None else {"meta": meta}
        row = {**self._row(), "success": True, "output": output, "error": None, **optional}
        result = {"mode": "executed", "results": [row]}
        return EffectOutcome.completed(result, changes=changes or None)

    def fail(self, problem: str) -> EffectOutcome:
        """Return the outcome of a request for data that does not exist.

        The run continues and can read the reason.
        """
        row = {**self._row(), "success": False, "output": None, "error": problem}
        return EffectOutcome.completed({"mode": "executed", "results": [row]})

    def _row(self) -> dict[str, Any]:
        return {"name": self.payload.name, "call_id": self.payload.get("call_id")}
