"""Large binary values: files by key, and artifacts by reference. One store has both shapes."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field


class ArtifactRef(BaseModel):
    """Name of stored bytes. Equal content in one store has an equal `id`.

    Attributes:
        id: SHA-256 of the bytes, in hexadecimal.
        size_bytes: Their number.
        content_type: Their media type.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(pattern=r"^[0-9a-f]{64}$")
    size_bytes: int = Field(ge=0)
    content_type: str = "application/octet-stream"


@runtime_checkable
class ArtifactStore(Protocol):
    """Immutable bytes by reference. The store may remove unpinned ones after its grace time."""

    async def store(
        self, data: bytes, *, content_type: str = "application/octet-stream"
    ) -> ArtifactRef:
        """Keep `data` and return its reference. Equal bytes are kept once."""

    async def resolve(self, ref: ArtifactRef) -> bytes:
        """Return the bytes.

        Raises:
            KeyError: The store does not have them, or not any more.
        """

    async def pin(self, ref: ArtifactRef, *, owner: str) -> None:
        """Keep the bytes while `owner`, for example a run id, pins them. Idempotent.

        Raises:
            KeyError: See `resolve`.
        """

    async def unpin(self, ref: ArtifactRef, *, owner: str) -> None:
        """Remove the owner's pin, if there is one."""


@runtime_checkable
class FileStore(Protocol):
    """Files by key."""

    async def connect(self) -> None:
        """Make the store ready. A store without a server has nothing to do. Idempotent."""

    async def disconnect(self) -> None:
        """Close the store's connections. Idempotent."""

    async def upload(
        self, key: str, data: bytes, *, content_type: str = "application/octet-stream"
    ) -> None:
        """Keep `data` under `key`, in place of an earlier file."""

    async def download(self, key: str) -> bytes:
        """Return the file.

        Raises:
            KeyError: There is none.
        """

    async def delete(self, key: str) -> None:
        """Remove the file, if there is one."""

    async def presign_url(self, key: str, *, expires_s: float = 3600.0) -> str:
        """Return a URL that reads the file for `expires_s` seconds.

        One that starts with ``memory://`` cannot be fetched: use `download`.
        """


@runtime_checkable
class BlobStore(FileStore, ArtifactStore, Protocol):
    """Both shapes over the same storage. Keys of files and ids of artifacts do not collide."""
