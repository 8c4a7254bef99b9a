"""Artifacts in one process: immutable bytes by their SHA-256, separate for each tenant and scope."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from typing_extensions import override

from actors.kernel.stores.artifacts import ArtifactPin, ArtifactRef, ArtifactStore, ArtifactStores
from actors.kernel.text import check_name_of

_TICK: Final = timedelta(microseconds=1)


@dataclass(slots=True)
class _KeptArtifact:
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
        self._kept: dict[tuple[str, str], dict[str, _KeptArtifact]] = {}

    @override
    def of(self, tenant: str, scope: str) -> InMemoryArtifactStore:
        return InMemoryArtifactStore(
            self._kept.setdefault((tenant, scope), {}), self._now, self._pinned_at
        )

    def _pinned_at(self) -> datetime:
        """Return an instant that no other pin has, even if the clock does not advance."""
        self._last_pin = max(self._now(), self._last_pin + _TICK)
        return self._last_pin

    def forget(self, tenant: str, scope: str) -> None:
        """Remove all artifacts of one scope, including pinned ones."""
        self._kept.get((tenant, scope), {}).clear()

    def removals(self, tenant: str, scope: str | None) -> Iterator[Callable[[], object]]:
        """Yield for each artifact of a scope, or of the tenant, a function that removes it."""
        for place, held in self._kept.items():
            if place[0] == tenant and scope in (None, place[1]):
                for id_ in held:
                    yield partial(held.pop, id_, None)

    @override
    async def collect(self, *, grace_s: float, limit: int = 200) -> int:
        before = self._now() - timedelta(seconds=grace_s)
        old = [
            (held, id_)
            for held in self._kept.values()
            for id_, kept in held.items()
            if not kept.pins and kept.at <= before
        ][:limit]
        for held, id_ in old:
            del held[id_]
        return len(old)


class InMemoryArtifactStore(ArtifactStore):
    """An `ArtifactStore` of one tenant and scope. `InMemoryArtifacts.of` makes it."""

    def __init__(
        self,
        kept: dict[str, _KeptArtifact],
        now: Callable[[], datetime],
        pinned_at: Callable[[], datetime],
    ) -> None:
        self._kept, self._now, self._pinned_at = kept, now, pinned_at

    @override
    async def store(
        self, data: bytes, *, content_type: str = "application/octet-stream"
    ) -> ArtifactRef:
        check_name_of("media type of an artifact", content_type)
        id_ = hashlib.sha256(data).hexdigest()
        ref = ArtifactRef(id=id_, size_bytes=len(data), content_type=content_type)
        kept = self._kept.setdefault(id_, _KeptArtifact(ref, data, self._now()))
        kept.at = self._now()
        return kept.ref

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
        return self._kept[ref.id].data

    @override
    async def stat(self, artifact_id: str) -> ArtifactRef | None:
        kept = self._kept.get(artifact_id)
        return None if kept is None else kept.ref

    @override
    async def read(self, artifact_id: str, *, offset: int = 0, limit: int) -> bytes:
        kept = self._kept[artifact_id]
        part = kept.ref.part(offset, limit)
        return kept.data[part.start : part.stop]

    @override
    async def pin(self, ref: ArtifactRef, *, owner: str) -> None:
        check_name_of("owner of a pin", owner)
        self._kept[ref.id].pins[owner] = self._pinned_at()

    @override
    async def unpin(self, ref: ArtifactRef, *, owner: str) -> None:
        kept = self._kept.get(ref.id)
        if kept is not None and owner in kept.pins:
            del kept.pins[owner]
            kept.at = self._now()

    @override
    async def pins(
        self, *, prefix: str = "", after: ArtifactPin | None = None, limit: int = 1000
    ) -> list[ArtifactPin]:
        place = ("", "") if after is None else (after.ref.id, after.owner)
        found = [
            ArtifactPin(kept.ref, owner, at)
            for id_, kept in self._kept.items()
            for owner, at in kept.pins.items()
            if owner.startswith(prefix) and (id_, owner) > place
        ]
        return sorted(found, key=lambda pin: (pin.ref.id, pin.owner))[:limit]

    @override
    async def discard(self, artifact_id: str) -> None:
        self._kept.pop(artifact_id, None)
