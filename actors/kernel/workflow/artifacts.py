"""Large values of runs, by reference: ``{"$artifact": id}`` stands in their place."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Protocol, runtime_checkable

from typing_extensions import override

from actors.kernel.workflow.drawn import utc_now_iso
from actors.kernel.workflow.errors import GraphError

REF_KEY: Final = "$artifact"
_ALL: Final = 2**31
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
    """

    artifact_id: str
    content_type: str
    size_bytes: int
    created_at: str
    run_id: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    sha256: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the description as stores keep it."""
        return asdict(self)


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
    """Large values by id. What is stored is never changed."""

    def store(
        self,
        content: bytes,
        *,
        content_type: str = "application/octet-stream",
        run_id: str | None = None,
        tags: Mapping[str, str] | None = None,
        artifact_id: str | None = None,
    ) -> ArtifactMetadata:
        """Keep the bytes; the same ones of the same run once, unless `artifact_id` names them.

        Raises:
            GraphError: `artifact_id` is not letters, digits, ``_`` and ``-``.
        """

    def load(self, artifact_id: str) -> Artifact | None:
        """Return the bytes; None: they are not there."""

    def get_metadata(self, artifact_id: str) -> ArtifactMetadata | None:
        """Return the description; None: there is none."""

    def exists(self, artifact_id: str) -> bool:
        """Return whether they are there."""

    def delete(self, artifact_id: str) -> bool:
        """Remove them; whether they were there."""

    def list_all(self, limit: int = 1000) -> list[ArtifactMetadata]:
        """Return at most `limit` descriptions, the newest first."""


class ArtifactShelf(ArtifactStore):
    """A base of artifact stores: descriptions, texts, JSON, lists, search."""

    @override
    def store(
        self,
        content: bytes,
        *,
        content_type: str = "application/octet-stream",
        run_id: str | None = None,
        tags: Mapping[str, str] | None = None,
        artifact_id: str | None = None,
    ) -> ArtifactMetadata:
        name = compute_artifact_id(content, run_id=run_id) if artifact_id is None else artifact_id
        metadata = ArtifactMetadata(
            artifact_id=checked_artifact_id(name),
            content_type=content_type,
            size_bytes=len(content),
            created_at=utc_now_iso(),
            run_id=run_id,
            tags=dict(tags or {}),
            sha256=hashlib.sha256(content).hexdigest(),
        )
        return self._keep(metadata, content)

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

    def list_by_run(self, run_id: str) -> list[ArtifactMetadata]:
        """Return the descriptions of what belongs to the run, the newest first."""
        return [one for one in self.list_all(limit=_ALL) if one.run_id == run_id]

    def delete_by_run(self, run_id: str) -> int:
        """Remove what belongs to the run; return how many."""
        return sum(self.delete(one.artifact_id) for one in self.list_by_run(run_id))

    def search(
        self,
        *,
        run_id: str | None = None,
        content_type: str | None = None,
        tags: Mapping[str, str] | None = None,
        limit: int = 1000,
    ) -> list[ArtifactMetadata]:
        """Return the descriptions that fit all that is given, the newest first."""
        wanted = dict(tags or {})
        found = [
            one
            for one in self.list_all(limit=_ALL)
            if (run_id is None or one.run_id == run_id)
            and (content_type is None or one.content_type == content_type)
            and wanted.items() <= one.tags.items()
        ]
        return found[: max(limit, 0)]

    def _keep(self, metadata: ArtifactMetadata, content: bytes) -> ArtifactMetadata:
        """Keep the bytes unless something of their id is there; return the description that is kept."""
        raise NotImplementedError


def compute_artifact_id(content: bytes, *, run_id: str | None = None) -> str:
    """Return the id of these bytes of this run: 32 hexadecimal digits."""
    head = b"" if run_id is None else f"{run_id}\n".encode()
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
    """Return what a reference names; None: it is not there."""
    return store.load(get_artifact_id(ref))


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
