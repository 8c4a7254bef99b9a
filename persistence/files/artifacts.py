"""Artifacts of graphs as files."""

from __future__ import annotations

import json
from pathlib import Path

from typing_extensions import override

from actors.kernel.workflow.artifacts import (
    Artifact,
    ArtifactMetadata,
    ArtifactShelf,
    checked_artifact_id,
)
from persistence.files.atomic import json_text, removed, write_whole


class FileArtifactStore(ArtifactShelf):
    """A folder ``artifacts`` with two files for each artifact; see the Protocol `ArtifactStore` of graphs.

    An artifact is there when its description is: bytes without one are the rest of a store that died.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder) / "artifacts"
        self._folder.mkdir(parents=True, exist_ok=True)

    @override
    def _keep(self, metadata: ArtifactMetadata, content: bytes) -> ArtifactMetadata:
        known = self.get_metadata(metadata.artifact_id)
        if known is not None:
            return known
        write_whole(self._bytes(metadata.artifact_id), content)
        write_whole(self._about(metadata.artifact_id), json_text(metadata.to_dict()).encode())
        return metadata

    @override
    def load(self, artifact_id: str) -> Artifact | None:
        metadata = self.get_metadata(artifact_id)
        if metadata is None:
            return None
        try:
            return Artifact(metadata, self._bytes(artifact_id).read_bytes())
        except FileNotFoundError:
            return None

    @override
    def get_metadata(self, artifact_id: str) -> ArtifactMetadata | None:
        try:
            return ArtifactMetadata(**json.loads(self._about(artifact_id).read_bytes()))
        except FileNotFoundError:
            return None

    @override
    def exists(self, artifact_id: str) -> bool:
        return self._about(artifact_id).exists()

    @override
    def delete(self, artifact_id: str) -> bool:
        there = removed(self._about(artifact_id))
        removed(self._bytes(artifact_id))
        return there

    @override
    def list_all(self, limit: int = 1000) -> list[ArtifactMetadata]:
        found = [self.get_metadata(path.stem) for path in self._folder.glob("*.json")]
        newest = sorted((one for one in found if one), key=lambda one: one.created_at, reverse=True)
        return newest[: max(limit, 0)]

    def content_path(self, artifact_id: str) -> Path | None:
        """Return the file of the bytes; None: they are not there."""
        return self._bytes(artifact_id) if self.exists(artifact_id) else None

    def _about(self, artifact_id: str) -> Path:
        return self._folder / f"{checked_artifact_id(artifact_id)}.json"

    def _bytes(self, artifact_id: str) -> Path:
        return self._folder / f"{checked_artifact_id(artifact_id)}.bin"
