"""Artifacts of graphs as files."""

from __future__ import annotations

import fcntl
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typing_extensions import override

from actors.kernel.json import Unreadable, read_or
from actors.kernel.workflow.artifacts import (
    Artifact,
    ArtifactMetadata,
    ArtifactShelf,
    checked_artifact_id,
)
from actors.kernel.workflow.durable import row_text
from actors.kernel.workflow.stores import Fault, no_fault
from persistence.files.atomic import removed, sync_folder, write_whole

_log = logging.getLogger("callboard.workflow")


class FileArtifactStore(ArtifactShelf):
    """A folder ``artifacts``; see the Protocol `ArtifactStore` of graphs.

    ``refs`` has a description of each artifact, ``blobs`` the bytes: equal ones of all artifacts are one file.
    An artifact is there when its description is. Bytes that no description names are the rest of a store that
    died, or of an artifact that was deleted: `gc` removes them. So does the removal of a run by a runtime.

    Args:
        folder: Holds the folder ``artifacts``, which is made if it is not there.
        fault: A hook of tests.
    """

    def __init__(self, folder: str | Path, *, fault: Fault = no_fault) -> None:
        self._folder = Path(folder) / "artifacts"
        self._refs, self._blobs = self._folder / "refs", self._folder / "blobs"
        self._fault = fault
        for one in (self._refs, self._blobs):
            one.mkdir(parents=True, exist_ok=True)
        self._take_over_older()

    @override
    def _keep(self, metadata: ArtifactMetadata, content: bytes) -> ArtifactMetadata:
        with self._locked(fcntl.LOCK_SH):
            known = self.get_metadata(metadata.artifact_id)
            if known is not None:
                return known
            blob = self._blob(metadata.blob_id)
            if blob.exists():
                sync_folder(self._blobs)  # its writer may not have come to that
            else:
                write_whole(blob, content, fault=self._fault, create_only=True)
            if self._write_ref(metadata, create_only=True):
                return metadata
            return self.get_metadata(metadata.artifact_id) or metadata

    @override
    def _change(
        self, artifact_id: str, change: Callable[[ArtifactMetadata], ArtifactMetadata]
    ) -> ArtifactMetadata | None:
        with self._locked(fcntl.LOCK_EX):
            found = self.get_metadata(artifact_id)
            if found is None:
                return None
            changed = change(found)
            self._write_ref(changed)
        return changed

    @override
    def load(self, artifact_id: str) -> Artifact | None:
        metadata = self.get_metadata(artifact_id)
        if metadata is None:
            return None
        try:
            return Artifact(metadata, self._blob(metadata.blob_id).read_bytes())
        except FileNotFoundError:
            return None

    @override
    def get_metadata(self, artifact_id: str) -> ArtifactMetadata | None:
        try:
            return ArtifactMetadata.from_dict(json.loads(self._ref(artifact_id).read_bytes()))
        except FileNotFoundError:
            return None

    @override
    def exists(self, artifact_id: str) -> bool:
        return self._ref(artifact_id).exists()

    @override
    def delete(self, artifact_id: str) -> bool:
        """See `ArtifactStore.delete`; the bytes stay until `gc`: they may be those of another one, too."""
        with self._locked(fcntl.LOCK_EX):
            return removed(self._ref(artifact_id))

    def gc(self, *, dry_run: bool = True) -> dict[str, Any]:
        """See `CollectableArtifactStore.gc`; while it looks, nothing is stored."""
        with self._locked(fcntl.LOCK_EX):
            descriptions = [self._listed(path) for path in self._refs.glob("*.meta")]
            used_blobs = {metadata.blob_id for metadata in descriptions if metadata is not None}
            blobs = [*self._blobs.glob("*.bin")]
            left = [(blob, blob.stat().st_size) for blob in blobs if blob.stem not in used_blobs]
            if (
                None in descriptions
            ):  # any of the bytes may belong to a description that cannot be read
                left = []
            torn = [*self._blobs.glob("*.tmp"), *self._refs.glob("*.tmp")]
            if not dry_run:
                for one in (*torn, *(blob for blob, _ in left)):
                    removed(one)
        return {
            "dry_run": dry_run,
            "blobs_total": len(blobs),
            "blobs_referenced": len(used_blobs),
            "blobs_deleted": len(left),
            "bytes_reclaimed": sum(size for _, size in left),
        }

    @override
    def list_all(self, limit: int = 1000) -> list[ArtifactMetadata]:
        descriptions = [self._listed(path) for path in self._refs.glob("*.meta")]
        newest = sorted(
            (metadata for metadata in descriptions if metadata),
            key=lambda one: (one.created_at, one.artifact_id),
            reverse=True,
        )
        return newest[: limit if limit > 0 else None]

    def content_path(self, artifact_id: str) -> Path | None:
        """Return the file of the bytes, which is not to be changed; None: they are not there."""
        metadata = self.get_metadata(artifact_id)
        blob = None if metadata is None else self._blob(metadata.blob_id)
        return blob if blob is not None and blob.exists() else None

    def _listed(self, path: Path) -> ArtifactMetadata | None:
        """Return a description for a list. One that cannot be read is named in the log, and hides no other."""

        def log(unreadable: Unreadable) -> None:
            details = {"file": path.name, "problem": str(unreadable)}
            _log.error("the description of an artifact cannot be read", extra=details)

        return read_or(path.stem, self.get_metadata, log)

    def _take_over_older(self) -> None:
        """Put the artifacts of a folder of an older release, two files each, into their places."""
        if not any(self._folder.glob("*.json")):
            return
        with self._locked(fcntl.LOCK_EX):
            for about in self._folder.glob("*.json"):
                metadata = ArtifactMetadata.from_dict(json.loads(about.read_bytes()))
                content = about.with_suffix(".bin")
                if content.exists():
                    content.replace(self._blob(metadata.blob_id))
                    sync_folder(self._blobs)
                self._write_ref(metadata, create_only=True)
                about.unlink()

    def _write_ref(self, metadata: ArtifactMetadata, *, create_only: bool = False) -> bool:
        path, text = self._ref(metadata.artifact_id), row_text(metadata.to_dict())
        return write_whole(path, text.encode(), fault=self._fault, create_only=create_only)

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        """Keep other processes and threads away: all of them, or those that do not share."""
        with (self._folder / "lock").open("ab") as file:
            fcntl.flock(file, how)
            yield

    def _ref(self, artifact_id: str) -> Path:
        return self._refs / f"{checked_artifact_id(artifact_id)}.meta"

    def _blob(self, blob_id: str) -> Path:
        return self._blobs / f"{checked_artifact_id(blob_id)}.bin"
