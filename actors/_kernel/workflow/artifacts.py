"""Large values of runs, by reference: ``{"$artifact": id}`` stands for them.

Stores of artifacts have one base, with descriptions, texts and JSON, search, and later changes of a
description.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Protocol, runtime_checkable

from typing_extensions import override

from actors._kernel.workflow.descriptors import (
    ArtifactAccessStats,
    ArtifactDescriptor,
    as_row,
    known_fields,
    media_facts,
)
from actors._kernel.workflow.durable import durable_copy, normalize_utc_iso, utc_now_iso
from actors._kernel.workflow.errors import GraphError
from actors.errors import PersistenceError

REF_KEY: Final = "$artifact"
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,200}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactMetadata:
    """A description of stored bytes.

    Attributes:
        artifact_id: Their name: letters, digits, ``_`` and ``-``.
        content_type: Their media type.
        size_bytes: Their number.
        created_at: ISO 8601 in UTC.
        run_id: The run that they belong to, if any; they go when it goes.
        tags: Small texts to look for them.
        sha256: Of the bytes, in hexadecimal.
        blob_id: The name of the bytes, the same for equal ones of all runs: their SHA-256.
        metadata: JSON data of the program that stored them.
        descriptor: What they are, and where they came from.
        access: Counts of reads, and the last one.
    """

    artifact_id: str
    content_type: str
    size_bytes: int
    created_at: str
    run_id: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    sha256: str = ""
    blob_id: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    descriptor: ArtifactDescriptor = field(default_factory=ArtifactDescriptor)
    access: ArtifactAccessStats = field(default_factory=ArtifactAccessStats)

    def to_dict(self) -> dict[str, Any]:
        """Return the description as stores keep it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> ArtifactMetadata:
        """Return the description of a row; without a descriptor, as older releases wrote it, by its tags.

        Raises:
            GraphError: A field of the descriptor has another type.
        """
        metadata = cls(
            **{
                **known_fields(cls, row),
                "blob_id": row.get("blob_id") or row.get("sha256") or "",
                "descriptor": ArtifactDescriptor.from_dict(row.get("descriptor") or {}),
                "access": ArtifactAccessStats(
                    **known_fields(ArtifactAccessStats, row.get("access") or {})
                ),
            }
        )
        return metadata if row.get("descriptor") else metadata.completed(declared=False)

    def completed(self, *, declared: bool) -> ArtifactMetadata:
        """Return this with a descriptor that says what type and tags say; `declared`: one was given."""
        descriptor = self.descriptor.completed(
            content_type=self.content_type, run_id=self.run_id, tags=self.tags, declared=declared
        )
        return replace(self, descriptor=descriptor)


@dataclass(frozen=True, slots=True)
class Artifact:
    """Stored bytes with their description."""

    metadata: ArtifactMetadata
    content: bytes

    @property
    def artifact_id(self) -> str:
        """Their name."""
        return self.metadata.artifact_id

    @property
    def content_type(self) -> str:
        """Their media type."""
        return self.metadata.content_type

    def as_text(self, encoding: str = "utf-8") -> str:
        """Return the bytes as text."""
        return self.content.decode(encoding)

    def as_json(self) -> Any:
        """Return the bytes as JSON data."""
        return json.loads(self.content)


@runtime_checkable
class ArtifactStore(Protocol):
    """Large values by id. Bytes that are stored are never changed."""

    def store(
        self,
        content: bytes,
        *,
        content_type: str = "application/octet-stream",
        run_id: str | None = None,
        tags: Mapping[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        descriptor: ArtifactDescriptor | Mapping[str, Any] | None = None,
        artifact_id: str | None = None,
    ) -> ArtifactMetadata:
        """Keep the bytes; the same ones of the same run once, unless `artifact_id` names them.

        Raises:
            GraphError: `artifact_id` is not letters, digits, ``_`` and ``-``.
            NotSerializableError: `metadata` or `descriptor` is not JSON data.
        """

    def load(self, artifact_id: str) -> Artifact | None:
        """Return the artifact, or None if there is none of this id."""

    def get_metadata(self, artifact_id: str) -> ArtifactMetadata | None:
        """Return the description, or None if there is no such artifact."""

    def exists(self, artifact_id: str) -> bool:
        """Return whether they are there."""

    def delete(self, artifact_id: str) -> bool:
        """Remove the artifact; whether it was there. See `CollectableArtifactStore`."""

    def list_all(self, limit: int = 1000) -> list[ArtifactMetadata]:
        """Return at most `limit` descriptions, the newest first; 0: all."""


@runtime_checkable
class CollectableArtifactStore(ArtifactStore, Protocol):
    """A store that keeps bytes which several artifacts share until it is asked to look for what is left."""

    def gc(self, *, dry_run: bool = True) -> dict[str, Any]:
        """Remove the bytes that no artifact names.

        Args:
            dry_run: Only count them.

        Returns:
            ``blobs_total``, ``blobs_referenced``, ``blobs_deleted``, ``bytes_reclaimed`` and ``dry_run``.
        """


def compute_artifact_id(content: bytes, *, run_id: str | None = None) -> str:
    """Return the id of these bytes of this run: 32 hexadecimal digits."""
    # Half a surrogate pair raises no UnicodeEncodeError here: the check of the whole description refuses it.
    head = b"" if run_id is None else f"{run_id}\n".encode(errors="surrogatepass")
    return hashlib.sha256(head + content).hexdigest()[:32]


def checked_artifact_id(artifact_id: str) -> str:
    """Return the id, if it names nothing but an artifact.

    Raises:
        GraphError: It could be a path, or is empty.
    """
    if _ID.fullmatch(artifact_id) is None:
        rule = "it cannot be empty, and has letters, digits, '_' and '-', 200 at most"
        raise GraphError(f"Invalid artifact_id {artifact_id!r}", rule)
    return artifact_id


def artifact_ref(artifact_id: str) -> dict[str, str]:
    """Return the reference to an artifact."""
    return {REF_KEY: artifact_id}


def is_artifact_ref(value: Any) -> bool:
    """Return whether this is a reference."""
    return isinstance(value, dict) and isinstance(value.get(REF_KEY), str)


def get_artifact_id(ref: Mapping[str, Any]) -> str:
    """Return the id that a reference names.

    Raises:
        KeyError: It is none.
    """
    return str(ref[REF_KEY])


def resolve_artifact(ref: Mapping[str, Any], store: ArtifactStore) -> Artifact | None:
    """Return the artifact that a reference names, or None if the store does not have it."""
    return store.load(get_artifact_id(ref))


def plain_value(value: Any, artifact_store: Any) -> Any:
    """Return a value of a run's vars, whether it stands there or is a reference to text or JSON data.

    Raises:
        PersistenceError: The artifact is missing.
    """
    if not is_artifact_ref(value):
        return value
    artifact = artifact_store.load(value[REF_KEY])
    if artifact is None:
        raise PersistenceError(f"artifact {value[REF_KEY]} is missing: was its run deleted?")
    is_json = artifact.metadata.content_type == "application/json"
    return artifact.as_json() if is_json else artifact.as_text()


def references(value: Any) -> Iterable[str]:
    """Yield the ids of all references within JSON data."""
    if isinstance(value, dict):
        if is_artifact_ref(value):
            yield get_artifact_id(value)
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


_OWN: Final = ("run_id", "content_type")
_WORDS: Final = ("semantic_kind", "render_kind", "modality")
_DESCRIBED: Final = (*_WORDS, "session_id", "workflow_id", "node_id")
_FACETS: Final = {*_OWN, "artifact_id", "created_at", "blob_id"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactFilter:
    """A choice of artifacts. A filter that is None fits all artifacts.

    Attributes:
        run_id: Only artifacts of this run.
        content_type: Only artifacts of this media type.
        tags: Only artifacts with all of these tags.
        semantic_kind: See `ArtifactDescriptor`, as the next ones.
        render_kind: See there.
        modality: See there.
        session_id: See there.
        workflow_id: See there.
        node_id: See there.
        created_after: ISO 8601; then or later.
        created_before: ISO 8601; then or before.

    Raises:
        GraphError: An instant is none.
    """

    run_id: str | None = None
    content_type: str | None = None
    tags: Mapping[str, str] | None = None
    semantic_kind: str | None = None
    render_kind: str | None = None
    modality: str | None = None
    session_id: str | None = None
    workflow_id: str | None = None
    node_id: str | None = None
    created_after: str | None = None
    created_before: str | None = None

    def __post_init__(self) -> None:
        for instant in (self.created_after, self.created_before):
            if instant is not None and normalize_utc_iso(instant) is None:
                raise GraphError(f"instant {instant!r}", "use ISO 8601: 2030-01-31T12:00:00Z")

    def fits(self, metadata: ArtifactMetadata) -> bool:
        """Return whether this artifact is looked for."""
        facets = {name: getattr(self, name) for name in (*_OWN, *_DESCRIBED)}
        facets |= {name: str(facets[name]).lower() for name in _WORDS if facets[name] is not None}
        after, before = map(normalize_utc_iso, (self.created_after, self.created_before))
        return (
            all(
                facet_of(metadata, name) == value
                for name, value in facets.items()
                if value is not None
            )
            and (self.tags or {}).items() <= metadata.tags.items()
            # "~" is greater than the text of every instant.
            and (after or "") <= metadata.created_at <= (before or "~")
        )


class ArtifactCatalog(ArtifactStore):
    """A base of artifact stores: search, counts, and later changes of descriptions.

    The verbs with ``**filters`` take the fields of `ArtifactFilter` as keywords. They look at each description.
    """

    def list_by_run(self, run_id: str) -> list[ArtifactMetadata]:
        """Return the descriptions of what belongs to the run, the newest first."""
        return [metadata for metadata in self.list_all(limit=0) if metadata.run_id == run_id]

    def delete_by_run(self, run_id: str) -> int:
        """Remove what belongs to the run; return how many."""
        return sum(self.delete(metadata.artifact_id) for metadata in self.list_by_run(run_id))

    def search(
        self, *, offset: int = 0, order: str = "desc", limit: int = 1000, **filters: Any
    ) -> list[ArtifactMetadata]:
        """Return the descriptions that fit all that is given, the newest first.

        Args:
            offset: Number of matching artifacts to leave out at the beginning.
            order: ``asc``: the oldest first.
            limit: Maximum number; 0: all.
            **filters: See `ArtifactFilter`.
        """
        choice = ArtifactFilter(**filters)
        candidates = (
            self.list_all(limit=0) if choice.run_id is None else self.list_by_run(choice.run_id)
        )
        matches = [metadata for metadata in candidates if choice.fits(metadata)]
        if order == "asc":
            matches.reverse()
        return matches[max(offset, 0) :][: limit if limit > 0 else None]

    def count(self, **filters: Any) -> int:
        """Return how many fit."""
        return len(self.search(limit=0, **filters))

    def facet_counts(self, field: str, **filters: Any) -> dict[str, int]:
        """Return how many of those that fit have each value of a facet, the most frequent first.

        Args:
            field: A field of the description or the descriptor, ``tag:NAME`` or ``metadata:NAME``. Without a
                value: ``(none)``.
            **filters: See `ArtifactFilter`.
        """
        return _count_facets(self.search(limit=0, **filters), field)

    def stats(self, *, facets: Sequence[str] = (), **filters: Any) -> dict[str, Any]:
        """Return of those that fit ``total``, ``total_bytes`` and, for each of `facets`, `facet_counts`.

        ``source`` says that the figures are of the descriptions; equal bytes of two artifacts count twice.
        """
        matches = self.search(limit=0, **filters)
        return {
            "total": len(matches),
            "total_bytes": sum(metadata.size_bytes for metadata in matches),
            "facets": {name: _count_facets(matches, name) for name in facets},
            "filters": filters,
            "exact": True,
            "source": "artifact_catalog",
        }

    def update_metadata(
        self,
        artifact_id: str,
        *,
        tags: Mapping[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        descriptor: ArtifactDescriptor | Mapping[str, Any] | None = None,
        replace_tags: bool = False,
        replace_metadata: bool = False,
    ) -> ArtifactMetadata | None:
        """Change a description, not the bytes, in one write; return it, or None if there is no such artifact.

        Args:
            artifact_id: The artifact.
            tags: These are added, or are all of them.
            metadata: As `tags`, by name.
            descriptor: What it leaves empty stays; objects within are merged by name.
            replace_tags: Only `tags` stay.
            replace_metadata: Only `metadata` stays.

        Raises:
            NotSerializableError: Something is not JSON data. Nothing is changed.
        """
        clean_metadata = durable_copy(dict(metadata or {}), "metadata")
        labels = _labels(tags)
        extra_descriptor = ArtifactDescriptor.from_dict(as_row(descriptor))

        def change(old_metadata: ArtifactMetadata) -> ArtifactMetadata:
            new_metadata = replace(
                old_metadata,
                tags=labels if replace_tags else old_metadata.tags | labels,
                metadata=clean_metadata
                if replace_metadata
                else old_metadata.metadata | clean_metadata,
                descriptor=old_metadata.descriptor.merged(extra_descriptor),
            )
            return _check_readable(new_metadata.completed(declared=True))

        return self._change(artifact_id, change)

    def record_access(
        self,
        artifact_id: str,
        *,
        action: str = "access",
        actor_id: str | None = None,
        session_id: str | None = None,
        run_id: str | None = None,
        at: str | None = None,
    ) -> ArtifactMetadata | None:
        """Count an access to an artifact, since `load` does not. Return None if there is no such artifact.

        Args:
            artifact_id: The artifact.
            action: ``preview``, ``download``, ``content``, ``metadata``, or another word.
            actor_id: The actor that read it.
            session_id: The session of the read.
            run_id: The run of the read.
            at: The instant in ISO 8601, or None for now.
        """
        reader = {"actor_id": actor_id, "session_id": session_id, "run_id": run_id}
        at = at or utc_now_iso()

        def change(old_metadata: ArtifactMetadata) -> ArtifactMetadata:
            return _check_readable(
                replace(
                    old_metadata,
                    access=old_metadata.access.recorded(action=action, at=at, **reader),
                )
            )

        return self._change(artifact_id, change)

    def _change(
        self, artifact_id: str, change: Callable[[ArtifactMetadata], ArtifactMetadata]
    ) -> ArtifactMetadata | None:
        """Replace a description by what `change` makes of it, in one write; no other change comes between.

        Returns:
            The new description, or None if there is no such artifact.
        """
        raise NotImplementedError


class ArtifactShelf(ArtifactCatalog):
    """A base of artifact stores: descriptions, texts, JSON."""

    @override
    def store(
        self,
        content: bytes,
        *,
        content_type: str = "application/octet-stream",
        run_id: str | None = None,
        tags: Mapping[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        descriptor: ArtifactDescriptor | Mapping[str, Any] | None = None,
        artifact_id: str | None = None,
    ) -> ArtifactMetadata:
        name = compute_artifact_id(content, run_id=run_id) if artifact_id is None else artifact_id
        digest = hashlib.sha256(content).hexdigest()
        media_descriptor = ArtifactDescriptor.from_dict(
            {"media": media_facts(content, content_type)}
        )
        description = ArtifactMetadata(
            artifact_id=checked_artifact_id(name),
            content_type=content_type,
            size_bytes=len(content),
            created_at=utc_now_iso(),
            run_id=run_id,
            tags=_labels(tags),
            sha256=digest,
            blob_id=digest,
            metadata=durable_copy(dict(metadata or {}), "metadata"),
            descriptor=media_descriptor.merged(descriptor or {}),
        )
        return self._keep(
            _check_readable(description.completed(declared=descriptor is not None)), content
        )

    def store_text(self, text: str, **more: Any) -> ArtifactMetadata:
        """Keep text in UTF-8; see `ArtifactStore.store`."""
        kind = more.pop("content_type", "text/plain")
        return self.store(text.encode(), content_type=kind, **more)

    def store_json(self, data: Any, **more: Any) -> ArtifactMetadata:
        """Keep JSON data; see `ArtifactStore.store`."""
        content = json.dumps(data, ensure_ascii=False, allow_nan=False).encode()
        return self.store(content, content_type="application/json", **more)

    def load_text(self, artifact_id: str) -> str | None:
        """Return the artifact as text, or None if there is none of this id."""
        artifact = self.load(artifact_id)
        return None if artifact is None else artifact.as_text()

    def load_json(self, artifact_id: str) -> Any:
        """Return the artifact as JSON data, or None if there is none of this id."""
        artifact = self.load(artifact_id)
        return None if artifact is None else artifact.as_json()

    def _keep(self, metadata: ArtifactMetadata, content: bytes) -> ArtifactMetadata:
        """Keep the bytes unless something of their id is there; return the description that is kept."""
        raise NotImplementedError


def _check_readable(metadata: ArtifactMetadata) -> ArtifactMetadata:
    """Return a description that can be read again: one that cannot would break each list of the store.

    Raises:
        NotSerializableError: A text has a NUL or half a surrogate pair.
    """
    durable_copy(metadata.to_dict(), "artifact")
    return metadata


def facet_of(metadata: ArtifactMetadata, name: str) -> str:
    """Return the value of a facet, or an empty text if the artifact has none."""
    kind, _, key = name.partition(":")
    if key:
        return str({"tag": metadata.tags, "metadata": metadata.metadata}.get(kind, {}).get(key, ""))
    return str(getattr(metadata if name in _FACETS else metadata.descriptor, name, None) or "")


def _labels(tags: Mapping[str, str] | None) -> dict[str, str]:
    return {str(name): str(value) for name, value in (tags or {}).items()}


def _count_facets(artifacts: Sequence[ArtifactMetadata], name: str) -> dict[str, int]:
    counts = Counter(facet_of(metadata, name) or "(none)" for metadata in artifacts)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
