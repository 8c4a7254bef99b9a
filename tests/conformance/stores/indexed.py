"""Stores whose collections and scopes are indexed from their first row, for any number of rows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from typing_extensions import override

from actors._kernel.stores.memory import LongTermMemories, LongTermMemory
from persistence._postgres.data.first_use import StoreTables
from persistence._postgres.data.memories import PostgresLongTermMemory
from persistence._postgres.data.vectors import PgVectorStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors._kernel.runtime.scheduler import Lease
    from actors._kernel.stores.data import EmbeddingClient, VectorDocument
    from actors._kernel.stores.memory import Memory, NewMemory
    from persistence._postgres.connection.link import Links
    from persistence._postgres.data.indexes import SearchIndexes


class Indexing:
    """Builds what is missing, one build at a time.

    Args:
        indexes: Of the schema.
    """

    def __init__(self, indexes: SearchIndexes) -> None:
        self.indexes = indexes
        self._one = asyncio.Lock()
        self._known: set[tuple[str, str]] = set()

    async def cover(self, tenant: str, scope: str) -> None:
        """Build the missing indexes of a tenant, if this collection or scope is new."""
        async with self._one:
            if (tenant, scope) in self._known:
                return
            for index in await self.indexes.scopes(tenant=tenant, rows=0):
                if index.state != "ready" and index.is_indexable:
                    assert await self.indexes.build(index)
            self._known.add((tenant, scope))


class IndexedVectors(PgVectorStore):
    """A `PgVectorStore` with an index of each collection."""

    def __init__(
        self, links: Links, indexing: Indexing, *, tenant: str, embedder: EmbeddingClient | None
    ) -> None:
        super().__init__(StoreTables(links, "vectors"), tenant=tenant, embedder=embedder)
        self._indexing = indexing

    @override
    async def add(
        self, documents: Sequence[VectorDocument], *, collection: str = "default"
    ) -> None:
        await super().add(documents, collection=collection)
        await self._indexing.cover(self._tenant, collection)

    @override
    async def upsert(
        self, documents: Sequence[VectorDocument], *, collection: str = "default"
    ) -> None:
        await super().upsert(documents, collection=collection)
        await self._indexing.cover(self._tenant, collection)


class IndexedMemories(LongTermMemories):
    """Memories with an index of each scope."""

    def __init__(self, links: Links, indexing: Indexing) -> None:
        self._links, self._indexing = links, indexing

    @override
    def of(self, tenant: str) -> LongTermMemory:
        return IndexedMemory(StoreTables(self._links, "memories"), tenant, self._indexing)


class IndexedMemory(PostgresLongTermMemory):
    """The memories of one tenant, with an index of each scope."""

    def __init__(self, tables: StoreTables, tenant: str, indexing: Indexing) -> None:
        super().__init__(tables, tenant)
        self._indexing = indexing

    @override
    async def put(
        self,
        new: NewMemory,
        *,
        embedding: tuple[float, ...] | None = None,
        fence: Lease | None = None,
    ) -> Memory:
        memory = await super().put(new, embedding=embedding, fence=fence)
        if embedding is not None:
            await self._indexing.cover(self._tenant, f"{new.about} {len(embedding)}")
        return memory
