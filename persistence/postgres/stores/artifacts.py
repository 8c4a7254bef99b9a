"""Artifacts in chunks: see the migration `artifacts`."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncIterable, AsyncIterator
from datetime import timedelta
from typing import Final, LiteralString

from typing_extensions import override

from actors.errors import ConflictError
from actors.kernel.storage.blob import ArtifactRef, ArtifactRetention, ArtifactStore
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
# The upload's row goes with what finishes it, so a collector finishes or finds nothing. Sent again it finds
# its own artifact. If another upload of the same bytes was first, the chunks of this one go.
SQL_FINISH: Final[LiteralString] = """
with done as (
  delete from artifact_uploads u where u.upload = $3 returning u.upload),
whole as (
  select d.upload from done d
    where (select count(*) from artifact_chunks c where c.upload = $3) = $7::int),
added as (
  insert into artifacts as a (tenant, scope, id, upload, size_bytes, content_type, chunk_bytes, at)
    select $1, $2, $4, w.upload, $5, $6, $8, clock_timestamp() from whole w
    on conflict (tenant, scope, id) do update set at = excluded.at
    returning a.upload = $3 as is_first),
gone as (
  delete from artifact_chunks c where c.upload in (select d.upload from done d)
    and not exists (select 1 from added a where a.is_first))
select count(*) as n from added
"""
SQL_STAT: Final[LiteralString] = """
select a.id, a.size_bytes, a.content_type from artifacts a
  where a.tenant = $1 and a.scope = $2 and a.id = $3
"""
SQL_READ: Final[LiteralString] = """
select a.chunk_bytes, c.n, c.data from artifacts a
  left join lateral (select k.n, k.data from artifact_chunks k
    where k.upload = a.upload and k.n = ($4::bigint / a.chunk_bytes)::int) c on true
  where a.tenant = $1 and a.scope = $2 and a.id = $3
"""
# The row is written, too: a collector that has looked at it before looks again.
SQL_PIN: Final[LiteralString] = """
with held as (
  update artifacts a set at = clock_timestamp() where a.tenant = $1 and a.scope = $2 and a.id = $3
    returning a.tenant, a.scope, a.id),
pinned as (
  insert into artifact_pins (tenant, scope, id, owner) select h.tenant, h.scope, h.id, $4 from held h
    on conflict do nothing)
select 1 as one from held
"""
SQL_UNPIN: Final[LiteralString] = """
delete from artifact_pins p where p.tenant = $1 and p.scope = $2 and p.id = $3 and p.owner = $4
"""
SQL_DISCARD: Final[LiteralString] = """
with gone as (
  delete from artifacts a where a.tenant = $1 and a.scope = $2 and a.id = $3 returning a.upload),
pins as (
  delete from artifact_pins p where p.tenant = $1 and p.scope = $2 and p.id = $3)
delete from artifact_chunks c where c.upload = any(array(select g.upload from gone g))
"""
SQL_COLLECT: Final[LiteralString] = """
with gone as (
  delete from artifacts a where a.ctid = any(array(
      select o.ctid from artifacts o where o.at <= clock_timestamp() - $1::interval
        and not exists (select 1 from artifact_pins p
          where p.tenant = o.tenant and p.scope = o.scope and p.id = o.id)
        order by o.at limit $2 for update skip locked))
    returning a.upload),
dead as (
  delete from artifact_uploads u where u.ctid = any(array(
      select o.ctid from artifact_uploads o where o.at <= clock_timestamp() - $1::interval
        limit $2 for update skip locked))
    returning u.upload),
chunks as (
  delete from artifact_chunks c where c.upload = any(array(
    select g.upload from gone g union all select d.upload from dead d)))
select (select count(*) from gone) + (select count(*) from dead) as n
"""


class PostgresArtifacts(ArtifactRetention):
    """The artifacts of all tenants of one schema.

    Args:
        links: For one statement at a time.
    """

    def __init__(self, links: Links) -> None:
        self._links = links

    def of(self, tenant: str, scope: str) -> PostgresArtifactStore:
        """Return the artifacts of one tenant and scope, for example of an agent's session."""
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
        if not await self._links.fetch("pinning an artifact", SQL_PIN, *self._of, ref.id, owner):
            raise KeyError(ref.id)

    @override
    async def unpin(self, ref: ArtifactRef, *, owner: str) -> None:
        await self._links.fetch("unpinning an artifact", SQL_UNPIN, *self._of, ref.id, owner)

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
