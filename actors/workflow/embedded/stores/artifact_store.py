"""Artifacts of graphs in memory."""

from __future__ import annotations

from collections.abc import Mapping

from actors.kernel.workflow.artifacts import Artifact, ArtifactMetadata, ArtifactShelf, described
from actors.kernel.workflow.drawn import utc_now_iso


class InMemoryArtifactStore(ArtifactShelf):
    """See `actors.kernel.workflow.artifacts.ArtifactStore`."""

    def __init__(self) -> None:
        self._kept: dict[str, Artifact] = {}

    def store(
        self,
        content: bytes,
        *,
        content_type: str = "application/octet-stream",
        run_id: str | None = None,
        tags: Mapping[str, str] | None = None,
        artifact_id: str | None = None,
    ) -> ArtifactMetadata:
        """See `ArtifactStore.store`."""
        metadata = described(
            content,
            content_type=content_type,
            run_id=run_id,
            tags=tags,
            artifact_id=artifact_id,
            at=utc_now_iso(),
        )
        kept = self._kept.setdefault(metadata.artifact_id, Artifact(metadata, bytes(content)))
        return kept.metadata

    def load(self, artifact_id: str) -> Artifact | None:
        """See `ArtifactStore.load`."""
        return self._kept.get(artifact_id)

    def get_metadata(self, artifact_id: str) -> ArtifactMetadata | None:
        """See `ArtifactStore.get_metadata`."""
        found = self._kept.get(artifact_id)
        return None if found is None else found.metadata

    def exists(self, artifact_id: str) -> bool:
        """See `ArtifactStore.exists`."""
        return artifact_id in self._kept

    def delete(self, artifact_id: str) -> bool:
        """See `ArtifactStore.delete`."""
        return self._kept.pop(artifact_id, None) is not None

    def content_path(self, artifact_id: str) -> None:
        """Return None: the bytes are in no file."""
        del artifact_id

    def list_all(self, limit: int = 1000) -> list[ArtifactMetadata]:
        """See `ArtifactStore.list_all`."""
        newest = [one.metadata for one in reversed(self._kept.values())]
        return newest[: max(limit, 0)]
