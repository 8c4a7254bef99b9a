"""Large binary values: files by key, and artifacts by reference. One store has both shapes."""

from __future__ import annotations

from collections.abc import AsyncIterable
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

from actors.errors import ContractError


class ArtifactRef(BaseModel):
    """Name of stored bytes. Equal content in one store has an equal `id`.

    Attributes:
        id: SHA-256 of the bytes, in hexadecimal.
        size_bytes: Their number.
        content_type: Their media type.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(pattern=r"^[0-9a-f]{64}$")
    size_bytes: int = Field(ge=0)
    content_type: str = "application/octet-stream"

    def part(self, offset: int, limit: int) -> range:
        """Return the positions of at most `limit` bytes after the first `offset`; none after the end.

        Raises:
            ContractError: One of them is negative.
        """
        if offset < 0 or limit < 0:
            msg = f"a part of an artifact begins at 0 or later and is not negative: {offset=}, {limit=}"
            raise ContractError(msg)
        begins = min(offset, self.size_bytes)
        return range(begins, min(begins + limit, self.size_bytes))


@dataclass(frozen=True, slots=True)
class ArtifactPin:
    """A pin of an artifact.

    Attributes:
        ref: The bytes.
        owner: The owner of the pin, who keeps the artifacts.
        at: The instant at which the owner pinned them last, aware UTC.
    """

    ref: ArtifactRef
    owner: str
    at: datetime


@runtime_checkable
class ArtifactStore(Protocol):
    """Immutable bytes by reference, of one tenant and one scope within it.

    An artifact becomes visible as a whole: a `store` that fails leaves nothing that anybody can read. The
    store may remove an artifact without a pin, a grace time after it was stored or lost a pin last.
    """

    async def store(
        self, data: bytes, *, content_type: str = "application/octet-stream"
    ) -> ArtifactRef:
        """Keep `data` and return its reference. Equal bytes are kept once, with the first media type."""

    async def store_pieces(
        self, pieces: AsyncIterable[bytes], *, content_type: str = "application/octet-stream"
    ) -> ArtifactRef:
        """Keep the joined pieces, of which the store holds a few at a time in memory. See `store`."""

    async def stat(self, artifact_id: str) -> ArtifactRef | None:
        """Return the reference of stored bytes, or None if the store does not have them."""

    async def read(self, artifact_id: str, *, offset: int = 0, limit: int) -> bytes:
        """Return at most `limit` bytes after the first `offset`; none after the end.

        Raises:
            KeyError: See `resolve`.
            ContractError: `offset` or `limit` is negative.
        """

    async def resolve(self, ref: ArtifactRef) -> bytes:
        """Return the bytes.

        Raises:
            KeyError: The store does not have them, or not any more.
        """

    async def pin(self, ref: ArtifactRef, *, owner: str) -> None:
        """Keep the bytes while `owner`, for example a run id, pins them. Again it renews the pin's instant.

        Raises:
            KeyError: See `resolve`.
        """

    async def unpin(self, ref: ArtifactRef, *, owner: str) -> None:
        """Remove the owner's pin, if there is one."""

    async def pins(
        self, *, prefix: str = "", after: ArtifactPin | None = None, limit: int = 1000
    ) -> list[ArtifactPin]:
        """Return the pins of owners whose names begin with `prefix`, by artifact and owner.

        At most `limit`. The last one of a page is the `after` of the next.
        """

    async def discard(self, artifact_id: str) -> None:
        """Remove the bytes and all pins of them, if they are there."""


@runtime_checkable
class ArtifactRetention(Protocol):
    """Clean-up over the artifacts of all tenants of one deployment."""

    async def collect(self, *, grace_s: float, limit: int = 200) -> int:
        """Remove unpinned artifacts that were stored or lost a pin last `grace_s` seconds ago or earlier.

        At most `limit`, the oldest first. The rest of an upload that died goes the same way. Return how many
        were removed; a store may remove fewer at once, so call it again until that is 0.
        """


@runtime_checkable
class ArtifactStores(ArtifactRetention, Protocol):
    """The artifacts of all tenants of one deployment."""

    def of(self, tenant: str, scope: str) -> ArtifactStore:
        """Return the artifacts of one tenant and one scope within it, for example of an agent."""


@runtime_checkable
class ArtifactBytes(Protocol):
    """Bytes of artifacts by name, beside the store that has their references and pins."""

    def new_name(self, tenant: str, scope: str) -> str:
        """Return a name for bytes of this tenant and scope, another one at each call."""

    async def put(self, name: str, pieces: AsyncIterable[bytes]) -> None:
        """Keep the joined pieces as a whole; a call that fails leaves nothing that `read` finds."""

    async def read(self, name: str, *, offset: int, limit: int) -> bytes:
        """Return the `limit` bytes after the first `offset`, which exist.

        Raises:
            KeyError: There is nothing of this name.
        """

    async def delete(self, name: str) -> None:
        """Remove the bytes, if they are there."""

    async def probe(self) -> None:
        """Check that the storage answers and may be read; nothing is written."""


@runtime_checkable
class FileStore(Protocol):
    """Files by key, a relative path: see `actors._kernel.text.check_file_key`.

    A file becomes visible as a whole.

    Raises:
        ContractError: A key or a media type cannot be kept.
    """

    async def connect(self) -> None:
        """Make the store ready. A store without a server has nothing to do. Idempotent."""

    async def disconnect(self) -> None:
        """Close the store's connections. Idempotent."""

    async def upload(
        self, key: str, data: bytes, *, content_type: str = "application/octet-stream"
    ) -> None:
        """Keep `data` under `key`, replacing an earlier file."""

    async def download(self, key: str) -> bytes:
        """Return the file.

        Raises:
            KeyError: There is none.
        """

    async def delete(self, key: str) -> None:
        """Remove the file, if there is one."""

    async def presign_url(self, key: str, *, expires_s: float = 3600.0) -> str:
        """Return a URL that reads the file for `expires_s` seconds.

        If its scheme is not ``https`` or ``http``, for example ``memory://``, it cannot be fetched: use
        `download`. Nobody checks that there is such a file.
        """


@runtime_checkable
class BlobStore(FileStore, ArtifactStore, Protocol):
    """Both shapes over the same storage. Keys of files and ids of artifacts do not collide."""
