"""Values too large for a row or a message, kept once and named by reference."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field


class ArtifactRef(BaseModel):
    """Names stored bytes. Equal content in one store gives an equal `id`.

    Attributes:
        id: SHA-256 of the bytes in hexadecimal.
        size_bytes: How many there are.
        content_type: What they are.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(pattern=r"^[0-9a-f]{64}$")
    size_bytes: int = Field(ge=0)
    content_type: str = "application/octet-stream"


@runtime_checkable
class ArtifactStore(Protocol):
    """Immutable bytes by reference. Unpinned ones may be removed after the store's grace time."""

    async def store(
        self, data: bytes, *, content_type: str = "application/octet-stream"
    ) -> ArtifactRef:
        """Keep `data` and return its reference; the same bytes are kept once."""
        ...

    async def resolve(self, ref: ArtifactRef) -> bytes:
        """Return the bytes.

        Raises:
            KeyError: They are not here (any more).
        """
        ...

    async def pin(self, ref: ArtifactRef, *, owner: str) -> None:
        """Keep the bytes for as long as `owner` (for example a run id) pins them. Idempotent."""
        ...

    async def unpin(self, ref: ArtifactRef, *, owner: str) -> None:
        """Take the owner's pin away; no error when there is none."""
        ...
