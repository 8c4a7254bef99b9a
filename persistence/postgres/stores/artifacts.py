"""Artifacts in chunks: see the migration `artifacts`."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncIterable, AsyncIterator
from datetime import timedelta
from typing import Final, LiteralString

from typing_extensions import override

from actors.errors import ConflictError
from actors.kernel.storage.blob import ArtifactPin, ArtifactRef, ArtifactStore, ArtifactStores
from actors.kernel.text import check_name_of
from persistence.postgres.connection.link import Links, Row

CHUNK_BYTES: Final = 256 * 1024
"""Of one chunk, which is one row and one statement. Both sides hold a few of them at a time, no statement
keeps a connection long, and a part that a model reads is in one or two."""

SQL_TOUCH: Final[LiteralString] = """
update artifacts a set at = clock_timestamp() where a.tenant = $1 and a.scope = $2 and a.id = $3
  returning a.id, a.size_bytes, a.content_type
"""
SQL_ADD_CHUNK: Final[LiteralString] = """
with upload as (
  insert into artifact_uploads as u (upload, at) values ($1, clock_timestamp())
    on conflict (upload) do update set at = excluded.at returning u.upload)
insert into artifact_chunks (upload, n, data) select u.upload, $2, $3 from upload u on conflict do nothing
"""
SQL_FINISH: Final[LiteralString] = "select finish_artifact($1, $2, $3, $4, $5, $6, $7, $8)"
SQL_STAT: Final[LiteralString] = """
select a.id, a.size_bytes, a.content_type from artifacts a
  where a.tenant = $1 and a.scope = $2 and a.id = $3
"""
SQL_READ: Final[LiteralString] = "select chunk_bytes, n, data from read_artifact($1, $2, $3, $4)"
SQL_PIN: Final[LiteralString] = "select pin_artifact($1, $2, $3, $4) as is_there"
SQL_UNPIN: Final[LiteralString] = "select unpin_artifact($1, $2, $3, $4)"
SQL_PINS: Final[LiteralString] = """
select k.owner, coalesce(k.at, a.at) as at, a.id, a.size_bytes, a.content_type
  from (select p.id, p.owner, p.at from artifact_pins p
      where p.tenant = $1 and p.scope = $2 and (p.id, p.owner) > ($4, $5) and starts_with(p.owner, $3)
      order by p.id, p.owner limit $6) k
  cross join lateral (select n.id, n.size_bytes, n.content_type, n.at from artifacts n
    where n.tenant = $1 and n.scope = $2 and n.id = k.id offset 0) a
  order by k.id, k.owner
"""
SQL_DISCARD: Final[LiteralString] = "select drop_artifacts($1, $2, $3)"
SQL_COLLECT: Final[LiteralString] = "select collect_artifacts($1, $2) as n"


class PostgresArtifacts(ArtifactStores):
    """The artifacts of all tenants of one schema.

    Args:
        links: For one statement at a time.
    """

    def __init__(self, links: Links) -> None:
        self._links = links

    @override
    def of(self, tenant: str, scope: str) -> PostgresArtifactStore:
        return PostgresArtifactStore(self._links, tenant, scope)

    @override
    async def collect(self, *, grace_s: float, limit: int = 200) -> int:
        grace = timedelta(seconds=grace_s)
        return int(await self._links.value("collecting artifacts", SQL_COLLECT, grace, limit))


class PostgresArtifactStore(ArtifactStore):
    """An `ArtifactStore` of one tenant and scope. Made by `PostgresArtifacts.of`.

    What a process that dies has written of an artifact is seen by nobody, and is collected.
    """

    def __init__(self, links: Links, tenant: str, scope: str) -> None:
        self._links, self._of = links, (tenant, scope)

    @override
    async def store(
        self, data: bytes, *, content_type: str = "application/octet-stream"
    ) -> ArtifactRef:
        id_ = hashlib.sha256(data).hexdigest()
        rows = await self._links.fetch("storing an artifact", SQL_TOUCH, *self._of, id_)
        if rows:
            return _ref(rows[0])

        async def once() -> AsyncIterator[bytes]:
            yield data

        return await self.store_pieces(once(), content_type=content_type)

    @override
    async def store_pieces(
        self, pieces: AsyncIterable[bytes], *, content_type: str = "application/octet-stream"
    ) -> ArtifactRef:
        check_name_of("media type of an artifact", content_type)
        doing, upload = "storing an artifact", secrets.token_hex(16)
        digest, size, count = hashlib.sha256(), 0, 0
        async for chunk in _chunks(pieces):
            digest.update(chunk)
            await self._links.fetch(doing, SQL_ADD_CHUNK, upload, count, chunk)
            size, count = size + len(chunk), count + 1
        id_ = digest.hexdigest()
        args = (*self._of, upload, id_, size, content_type, count, CHUNK_BYTES)
        await self._links.value(doing, SQL_FINISH, *args)
        ref = await self.stat(id_)
        if ref is None:
            msg = f"an upload of {size:,} bytes took so long that it was collected: store it again"
            raise ConflictError(msg)
        return ref

    @override
    async def resolve(self, ref: ArtifactRef) -> bytes:
        return await self.read(ref.id, limit=ref.size_bytes)

    @override
    async def stat(self, artifact_id: str) -> ArtifactRef | None:
        rows = await self._links.fetch("finding an artifact", SQL_STAT, *self._of, artifact_id)
        return _ref(rows[0]) if rows else None

    @override
    async def read(self, artifact_id: str, *, offset: int = 0, limit: int) -> bytes:
        ref = await self.stat(artifact_id)
        if ref is None:
            raise KeyError(artifact_id)
        part, data = ref.part(offset, limit), bytearray()
        while len(data) < len(part):
            data += await self._from(artifact_id, part.start + len(data), part.stop)
        return bytes(data)

    @override
    async def pin(self, ref: ArtifactRef, *, owner: str) -> None:
        check_name_of("owner of a pin", owner)
        if not await self._links.value("pinning an artifact", SQL_PIN, *self._of, ref.id, owner):
            raise KeyError(ref.id)

    @override
    async def unpin(self, ref: ArtifactRef, *, owner: str) -> None:
        await self._links.fetch("unpinning an artifact", SQL_UNPIN, *self._of, ref.id, owner)

    @override
    async def pins(
        self, *, prefix: str = "", after: ArtifactPin | None = None, limit: int = 1000
    ) -> list[ArtifactPin]:
        place = ("", "") if after is None else (after.ref.id, after.owner)
        args = (*self._of, prefix, *place, limit)
        rows = await self._links.fetch("listing pins", SQL_PINS, *args)
        return [ArtifactPin(_ref(row), row["owner"], row["at"]) for row in rows]

    @override
    async def discard(self, artifact_id: str) -> None:
        await self._links.fetch("removing an artifact", SQL_DISCARD, *self._of, artifact_id)

    async def _from(self, artifact_id: str, at: int, end: int) -> memoryview:
        """Return the bytes of the chunk in which `at` is, from there on, and none from `end` on."""
        rows = await self._links.fetch("reading an artifact", SQL_READ, *self._of, artifact_id, at)
        if not rows or rows[0]["data"] is None:  # it was removed meanwhile
            raise KeyError(artifact_id)
        row = rows[0]
        begins = row["n"] * row["chunk_bytes"]
        return memoryview(row["data"])[at - begins : end - begins]


async def _chunks(pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield pieces as chunks of one size, the last one perhaps shorter; at least one."""
    held, is_any = bytearray(), False
    async for piece in pieces:
        for at in range(0, len(piece), CHUNK_BYTES):
            held += memoryview(piece)[at : at + CHUNK_BYTES]
            if len(held) >= CHUNK_BYTES:
                yield bytes(memoryview(held)[:CHUNK_BYTES])
                is_any = True
                held = held[CHUNK_BYTES:]
    if held or not is_any:
        yield bytes(held)


def _ref(row: Row) -> ArtifactRef:
    return ArtifactRef(id=row["id"], size_bytes=row["size_bytes"], content_type=row["content_type"])
