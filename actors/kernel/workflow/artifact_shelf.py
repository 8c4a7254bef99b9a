"""The base of artifact stores: descriptions, texts and JSON, search, later changes of a description."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from typing_extensions import override

from actors.kernel.workflow.artifacts import (
    ArtifactMetadata,
    ArtifactStore,
    checked_artifact_id,
    compute_artifact_id,
)
from actors.kernel.workflow.descriptors import ArtifactDescriptor, as_row, media_facts
from actors.kernel.workflow.drawn import normalize_utc_iso, utc_now_iso
from actors.kernel.workflow.durable import durable_copy
from actors.kernel.workflow.errors import GraphError

_OWN: Final = ("run_id", "content_type")
_WORDS: Final = ("semantic_kind", "render_kind", "modality")
_DESCRIBED: Final = (*_WORDS, "session_id", "workflow_id", "node_id")
_FACETS: Final = {*_OWN, "artifact_id", "created_at", "blob_id"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactFilter:
    """A choice of artifacts; None fits all.

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
        for one in (self.created_after, self.created_before):
            if one is not None and normalize_utc_iso(one) is None:
                raise GraphError(f"instant {one!r}", "use ISO 8601: 2030-01-31T12:00:00Z")

    def fits(self, one: ArtifactMetadata) -> bool:
        """Return whether this artifact is looked for."""
        wanted = {name: getattr(self, name) for name in (*_OWN, *_DESCRIBED)}
        wanted |= {name: str(wanted[name]).lower() for name in _WORDS if wanted[name] is not None}
        after, before = map(normalize_utc_iso, (self.created_after, self.created_before))
        return (
            all(facet_of(one, name) == value for name, value in wanted.items() if value is not None)
            and (self.tags or {}).items() <= one.tags.items()
            and (after or "") <= one.created_at <= (before or "~")
        )


class ArtifactCatalog(ArtifactStore):
    """A base of artifact stores: search, counts, and later changes of descriptions.

    The verbs with ``**filters`` take the fields of `ArtifactFilter` as keywords. They look at each description.
    """

    def list_by_run(self, run_id: str) -> list[ArtifactMetadata]:
        """Return the descriptions of what belongs to the run, the newest first."""
        return [one for one in self.list_all(limit=0) if one.run_id == run_id]

    def delete_by_run(self, run_id: str) -> int:
        """Remove what belongs to the run; return how many."""
        return sum(self.delete(one.artifact_id) for one in self.list_by_run(run_id))

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
        wanted = ArtifactFilter(**filters)
        all_ = self.list_all(limit=0) if wanted.run_id is None else self.list_by_run(wanted.run_id)
        found = [one for one in all_ if wanted.fits(one)]
        if order == "asc":
            found.reverse()
        return found[max(offset, 0) :][: limit if limit > 0 else None]

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
        return _counted(self.search(limit=0, **filters), field)

    def stats(self, *, facets: Sequence[str] = (), **filters: Any) -> dict[str, Any]:
        """Return of those that fit ``total``, ``total_bytes`` and, for each of `facets`, `facet_counts`.

        ``source`` says that the figures are of the descriptions; equal bytes of two artifacts count twice.
        """
        found = self.search(limit=0, **filters)
        return {
            "total": len(found),
            "total_bytes": sum(one.size_bytes for one in found),
            "facets": {name: _counted(found, name) for name in facets},
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
        """Change a description, not the bytes, in one write; None: there is no such artifact.

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
        told = durable_copy(dict(metadata or {}), "metadata")
        labels = _labels(tags)
        extra = ArtifactDescriptor.from_dict(as_row(descriptor))

        def changed(one: ArtifactMetadata) -> ArtifactMetadata:
            metadata_now = replace(
                one,
                tags=labels if replace_tags else one.tags | labels,
                metadata=told if replace_metadata else one.metadata | told,
                descriptor=one.descriptor.merged(extra),
            )
            return _checked(metadata_now.completed(declared=True))

        return self._change(artifact_id, changed)

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
        """Count a look at an artifact, as `load` does not; None: there is no such artifact.

        Args:
            artifact_id: The artifact.
            action: ``preview``, ``download``, ``content``, ``metadata``, or another word.
            actor_id: The actor that read it.
            session_id: The session of the read.
            run_id: The run of the read.
            at: ISO 8601; None: now.
        """
        who = {"actor_id": actor_id, "session_id": session_id, "run_id": run_id}
        at = at or utc_now_iso()

        def changed(one: ArtifactMetadata) -> ArtifactMetadata:
            return _checked(replace(one, access=one.access.recorded(action=action, at=at, **who)))

        return self._change(artifact_id, changed)

    def _change(
        self, artifact_id: str, change: Callable[[ArtifactMetadata], ArtifactMetadata]
    ) -> ArtifactMetadata | None:
        """Replace a description by what `change` makes of it, in one write; no other change comes between.

        Returns:
            The new description; None: there is no such artifact.
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
        told = ArtifactDescriptor.from_dict({"media": media_facts(content, content_type)})
        about = ArtifactMetadata(
            artifact_id=checked_artifact_id(name),
            content_type=content_type,
            size_bytes=len(content),
            created_at=utc_now_iso(),
            run_id=run_id,
            tags=_labels(tags),
            sha256=digest,
            blob_id=digest,
            metadata=durable_copy(dict(metadata or {}), "metadata"),
            descriptor=told.merged(descriptor or {}),
        )
        return self._keep(_checked(about.completed(declared=descriptor is not None)), content)

    def store_text(self, text: str, **more: Any) -> ArtifactMetadata:
        """Keep text in UTF-8; see `ArtifactStore.store`."""
        kind = more.pop("content_type", "text/plain")
        return self.store(text.encode(), content_type=kind, **more)

    def store_json(self, data: Any, **more: Any) -> ArtifactMetadata:
        """Keep JSON data; see `ArtifactStore.store`."""
        content = json.dumps(data, ensure_ascii=False, allow_nan=False).encode()
        return self.store(content, content_type="application/json", **more)

    def load_text(self, artifact_id: str) -> str | None:
        """Return text; None: it is not there."""
        found = self.load(artifact_id)
        return None if found is None else found.as_text()

    def load_json(self, artifact_id: str) -> Any:
        """Return JSON data; None: it is not there."""
        found = self.load(artifact_id)
        return None if found is None else found.as_json()

    def _keep(self, metadata: ArtifactMetadata, content: bytes) -> ArtifactMetadata:
        """Keep the bytes unless something of their id is there; return the description that is kept."""
        raise NotImplementedError


def _checked(metadata: ArtifactMetadata) -> ArtifactMetadata:
    """Return a description that can be read again: one that cannot would break each list of the store.

    Raises:
        NotSerializableError: A text has a NUL or half a surrogate pair.
    """
    durable_copy(metadata.to_dict(), "artifact")
    return metadata


def facet_of(one: ArtifactMetadata, name: str) -> str:
    """Return the value of a facet; empty: it has none."""
    kind, _, key = name.partition(":")
    if key:
        return str({"tag": one.tags, "metadata": one.metadata}.get(kind, {}).get(key, ""))
    return str(getattr(one if name in _FACETS else one.descriptor, name, None) or "")


def _labels(tags: Mapping[str, str] | None) -> dict[str, str]:
    return {str(name): str(one) for name, one in (tags or {}).items()}


def _counted(found: Sequence[ArtifactMetadata], name: str) -> dict[str, int]:
    counts = Counter(facet_of(one, name) or "(none)" for one in found)
    return dict(sorted(counts.items(), key=lambda one: (-one[1], one[0])))
