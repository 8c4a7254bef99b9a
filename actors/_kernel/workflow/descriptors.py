"""Descriptors of artifacts and counts of accesses to them: JSON data beside their bytes."""

from __future__ import annotations

import io
import re
import wave
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final

from actors._kernel.workflow.durable import TRUNCATION, durable_copy
from actors._kernel.workflow.errors import GraphError

DESCRIPTOR_SCHEMA: Final = "callboard.artifact.v1"
METADATA_SCHEMA: Final = "callboard.artifact_metadata.v1"
MOST_TEXT: Final = 12_000
MOST_ITEMS: Final = 160
MOST_DEPTH: Final = 6
_SOUNDS: Final = frozenset({"voice", "music", "sound"})
_MODALITIES: Final = _SOUNDS | {"image", "video", "text", "document", "code"}
_KINDS: Final = frozenset(
    {"attachment", "evidence", "workflow_snapshot", "conversation_span", "memory_note"}
)
_KIND_OF_TASK: Final = (
    dict.fromkeys(("code", "coding", "code_generation", "script", "program"), "code")
    | dict.fromkeys(("tts", "speech", "speech_generation"), "voice")
    | dict.fromkeys(("music", "music_generation", "text_to_music"), "music")
    | dict.fromkeys(("stt", "transcription", "speech_to_text"), "transcript")
)
_CODE_KINDS: Final = frozenset({"code", "source_code", "script", "program", "executable"})
_CODE_TYPES: Final = re.compile(
    r"(application|text)/(x-)?(javascript|typescript|python-code|python|script\.python|sh|shellscript|"
    r"jsx|tsx|go|rust|java-source|c|c\+\+|csharp|php|ruby)"
)
_RENDER_KINDS: Final = (
    (re.compile(r"(image|audio|video)/"), ""),
    (_CODE_TYPES, "code"),
    (re.compile(r"application/json|.*\+json"), "json"),
    (re.compile(r"text/(x-)?markdown"), "markdown"),
    (re.compile(r".*html"), "html"),
    (re.compile(r"text/"), "text"),
    (re.compile(r".*(pdf|document)"), "document"),
)
_WORDS: Final = ("semantic_kind", "render_kind", "modality", "task")
_SECRET: Final = re.compile(r"api_?key|authorization|private_?key|credential", re.IGNORECASE)
_SECRET_WORDS: Final = frozenset({"password", "passwd", "secret", "token", "bearer"})
_USER_TEXTS: Final = ("prompt", "text", "input", "negative_prompt")
_TAGS: Final = {
    "workflow_id": ("workflow_id", "workflow"),
    "node_id": ("node_id", "node"),
    "effect_id": ("effect_id", "effect_idempotency_key"),
    "turn_id": ("turn_id", "turn"),
    "ledger_cursor": ("ledger_cursor", "step_cursor"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactDescriptor:
    """A description of an artifact for people and programs: its kind, how to show it, its origin.

    Attributes:
        schema: The form of this description.
        schema_version: Version of that schema.
        semantic_kind: What it is: ``voice``, ``music``, ``code``, ``evidence``, …
        render_kind: How to show it: ``image``, ``audio``, ``video``, ``code``, ``json``, ``markdown``,
            ``html``, ``text``, ``document``, ``binary``.
        modality: What it speaks to; of sounds which.
        task: What made it: ``tts``, ``image_generation``, …
        classification_source: Source of the kinds: ``producer``, ``runtime_declared``, ``runtime_tags`` or
            ``runtime_mime_inferred``.
        session_id: The session. It and the next ones are None if they are unknown.
        workflow_id: The graph.
        node_id: The node.
        step_id: The attempt.
        effect_id: The effect.
        turn_id: The turn of the conversation.
        ledger_cursor: The record.
        parent_run_id: The run above its run.
        actor_id: The actor of the action.
        producer: The provider and model.
        provenance: Its run, request and source.
        generation: What the producer was asked.
        media: Facts of the bytes: duration, size of a picture, …
        source_refs: What it was made from.
        links: Addresses of it.
        security: What is sensitive about the description.
        actions: What can be done with it.
    """

    schema: str = DESCRIPTOR_SCHEMA
    schema_version: int = 1
    semantic_kind: str = ""
    render_kind: str = ""
    modality: str = ""
    task: str = ""
    classification_source: str = ""
    session_id: str | None = None
    workflow_id: str | None = None
    node_id: str | None = None
    step_id: str | None = None
    effect_id: str | None = None
    turn_id: str | None = None
    ledger_cursor: str | None = None
    parent_run_id: str | None = None
    actor_id: str | None = None
    producer: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    generation: dict[str, Any] = field(default_factory=dict)
    media: dict[str, Any] = field(default_factory=dict)
    source_refs: list[Any] = field(default_factory=list)
    links: dict[str, Any] = field(default_factory=dict)
    security: dict[str, Any] = field(default_factory=dict)
    actions: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ArtifactDescriptor:
        """Return the descriptor of a row; names that it does not know are left out.

        Raises:
            GraphError: A field has another type.
            NotSerializableError: A value is not JSON data.
        """
        row = durable_copy(known_fields(cls, data), "descriptor")
        for name, default in cls().to_dict().items():
            field_type = str if default is None else type(default)
            if not isinstance(row.get(name, field_type()), field_type):
                raise GraphError(f"descriptor.{name}", f"it has to be a {field_type.__name__}")
        return cls(**row | {name: row[name].strip().lower() for name in _WORDS if name in row})

    def to_dict(self) -> dict[str, Any]:
        """Return the descriptor as stores keep it."""
        return asdict(self)

    def merged(self, more: ArtifactDescriptor | Mapping[str, Any]) -> ArtifactDescriptor:
        """Return this with what `more` says. What it leaves empty stays; objects are merged by name."""
        additions = ArtifactDescriptor.from_dict(as_row(more)).to_dict()
        values = self.to_dict()
        for name, addition in additions.items():
            if isinstance(addition, dict):
                values[name] |= addition
            elif addition:
                values[name] = addition
        return ArtifactDescriptor(**values)

    def completed(
        self, *, content_type: str, run_id: str | None, tags: Mapping[str, str], declared: bool
    ) -> ArtifactDescriptor:
        """Return this with what the type and the tags of the artifact say, where nothing is said yet.

        Args:
            content_type: The media type.
            run_id: The run.
            tags: The tags.
            declared: Whether its writer gave a descriptor.
        """
        render = self.render_kind or render_kind_of(content_type)
        semantic = self.semantic_kind or _semantic_kind(tags, render)
        modality = _word(tags, "modality") or (semantic if semantic in _SOUNDS else render)
        origin = {"source": _tag(tags, "source"), "run_id": run_id}
        source = "runtime_declared" if declared else "runtime_mime_inferred"
        if not declared and {"semantic_kind", "artifact_type", "modality", "task"} & {*tags}:
            source = "runtime_tags"
        identifiers: dict[str, Any] = {
            attribute.name: getattr(self, attribute.name)
            or _tag(tags, *_TAGS.get(attribute.name, (attribute.name,)))
            for attribute in fields(self)
            if attribute.default is None
        }
        return replace(
            self,
            **identifiers,
            render_kind=render,
            semantic_kind=semantic,
            modality=self.modality or modality,
            task=self.task or _word(tags, "task", "provider_task"),
            classification_source=self.classification_source or source,
            provenance={name: value for name, value in origin.items() if value} | self.provenance,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactAccessStats:
    """Counts of accesses to an artifact, as its viewers reported by `record_access`.

    Attributes:
        access_count: Number of all accesses.
        metadata_access_count: Its description alone.
        content_access_count: Its bytes.
        preview_count: A preview.
        download_count: A download.
        last_accessed_at: The instant in ISO 8601, or None if it was never accessed.
        last_action: The last action.
        last_actor_id: The actor of the last action.
        last_session_id: The session of the last one.
        last_run_id: The run of the last one.
        actions: Counts by action.
    """

    access_count: int = 0
    metadata_access_count: int = 0
    content_access_count: int = 0
    preview_count: int = 0
    download_count: int = 0
    last_accessed_at: str | None = None
    last_action: str | None = None
    last_actor_id: str | None = None
    last_session_id: str | None = None
    last_run_id: str | None = None
    actions: dict[str, int] = field(default_factory=dict)

    def recorded(
        self,
        *,
        action: str,
        at: str,
        actor_id: str | None = None,
        session_id: str | None = None,
        run_id: str | None = None,
    ) -> ArtifactAccessStats:
        """Return the counts after one more read."""
        kind = action.strip().lower() or "access"
        name = {"content": "content_access", "metadata": "metadata_access"}.get(kind, kind)
        if kind in {"load", "read", "open"}:
            name = "content_access"
        counts = {
            counter: getattr(self, counter) + (counter == f"{name}_count")
            for counter in (
                "metadata_access_count",
                "content_access_count",
                "preview_count",
                "download_count",
            )
        }
        return ArtifactAccessStats(
            **counts,
            access_count=self.access_count + 1,
            last_accessed_at=at,
            last_action=kind,
            last_actor_id=actor_id,
            last_session_id=session_id,
            last_run_id=run_id,
            actions=self.actions | {kind: self.actions.get(kind, 0) + 1},
        )


def build_artifact_descriptor_payload(
    *,
    semantic_kind: str,
    render_kind: str,
    producer: Mapping[str, Any] | None = None,
    generation: Mapping[str, Any] | None = None,
    source_refs: list[Any] | None = None,
    metadata_schema: str = METADATA_SCHEMA,
    **more: Any,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a descriptor and metadata for `ArtifactStore.store`, of what a producer knows.

    Long texts and lists are cut; values whose names are those of credentials are replaced by ``[redacted]``.

    Args:
        semantic_kind: See `ArtifactDescriptor`.
        render_kind: See there; empty: by ``content_type``.
        producer: The provider and model.
        generation: What the producer was asked.
        source_refs: What it was made from.
        metadata_schema: The form of the metadata.
        **more: Further fields of `ArtifactDescriptor`; ``content_type``, ``source``, ``run_id`` or
            ``request_id``.

    Raises:
        GraphError: A field of the descriptor has another type.
        NotSerializableError: A value is not JSON data.
    """
    provenance = {name: more.pop(name, "") for name in ("source", "run_id", "request_id")}
    content_type = more.pop("content_type", "")
    clean_generation = _redact(dict(generation or {}))
    texts = [name for name in _USER_TEXTS if str(clean_generation.get(name) or "").strip()]
    sensitive = {"sensitivity": "user_content", "recorded_user_content_fields": texts}
    facts = {
        "producer": _redact(dict(producer or {})),
        "generation": clean_generation,
        "source_refs": _redact(source_refs or []),
        "security": {"redaction": "credentials_by_name", **(sensitive if texts else {})},
    }
    other_fields = {name: _redact(value) for name, value in more.items() if value}
    descriptor = ArtifactDescriptor.from_dict(
        {
            "classification_source": "producer",
            **other_fields,
            **facts,
            "semantic_kind": semantic_kind.strip().lower(),
            "render_kind": render_kind.strip().lower() or render_kind_of(content_type),
            "provenance": {name: str(value) for name, value in provenance.items() if value},
        }
    )
    completed_descriptor = descriptor.completed(
        content_type=content_type, run_id=None, tags={}, declared=True
    )
    return completed_descriptor.to_dict(), {"schema": metadata_schema, **facts}


def known_fields(cls: type[Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that a row has for the fields of a dataclass. A value of None is left out."""
    names = {f.name for f in fields(cls)}
    return {name: value for name, value in row.items() if name in names and value is not None}


def as_row(descriptor: ArtifactDescriptor | Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return a descriptor as a row, whichever it is."""
    if isinstance(descriptor, ArtifactDescriptor):
        return descriptor.to_dict()
    return descriptor or {}


def render_kind_of(content_type: str) -> str:
    """Return how to show bytes of a media type."""
    kind = content_type.partition(";")[0].strip().lower()
    for pattern, name in _RENDER_KINDS:
        if pattern.match(kind) if pattern is not _CODE_TYPES else pattern.fullmatch(kind):
            return name or kind.partition("/")[0]
    return "binary"


def media_facts(content: bytes, content_type: str) -> dict[str, Any]:
    """Return what the bytes of media say of themselves: of WAV the duration in seconds, rate and channels."""
    kind = content_type.partition(";")[0].strip().lower()
    if not kind.endswith(("/wav", "/x-wav", "/wave")):
        name = kind.partition("/")[0]
        return {"kind": name} if name in {"image", "audio", "video"} else {}
    try:
        with wave.open(io.BytesIO(content), "rb") as file:
            rate, frames = file.getframerate(), file.getnframes()
            return {
                "kind": "audio",
                "duration_s": frames / rate if rate else 0.0,
                "sample_rate": rate,
                "channels": file.getnchannels(),
                "frames": frames,
                "inspection_source": "wave",
            }
    # Anybody may have stored these bytes, and `wave` raises many errors. They must not fail the store.
    except Exception as exc:  # noqa: BLE001 - the error is part of the description
        problem = f"{type(exc).__name__}: {exc}"
        return {"kind": "audio", "inspection_source": "wave", "inspection_error": problem}


def _semantic_kind(tags: Mapping[str, str], render: str) -> str:
    semantic_kind, kind = _word(tags, "semantic_kind", "artifact_type"), _word(tags, "kind")
    modality, task = _word(tags, "modality"), _word(tags, "task", "provider_task")
    if semantic_kind or modality in _MODALITIES:
        return semantic_kind or modality
    if kind in _CODE_KINDS:
        return "code"
    return _KIND_OF_TASK.get(task) or (kind if kind in _KINDS else render)


def _tag(tags: Mapping[str, str], *names: str) -> str | None:
    return next((str(tags[name]) for name in names if tags.get(name)), None)


def _word(tags: Mapping[str, str], *names: str) -> str:
    return (_tag(tags, *names) or "").strip().lower()


def _redact(value: Any, depth: int = 0) -> Any:
    """Return a value as a description may hold it: without credentials, and not too long."""
    if isinstance(value, str):
        return value if len(value) <= MOST_TEXT else value[:MOST_TEXT] + TRUNCATION
    if isinstance(value, bytes | bytearray):
        return {"bytes": len(value), "redacted": True}
    if not isinstance(value, Mapping | list | tuple):
        return value
    if depth > MOST_DEPTH:
        return TRUNCATION
    if not isinstance(value, Mapping):
        return [_redact(item, depth + 1) for item in value[:MOST_ITEMS]]
    return {
        name: "[redacted]" if item and _is_secret(name) else _redact(item, depth + 1)
        for name, item in [*value.items()][:MOST_ITEMS]
    }


def _is_secret(name: Any) -> bool:
    words = re.split(r"[^a-z0-9]+", str(name).lower())
    return bool(_SECRET.search(str(name)) or _SECRET_WORDS & {*words})
