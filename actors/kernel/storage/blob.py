"""Large binary things: files by key, and artifacts by reference. One store has both shapes."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from actors.kernel.storage.artifacts import ArtifactStore


@runtime_checkable
class FileStore(Protocol):
    """Files by key."""

    async def connect(self) -> None:
        """Make the store ready; nothing to do for one without a server."""
        ...

    async def disconnect(self) -> None:
        """Give its connections up; may be called twice."""
        ...

    async def upload(
        self, key: str, data: bytes, *, content_type: str = "application/octet-stream"
    ) -> None:
        """Keep `data` under `key`, in place of what was there."""
        ...

    async def download(self, key: str) -> bytes:
        """Return the file.

        Raises:
            KeyError: There is none.
        """
        ...

    async def delete(self, key: str) -> None:
        """Remove the file; no error when there is none."""
        ...

    async def presign_url(self, key: str, *, expires_s: float = 3600.0) -> str:
        """Return a URL that reads the file for so many seconds.

        One that starts with ``memory://`` cannot be fetched: download the file instead.
        """
        ...


@runtime_checkable
class BlobStore(FileStore, ArtifactStore, Protocol):
    """Both shapes on the same bytes: an artifact's reference holds its key."""
