"""Artifacts of graphs in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable

from typing_extensions import override

from actors.kernel.workflow.artifacts import Artifact, ArtifactMetadata, ArtifactShelf


class InMemoryArtifactStore(ArtifactShelf):
    """See `actors.kernel.workflow.artifacts.ArtifactStore`."""

    def __init__(self) -> None:
        self._kept: dict[str, Artifact] = {}
        self._lock = threading.Lock()

    @override
    def _keep(self, metadata: ArtifactMetadata, content: bytes) -> ArtifactMetadata:
        kept = self._kept.setdefault(metadata.artifact_id, Artifact(metadata, bytes(content)))
        return kept.metadata

    @override
    def _change(
        self, artifact_id: str, change: Callable[[ArtifactMetadata], ArtifactMetadata]
    ) -> ArtifactMetadata | None:
        with self._lock:
            found = self._kept.get(artifact_id)
            if found is None:
                return None
            self._kept[artifact_id] = Artifact(change(found.metadata), found.content)
            return self._kept[artifact_id].metadata

    @override
    def load(self, artifact_id: str) -> Artifact | None:
        return self._kept.get(artifact_id)

    @override
    def get_metadata(self, artifact_id: str) -> ArtifactMetadata | None:
        found = self._kept.get(artifact_id)
        return None if found is None else found.metadata

    @override
    def exists(self, artifact_id: str) -> bool:
        return artifact_id in self._kept

    @override
    def delete(self, artifact_id: str) -> bool:
        with self._lock:
            return self._kept.pop(artifact_id, None) is not None

    def content_path(self, artifact_id: str) -> None:
        """Return None, since the bytes are in no file."""
        del artifact_id

    @override
    def list_all(self, limit: int = 1000) -> list[ArtifactMetadata]:
        newest = [one.metadata for one in reversed([*self._kept.values()])]
        return newest[: limit if limit > 0 else None]
