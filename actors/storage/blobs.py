"""A `BlobStore` made of a store of files and a store of artifacts."""

from __future__ import annotations

from collections.abc import AsyncIterable

from typing_extensions import override

from actors.kernel.stores.artifacts import (
    ArtifactPin,
    ArtifactRef,
    ArtifactStore,
    BlobStore,
    FileStore,
)


class ComposedBlobStore(BlobStore):
    """A `BlobStore` that uses a store of files and a store of artifacts.

    Args:
        files: The store of files by key. It is connected and disconnected with this object.
        artifacts: The store of artifacts. Its owner opens and closes it.
    """

    def __init__(self, files: FileStore, artifacts: ArtifactStore) -> None:
        self._files, self._artifacts = files, artifacts

    @override
    async def connect(self) -> None:
        await self._files.connect()

    @override
    async def disconnect(self) -> None:
        await self._files.disconnect()

    @override
    async def upload(
        self, key: str, data: bytes, *, content_type: str = "application/octet-stream"
    ) -> None:
        await self._files.upload(key, data, content_type=content_type)

    @override
    async def download(self, key: str) -> bytes:
        return await self._files.download(key)

    @override
    async def delete(self, key: str) -> None:
        await self._files.delete(key)

    @override
    async def presign_url(self, key: str, *, expires_s: float = 3600.0) -> str:
        return await self._files.presign_url(key, expires_s=expires_s)

    @override
    async def store(
        self, data: bytes, *, content_type: str = "application/octet-stream"
    ) -> ArtifactRef:
        return await self._artifacts.store(data, content_type=content_type)

    @override
    async def store_pieces(
        self, pieces: AsyncIterable[bytes], *, content_type: str = "application/octet-stream"
    ) -> ArtifactRef:
        return await self._artifacts.store_pieces(pieces, content_type=content_type)

    @override
    async def stat(self, artifact_id: str) -> ArtifactRef | None:
        return await self._artifacts.stat(artifact_id)

    @override
    async def read(self, artifact_id: str, *, offset: int = 0, limit: int) -> bytes:
        return await self._artifacts.read(artifact_id, offset=offset, limit=limit)

    @override
    async def resolve(self, ref: ArtifactRef) -> bytes:
        return await self._artifacts.resolve(ref)

    @override
    async def pin(self, ref: ArtifactRef, *, owner: str) -> None:
        await self._artifacts.pin(ref, owner=owner)

    @override
    async def unpin(self, ref: ArtifactRef, *, owner: str) -> None:
        await self._artifacts.unpin(ref, owner=owner)

    @override
    async def pins(
        self, *, prefix: str = "", after: ArtifactPin | None = None, limit: int = 1000
    ) -> list[ArtifactPin]:
        return await self._artifacts.pins(prefix=prefix, after=after, limit=limit)

    @override
    async def discard(self, artifact_id: str) -> None:
        await self._artifacts.discard(artifact_id)
