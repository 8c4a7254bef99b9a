"""Large values of runs, by reference: ``{"$artifact": id}`` stands for them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Protocol, runtime_checkable

from actors.errors import PersistenceError
from actors.kernel.workflow.descriptors import ArtifactAccessStats, ArtifactDescriptor, known
from actors.kernel.workflow.errors import GraphError

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
        found = cls(
            **{
                **known(cls, row),
                "blob_id": row.get("blob_id") or row.get("sha256") or "",
                "descriptor": ArtifactDescriptor.from_dict(row.get("descriptor") or {}),
                "access": ArtifactAccessStats(
                    **known(ArtifactAccessStats, row.get("access") or {})
                ),
            }
        )
        return found if row.get("descriptor") else found.completed(declared=False)

    def completed(self, *, declared: bool) -> ArtifactMetadata:
        """Return this with a descriptor that says what type and tags say; `declared`: one was given."""
        whole = self.descriptor.completed(
            content_type=self.content_type, run_id=self.run_id, tags=self.tags, declared=declared
        )
        return replace(self, descriptor=whole)


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
        """Return the bytes; None: they are not there."""

    def get_metadata(self, artifact_id: str) -> ArtifactMetadata | None:
        """Return the description; None: there is none."""

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
    """Return what a reference names; None: it is not there."""
    return store.load(get_artifact_id(ref))


def plain_value(value: Any, artifact_store: Any) -> Any:
    """Return a value of a run's vars, whether it stands there or is a reference to text or JSON data.

    Raises:
        PersistenceError: The artifact is missing.
    """
    if not is_artifact_ref(value):
        return value
    found = artifact_store.load(value[REF_KEY])
    if found is None:
        raise PersistenceError(f"artifact {value[REF_KEY]} is missing: was its run deleted?")
    is_json = found.metadata.content_type == "application/json"
    return found.as_json() if is_json else found.as_text()


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
