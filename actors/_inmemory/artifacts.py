"""Bytes in one process: artifacts by their SHA-256, files by their key, and a `BlobStore` of both.

An artifact is immutable, and separate for each tenant and scope.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from typing_extensions import override

from actors._kernel.basics import check_expiry_s
from actors._kernel.stores.artifacts import (
    ArtifactPin,
    ArtifactRef,
    ArtifactStore,
    ArtifactStores,
    BlobStore,
    FileStore,
)
from actors._kernel.text import check_file_key, check_name_of

_TICK: Final = timedelta(microseconds=1)


@dataclass(slots=True)
class _StoredArtifact:
    ref: ArtifactRef
    data: bytes
    at: datetime
    pins: dict[str, datetime] = field(default_factory=dict)


class InMemoryArtifacts(ArtifactStores):
    """The artifacts of all tenants of one process, which are lost with it.

    Args:
        now: The clock for the artifacts' instants.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._last_pin = datetime.min.replace(tzinfo=UTC)
        self._scopes: dict[tuple[str, str], dict[str, _StoredArtifact]] = {}

    @override
    def of(self, tenant: str, scope: str) -> InMemoryArtifactStore:
        return InMemoryArtifactStore(
            self._scopes.setdefault((tenant, scope), {}), self._now, self._pinned_at
        )

    def _pinned_at(self) -> datetime:
        """Return an instant that no other pin has, even if the clock does not advance."""
        self._last_pin = max(self._now(), self._last_pin + _TICK)
        return self._last_pin

    def forget(self, tenant: str, scope: str) -> None:
        """Remove all artifacts of one scope, including pinned ones."""
        self._scopes.get((tenant, scope), {}).clear()

    def removals(self, tenant: str, scope: str | None) -> Iterator[Callable[[], object]]:
        """Yield for each artifact of a scope, or of the tenant, a function that removes it."""
        for key, artifacts in self._scopes.items():
            if key[0] == tenant and scope in (None, key[1]):
                for id_ in artifacts:
                    yield partial(artifacts.pop, id_, None)

    @override
    async def collect(self, *, grace_s: float, limit: int = 200) -> int:
        before = self._now() - timedelta(seconds=grace_s)
        old_keys = [
            (artifacts, id_)
            for artifacts in self._scopes.values()
            for id_, artifact in artifacts.items()
            if not artifact.pins and artifact.at <= before
        ][:limit]
        for artifacts, id_ in old_keys:
            del artifacts[id_]
        return len(old_keys)


class InMemoryArtifactStore(ArtifactStore):
    """An `ArtifactStore` of one tenant and scope. `InMemoryArtifacts.of` makes it."""

    def __init__(
        self,
        kept: dict[str, _StoredArtifact],
        now: Callable[[], datetime],
        pinned_at: Callable[[], datetime],
    ) -> None:
        self._artifacts_by_id, self._now, self._pinned_at = kept, now, pinned_at

    @override
    async def store(
        self, data: bytes, *, content_type: str = "application/octet-stream"
    ) -> ArtifactRef:
        check_name_of("media type of an artifact", content_type)
        id_ = hashlib.sha256(data).hexdigest()
        ref = ArtifactRef(id=id_, size_bytes=len(data), content_type=content_type)
        artifact = self._artifacts_by_id.setdefault(id_, _StoredArtifact(ref, data, self._now()))
        # Bytes that are stored again get a new grace time, or they may be collected before they are pinned.
        artifact.at = self._now()
        return artifact.ref

    @override
    async def store_pieces(
        self, pieces: AsyncIterable[bytes], *, content_type: str = "application/octet-stream"
    ) -> ArtifactRef:
        data = bytearray()
        async for piece in pieces:
            data += piece
        return await self.store(bytes(data), content_type=content_type)

    @override
    async def resolve(self, ref: ArtifactRef) -> bytes:
        return self._artifacts_by_id[ref.id].data

    @override
    async def stat(self, artifact_id: str) -> ArtifactRef | None:
        artifact = self._artifacts_by_id.get(artifact_id)
        return None if artifact is None else artifact.ref

    @override
    async def read(self, artifact_id: str, *, offset: int = 0, limit: int) -> bytes:
        artifact = self._artifacts_by_id[artifact_id]
        part = artifact.ref.part(offset, limit)
        return artifact.data[part.start : part.stop]

    @override
    async def pin(self, ref: ArtifactRef, *, owner: str) -> None:
        check_name_of("owner of a pin", owner)
        self._artifacts_by_id[ref.id].pins[owner] = self._pinned_at()

    @override
    async def unpin(self, ref: ArtifactRef, *, owner: str) -> None:
        artifact = self._artifacts_by_id.get(ref.id)
        if artifact is not None and owner in artifact.pins:
            del artifact.pins[owner]
            artifact.at = self._now()

    @override
    async def pins(
        self, *, prefix: str = "", after: ArtifactPin | None = None, limit: int = 1000
    ) -> list[ArtifactPin]:
        after_key = ("", "") if after is None else (after.ref.id, after.owner)
        pins = [
            ArtifactPin(artifact.ref, owner, at)
            for id_, artifact in self._artifacts_by_id.items()
            for owner, at in artifact.pins.items()
            if owner.startswith(prefix) and (id_, owner) > after_key
        ]
        return sorted(pins, key=lambda pin: (pin.ref.id, pin.owner))[:limit]

    @override
    async def discard(self, artifact_id: str) -> None:
        self._artifacts_by_id.pop(artifact_id, None)


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


class InMemoryFileStore(FileStore):
    """A `FileStore` in one process, whose files are lost with it.

    Its URLs begin with ``memory://`` and cannot be fetched. Use `download`.
    """

    def __init__(self) -> None:
        self._contents: dict[str, tuple[bytes, str]] = {}

    @override
    async def connect(self) -> None:
        """Do nothing, since there is no server."""

    @override
    async def disconnect(self) -> None:
        """Do nothing. The files stay."""

    @override
    async def upload(
        self, key: str, data: bytes, *, content_type: str = "application/octet-stream"
    ) -> None:
        check_file_key(key)
        check_name_of("media type of a file", content_type)
        self._contents[key] = bytes(data), content_type

    @override
    async def download(self, key: str) -> bytes:
        check_file_key(key)
        data, _ = self._contents[key]
        return data

    @override
    async def delete(self, key: str) -> None:
        check_file_key(key)
        self._contents.pop(key, None)

    @override
    async def presign_url(self, key: str, *, expires_s: float = 3600.0) -> str:
        check_file_key(key)
        check_expiry_s(expires_s)
        return f"memory://{key}"
