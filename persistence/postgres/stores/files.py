"""Files by key, whose bytes are artifacts: see ``schema/stores/files.sql``."""

from __future__ import annotations

from typing import Final, LiteralString
from urllib.parse import quote

from typing_extensions import override

from actors.errors import ConflictError
from actors.kernel.basics import check_expiry_s
from actors.kernel.runtime.ids import check_name
from actors.kernel.stores.artifacts import FileStore
from actors.kernel.text import check_file_key, check_text_of
from persistence.postgres.connection.link import Links
from persistence.postgres.stores.artifacts import PostgresArtifacts
from persistence.postgres.stores.first_use import StoreTables

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
