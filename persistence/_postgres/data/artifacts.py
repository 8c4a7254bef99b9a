"""Artifacts, in chunks or as objects elsewhere, and files by key, whose bytes are artifacts.

See the migration `artifacts`, and ``schema/stores/files.sql``.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import AsyncIterable, AsyncIterator
from datetime import timedelta
from typing import Final, LiteralString
from urllib.parse import quote

from typing_extensions import override

from actors._kernel.basics import check_expiry_s
from actors._kernel.runtime.ids import check_name
from actors._kernel.stores.artifacts import (
    ArtifactBytes,
    ArtifactPin,
    ArtifactRef,
    ArtifactStore,
    ArtifactStores,
    FileStore,
)
from actors._kernel.stores.runs import ARTIFACT_GRACE_S
from actors._kernel.text import check_file_key, check_name_of, check_text_of
from actors.errors import ConflictError
from persistence._postgres.connection.link import Links, Row
from persistence._postgres.data.first_use import StoreTables
from persistence.errors import BytesElsewhereError

CHUNK_BYTES: Final = 256 * 1024
"""Size of one chunk, which is one row and one statement. Both sides hold a few of them at a time, no statement
keeps a connection long, and a part that a model reads is in one or two."""
OBJECT: Final = "object:"
"""Prefix of the upload id of an artifact whose bytes are an object in a bucket; the object's name follows."""
_STORING: Final = "storing an artifact"

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
SQL_BEGIN_OBJECT: Final[LiteralString] = """
insert into artifact_uploads as u (upload, at) values ($1, clock_timestamp())
  on conflict (upload) do update set at = excluded.at
"""
SQL_FINISH: Final[LiteralString] = "select finish_artifact($1, $2, $3, $4, $5, $6, $7, $8)"
SQL_STAT: Final[LiteralString] = """
select a.id, a.size_bytes, a.content_type, a.upload from artifacts a
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
# Claims unfinished uploads for deletion: from then on none of them can be finished.
SQL_TAKE_OBJECTS: Final[LiteralString] = """
update artifact_uploads u set at = '-infinity' where u.ctid = any(array(
    select o.ctid from artifact_uploads o
      where starts_with(o.upload, 'object:') and o.at <= clock_timestamp() - $1::interval
      limit $2 for update skip locked))
  returning u.upload
"""
SQL_FORGET_OBJECTS: Final[LiteralString] = """
delete from artifact_uploads u where u.upload = any($1::text[]) and u.at = '-infinity'
"""


class PostgresArtifacts(ArtifactStores):
    """The artifacts of all tenants of one schema.

    Args:
        links: Connections, each for one statement at a time.
        object_bytes: The store of the bytes of new artifacts, or None if they are kept here, in chunks.
            References and pins are here. All that use the schema need the same.
    """

    def __init__(self, links: Links, object_bytes: ArtifactBytes | None = None) -> None:
        self._links, self._object_bytes = links, object_bytes

    @override
    def of(self, tenant: str, scope: str) -> PostgresArtifactStore:
        return PostgresArtifactStore(self._links, tenant, scope, self._object_bytes)

    @override
    async def collect(self, *, grace_s: float, limit: int = 200) -> int:
        grace = timedelta(seconds=grace_s)
        collected_count: int = await self._links.value(
            "collecting artifacts", SQL_COLLECT, grace, limit
        )
        removed_count = await self.remove_objects(limit, grace_s=grace_s)
        return collected_count or removed_count

    async def remove_objects(self, limit: int, *, grace_s: float = ARTIFACT_GRACE_S) -> int:
        """Remove objects of artifacts that are gone, and of uploads that began so long ago; return how many.

        A crash on the way leaves them to the next call. Without a store of objects nothing is done.
        """
        if self._object_bytes is None:
            return 0
        doing, grace = "removing objects of artifacts", timedelta(seconds=grace_s)
        rows = await self._links.fetch(doing, SQL_TAKE_OBJECTS, grace, limit)
        uploads = [row["upload"] for row in rows]
        for upload in uploads:
            # The object first, then its row: after a crash in between, the next call finds the row.
            await self._object_bytes.delete(upload.removeprefix(OBJECT))
        if uploads:
            await self._links.fetch(doing, SQL_FORGET_OBJECTS, uploads)
        return len(uploads)


class PostgresArtifactStore(ArtifactStore):
    """An `ArtifactStore` of one tenant and scope. Made by `PostgresArtifacts.of`.

    What a process that dies has written of an artifact is not visible, and is collected.
    """

    def __init__(
        self, links: Links, tenant: str, scope: str, object_bytes: ArtifactBytes | None = None
    ) -> None:
        self._links, self._of, self._object_bytes = links, (tenant, scope), object_bytes

    @override
    async def store(
        self, data: bytes, *, content_type: str = "application/octet-stream"
    ) -> ArtifactRef:
        id_ = hashlib.sha256(data).hexdigest()
        # Known bytes get a new time, so that no collection removes them before the caller has pinned them.
        rows = await self._links.fetch(_STORING, SQL_TOUCH, *self._of, id_)
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
        counter = _PieceCounter(pieces)
        if self._object_bytes is None:
            upload, count, chunk_bytes = secrets.token_hex(16), 0, CHUNK_BYTES
            async for chunk in _chunks(counter.pieces()):
                await self._links.fetch(_STORING, SQL_ADD_CHUNK, upload, count, chunk)
                count += 1
        else:
            name = self._object_bytes.new_name(*self._of)
            upload, count, chunk_bytes = OBJECT + name, 0, 0
            # The name is a row before the first byte: an object whose writer dies can be found and removed.
            await self._links.fetch(_STORING, SQL_BEGIN_OBJECT, upload)
            await self._object_bytes.put(name, counter.pieces())
        id_ = counter.digest.hexdigest()
        args = (*self._of, upload, id_, counter.size, content_type, count, chunk_bytes)
        await self._links.value(_STORING, SQL_FINISH, *args)
        ref = await self.stat(id_)
        if ref is None:
            msg = f"an upload of {counter.size:,} bytes took so long that it was collected: store it again"
            raise ConflictError(msg)
        return ref

    @override
    async def resolve(self, ref: ArtifactRef) -> bytes:
        return await self.read(ref.id, limit=ref.size_bytes)

    @override
    async def stat(self, artifact_id: str) -> ArtifactRef | None:
        row = await self._row(artifact_id)
        return None if row is None else _ref(row)

    @override
    async def read(self, artifact_id: str, *, offset: int = 0, limit: int) -> bytes:
        row = await self._row(artifact_id)
        if row is None:
            raise KeyError(artifact_id)
        part, data = _ref(row).part(offset, limit), bytearray()
        if part and row["upload"].startswith(OBJECT):
            return await self._read_object(artifact_id, row["upload"].removeprefix(OBJECT), part)
        while len(data) < len(part):
            data += await self._read_chunk(artifact_id, part.start + len(data), part.stop)
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
        position = ("", "") if after is None else (after.ref.id, after.owner)
        args = (*self._of, prefix, *position, limit)
        rows = await self._links.fetch("listing pins", SQL_PINS, *args)
        return [ArtifactPin(_ref(row), row["owner"], row["at"]) for row in rows]

    @override
    async def discard(self, artifact_id: str) -> None:
        await self._links.fetch("removing an artifact", SQL_DISCARD, *self._of, artifact_id)

    async def _row(self, artifact_id: str) -> Row | None:
        rows = await self._links.fetch("finding an artifact", SQL_STAT, *self._of, artifact_id)
        return rows[0] if rows else None

    async def _read_object(self, artifact_id: str, name: str, part: range) -> bytes:
        if self._object_bytes is None:
            raise BytesElsewhereError(artifact_id)
        try:
            return await self._object_bytes.read(name, offset=part.start, limit=len(part))
        except KeyError:  # it was removed meanwhile
            raise KeyError(artifact_id) from None

    async def _read_chunk(self, artifact_id: str, offset: int, end: int) -> memoryview:
        """Return the bytes of the chunk in which `offset` is, from there on, and none from `end` on."""
        rows = await self._links.fetch(
            "reading an artifact", SQL_READ, *self._of, artifact_id, offset
        )
        if not rows or rows[0]["data"] is None:  # it was removed meanwhile
            raise KeyError(artifact_id)
        row = rows[0]
        chunk_start = row["n"] * row["chunk_bytes"]
        return memoryview(row["data"])[offset - chunk_start : end - chunk_start]


class _PieceCounter:
    """Pieces on their way, with what is known of them when they have passed.

    Attributes:
        digest: Their SHA-256.
        size: Number of their bytes.
    """

    def __init__(self, pieces: AsyncIterable[bytes]) -> None:
        self._pieces, self.digest, self.size = pieces, hashlib.sha256(), 0

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield them."""
        async for piece in self._pieces:
            self.digest.update(piece)
            self.size += len(piece)
            yield piece


async def _chunks(pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Yield pieces as chunks of one size, the last one perhaps shorter; at least one."""
    buffer, has_chunk = bytearray(), False
    async for piece in pieces:
        for offset in range(0, len(piece), CHUNK_BYTES):
            buffer += memoryview(piece)[offset : offset + CHUNK_BYTES]
            if len(buffer) >= CHUNK_BYTES:
                yield bytes(memoryview(buffer)[:CHUNK_BYTES])
                has_chunk = True
                buffer = buffer[CHUNK_BYTES:]
    if buffer or not has_chunk:
        yield bytes(buffer)


def _ref(row: Row) -> ArtifactRef:
    return ArtifactRef(id=row["id"], size_bytes=row["size_bytes"], content_type=row["content_type"])


MAX_SCOPE_BYTES: Final = 1_000
"""Longest scope. It is in one index row with tenant and key, or with the pin's owner: at most 2,704 bytes."""

SQL_PUT_FILE: Final[LiteralString] = "select put_file($1, $2, $3, $4) as is_there"
SQL_SELECT_FILE: Final[LiteralString] = """
select f.artifact from files f where f.tenant = $1 and f.scope = $2 and f.key = $3
"""
SQL_DELETE_FILE: Final[LiteralString] = "select delete_file($1, $2, $3)"


class PostgresFiles:
    """The files of all tenants of one schema. Their table is made on first use.

    Args:
        links: Connections, each for one statement at a time. Their owner closes them.
    """

    def __init__(self, links: Links) -> None:
        self._tables, self._artifacts = StoreTables(links, "files"), PostgresArtifacts(links)

    def of(self, tenant: str, scope: str) -> PostgresFileStore:
        """Return the files of one tenant and one scope within it, for example of an application.

        Raises:
            ContractError: One of them cannot be a name.
        """
        check_name("tenant", tenant)
        check_text_of("scope of files", scope, limit_bytes=MAX_SCOPE_BYTES)
        return PostgresFileStore(self._tables, self._artifacts, tenant, f"files:{scope}")


class PostgresFileStore(FileStore):
    """A `FileStore` of one tenant and scope on PostgreSQL. Made by `PostgresFiles.of`.

    A file is durable when `upload` returns. An upload that dies leaves the earlier file. Bytes that no file
    has any more are collected as artifacts are. URLs cannot be fetched: use `download`.
    """

    def __init__(
        self, tables: StoreTables, artifacts: PostgresArtifacts, tenant: str, scope: str
    ) -> None:
        self._tables, self._of = tables, (tenant, scope)
        self._artifacts = artifacts.of(tenant, scope)

    @override
    async def connect(self) -> None:
        """Do nothing: connections are opened when they are needed."""

    @override
    async def disconnect(self) -> None:
        """Do nothing: connections belong to the owner of the links."""

    @override
    async def upload(
        self, key: str, data: bytes, *, content_type: str = "application/octet-stream"
    ) -> None:
        check_file_key(key)
        ref = await self._artifacts.store(data, content_type=content_type)
        args = *self._of, key, ref.id
        [[is_there]] = await self._tables.fetch("putting a file", SQL_PUT_FILE, *args)
        if not is_there:
            raise ConflictError(f"the bytes of file {key!r} were discarded meanwhile: upload again")

    @override
    async def download(self, key: str) -> bytes:
        check_file_key(key)
        rows = await self._tables.fetch("finding a file", SQL_SELECT_FILE, *self._of, key)
        ref = await self._artifacts.stat(rows[0]["artifact"]) if rows else None
        if ref is None:
            raise KeyError(key)
        return await self._artifacts.resolve(ref)

    @override
    async def delete(self, key: str) -> None:
        check_file_key(key)
        await self._tables.fetch("deleting a file", SQL_DELETE_FILE, *self._of, key)

    @override
    async def presign_url(self, key: str, *, expires_s: float = 3600.0) -> str:
        check_file_key(key)
        check_expiry_s(expires_s)
        return f"callboard://{quote(key)}"
