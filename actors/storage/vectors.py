"""Documents with embeddings in one process, searched one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue
from pydantic_core import from_json
from typing_extensions import override

from actors.kernel.embedding import (
    CheckedDocument,
    check_collection,
    check_dimensions,
    check_hits,
    check_ids,
    check_query,
    checked_documents,
    cosine,
    unit_vector,
)
from actors.kernel.metadata import checked_filter, matches
from actors.kernel.storage.vector import EmbeddingClient, SearchResult, VectorDocument, VectorStore


@dataclass(frozen=True, slots=True)
class _SearchedDocument:
    """A document, and its metadata once more, to be compared with filters."""

    document: CheckedDocument
    metadata: dict[str, JsonValue]


@dataclass(slots=True)
class _Collection:
    dimensions: int
    kept: dict[str, _SearchedDocument] = field(default_factory=dict)


class InMemoryVectorStore(VectorStore):
    """A `VectorStore` of one tenant, which is lost with the process.

    A search compares the query with each document of the collection on the event loop: some ten thousand
    documents take it a second.

    Args:
        embedder: Computes embeddings of documents that have none.
    """

    def __init__(self, *, embedder: EmbeddingClient | None = None) -> None:
        self._embedder = embedder
        self._collections: dict[str, _Collection] = {}

    @override
    async def add(
        self, documents: Sequence[VectorDocument], *, collection: str = "default"
    ) -> None:
        await self._keep(documents, collection, is_last_kept=False)

    @override
    async def upsert(
        self, documents: Sequence[VectorDocument], *, collection: str = "default"
    ) -> None:
        await self._keep(documents, collection, is_last_kept=True)

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
        wanted = checked_filter(filter, what="filter of a search") or {}
        found = self._collections.get(collection)
        if found is None:
            return []
        check_query(unit, found.dimensions, collection)
        hits = sorted(
            (-cosine(unit, one.document.unit), one.document.id)
            for one in found.kept.values()
            if matches(one.metadata, wanted)
        )
        return [_result(found.kept[id_].document, -score) for score, id_ in hits[:limit]]

    @override
    async def delete(self, ids: Sequence[str], *, collection: str = "default") -> None:
        check_collection(collection)
        check_ids(ids)
        if (found := self._collections.get(collection)) is not None:
            for one in ids:
                found.kept.pop(one, None)

    async def _keep(
        self, documents: Sequence[VectorDocument], collection: str, *, is_last_kept: bool
    ) -> None:
        check_collection(collection)
        checked = await checked_documents(documents, self._embedder, is_last_kept=is_last_kept)
        if not checked:
            return
        first = checked[0]
        found = self._collections.setdefault(collection, _Collection(len(first.unit)))
        check_dimensions(first, found.dimensions, f"those of collection {collection!r}")
        for one in checked:
            if is_last_kept or one.id not in found.kept:
                found.kept[one.id] = _SearchedDocument(one, from_json(one.metadata))


def _result(document: CheckedDocument, score: float) -> SearchResult:
    metadata = from_json(document.metadata)
    return SearchResult(id=document.id, content=document.content, score=score, metadata=metadata)
