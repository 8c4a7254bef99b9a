"""Documents with embeddings: see `schema/stores/vectors.sql`."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Final, LiteralString

from pydantic import JsonValue
from pydantic_core import to_json
from typing_extensions import override

from actors._kernel.hidden import checked_filter
from actors._kernel.json import decoded_object
from actors._kernel.runtime.ids import check_name
from actors._kernel.search_rules import (
    CheckedDocument,
    check_collection,
    check_dimensions,
    check_embedder,
    check_hits,
    check_ids,
    check_query,
    checked_documents,
    embedder_name,
    unit_vector,
)
from actors._kernel.stores.data import EmbeddingClient, SearchResult, VectorDocument, VectorStore
from actors.errors import ConflictError
from persistence._postgres.data.first_use import StoreTables

TRIES: Final = 3
"""Number of tries of a write. If another session makes the collection meanwhile, the next try sees it."""

# No row comes back if another writer made the collection, or named its embedder, since the statement began.
SQL_KEEP_DOCUMENTS: Final[LiteralString] = """
with made as (
  insert into vector_collections as c (tenant, collection, dimensions, embedder) values ($1, $2, $3, $9)
    on conflict (tenant, collection) do nothing returning c.dimensions, c.embedder),
named as (
  update vector_collections c set embedder = $9
    where c.tenant = $1 and c.collection = $2 and c.dimensions = $3 and c.embedder is null and $9 is not null
    returning c.dimensions, c.embedder),
known as (
  select m.dimensions, m.embedder from made m
  union all select n.dimensions, n.embedder from named n
  union all select c.dimensions, c.embedder from vector_collections c
    where c.tenant = $1 and c.collection = $2
      and not (c.dimensions = $3 and c.embedder is null and $9 is not null)),
kept as (
  insert into vector_documents as d (tenant, collection, id, content, metadata, embedding)
    select $1, $2, n.id, n.content, n.metadata::json, ($7::real[])[(n.at - 1)::int * $3 + 1 : n.at::int * $3]
      from unnest($4::text[], $5::text[], $6::text[]) with ordinality n(id, content, metadata, at)
      where (select k.dimensions = $3 and coalesce(k.embedder = $9, true) from known k)
      order by n.id collate "C"
    on conflict (tenant, collection, id) do update set
      content = excluded.content, metadata = excluded.metadata, embedding = excluded.embedding where $8)
select k.dimensions, k.embedder from known k
"""
SQL_SEARCH_DOCUMENTS: Final[LiteralString] = """
select (select c.embedder from vector_collections c where c.tenant = $1 and c.collection = $2) as embedder,
    s.dimensions, s.id, s.content, s.metadata, s.score
  from search_documents($1, $2, $3, $4, $5) s
"""
SQL_DELETE_DOCUMENTS: Final[LiteralString] = """
delete from vector_documents d where d.tenant = $1 and d.collection = $2 and d.id = any($3::text[])
"""


class PgVectorStore(VectorStore):
    """A `VectorStore` of one tenant on PostgreSQL, with pgvector or without it.

    A search reads all documents of its collection, and is exact, unless the collection has an index: see
    `SearchIndexes`. What was kept when a call returned survives any crash that the database survives. A call
    that was interrupted has kept all of its documents or none.

    Args:
        tables: The tables of `vectors`.
        tenant: Owner of all that this store reads and writes.
        embedder: Computes embeddings of documents that have none.
    """

    def __init__(
        self, tables: StoreTables, *, tenant: str, embedder: EmbeddingClient | None = None
    ) -> None:
        self._tables, self._tenant = tables, check_name("tenant", tenant)
        self._embedder = embedder

    @override
    async def add(
        self, documents: Sequence[VectorDocument], *, collection: str = "default"
    ) -> None:
        check_collection(collection)
        checked = await checked_documents(documents, self._embedder, is_last_kept=False)
        await self._keep(collection, checked, replacing=False)

    @override
    async def upsert(
        self, documents: Sequence[VectorDocument], *, collection: str = "default"
    ) -> None:
        check_collection(collection)
        checked = await checked_documents(documents, self._embedder, is_last_kept=True)
        await self._keep(collection, checked, replacing=True)

    @override
    async def search(
        self,
        query_embedding: Sequence[float],
        *,
        collection: str = "default",
        limit: int = 5,
        filter: Mapping[str, JsonValue] | None = None,
    ) -> list[SearchResult]:
        check_collection(collection)
        check_hits(limit)
        unit = unit_vector(query_embedding, what="query embedding")
        metadata_filter = checked_filter(filter, what="filter of a search")
        text = None if metadata_filter is None else to_json(metadata_filter).decode()
        args = (self._tenant, collection, unit.tolist(), text, limit)
        rows = await self._tables.fetch("searching documents", SQL_SEARCH_DOCUMENTS, *args)
        if rows:
            check_embedder(embedder_name(self._embedder), rows[0]["embedder"], collection)
            check_query(unit, rows[0]["dimensions"], collection)
        return [
            SearchResult(
                id=row["id"],
                content=row["content"],
                score=row["score"],
                metadata=decoded_object(row["metadata"]),
            )
            for row in rows
            if row["id"] is not None
        ]

    @override
    async def delete(self, ids: Sequence[str], *, collection: str = "default") -> None:
        check_collection(collection)
        check_ids(ids)
        args = (self._tenant, collection, list(ids))
        await self._tables.fetch("deleting documents", SQL_DELETE_DOCUMENTS, *args)

    async def _keep(
        self, collection: str, documents: Sequence[CheckedDocument], *, replacing: bool
    ) -> None:
        if not documents:
            return
        first, units = documents[0], array("f")
        for document in documents:
            units += document.unit
        args = (
            *(self._tenant, collection, len(first.unit)),
            [document.id for document in documents],
            [document.content for document in documents],
            [document.metadata for document in documents],
            units.tolist(),
            replacing,
            name := embedder_name(self._embedder),
        )
        for _ in range(TRIES):
            rows = await self._tables.fetch("keeping documents", SQL_KEEP_DOCUMENTS, *args)
            if rows:
                check_embedder(name, rows[0]["embedder"], collection)
                check_dimensions(
                    first, rows[0]["dimensions"], f"those of collection {collection!r}"
                )
                return
        raise ConflictError(
            f"collection {collection!r} was made, named or removed meanwhile: try again"
        )
