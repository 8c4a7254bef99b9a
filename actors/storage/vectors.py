"""Documents with embeddings in one process. A search compares the query with each document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from pydantic import JsonValue
from pydantic_core import from_json
from typing_extensions import override

from actors.kernel.hidden import checked_filter, matches
from actors.kernel.runtime.ids import DEFAULT_TENANT
from actors.kernel.search_rules import (
    CheckedDocument,
    check_collection,
    check_dimensions,
    check_embedder,
    check_hits,
    check_ids,
    check_query,
    checked_documents,
    cosine,
    embedder_name,
    unit_vector,
)
from actors.kernel.stores.administration import ERASE_BATCH, Erasable, EraseCount, EraseRequest
from actors.kernel.stores.data import EmbeddingClient, SearchResult, VectorDocument, VectorStore


@dataclass(frozen=True, slots=True)
class _SearchedDocument:
    """A document with its parsed metadata, which filters are compared with."""

    document: CheckedDocument
    metadata: dict[str, JsonValue]


@dataclass(slots=True)
class _Collection:
    dimensions: int
    embedder: str | None = None
    kept: dict[str, _SearchedDocument] = field(default_factory=dict)


class InMemoryVectorStore(VectorStore, Erasable):
    """A `VectorStore` of one tenant, whose data is lost with the process.

    Give it to `Runtime.erase` as `also=`.

    A search compares the query with each document of the collection, on the event loop. Ten thousand documents
    take about a second.

    Args:
        embedder: The client that computes embeddings of documents without one.
        tenant: The owner of the documents.
    """

    erased_as = "documents"

    def __init__(
        self, *, embedder: EmbeddingClient | None = None, tenant: str = DEFAULT_TENANT
    ) -> None:
        self._embedder, self._tenant = embedder, tenant
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
        check_embedder(embedder_name(self._embedder), found.embedder, collection)
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

    @override
    async def erase(
        self, what: EraseRequest, *, cursor: str | None = None, limit: int = ERASE_BATCH
    ) -> EraseCount:
        """See `Erasable.erase`. For a subject, the documents whose metadata has it as ``about`` are erased."""
        del cursor
        found = list(islice(self._meant(what), limit))
        for collection, id_ in found:
            del self._collections[collection].kept[id_]
        return EraseCount({"documents": len(found)}, "+" if len(found) == limit else None)

    @override
    async def count(self, what: EraseRequest) -> dict[str, int]:
        return {"documents": sum(1 for _ in self._meant(what))}

    def _meant(self, what: EraseRequest) -> Iterator[tuple[str, str]]:
        if what.tenant != self._tenant:
            return
        for name, collection in self._collections.items():
            for id_, one in collection.kept.items():
                if what.is_about(one.metadata):
                    yield name, id_

    async def _keep(
        self, documents: Sequence[VectorDocument], collection: str, *, is_last_kept: bool
    ) -> None:
        check_collection(collection)
        checked = await checked_documents(documents, self._embedder, is_last_kept=is_last_kept)
        if not checked:
            return
        first = checked[0]
        name = embedder_name(self._embedder)
        found = self._collections.setdefault(collection, _Collection(len(first.unit), name))
        check_embedder(name, found.embedder, collection)
        check_dimensions(first, found.dimensions, f"those of collection {collection!r}")
        found.embedder = found.embedder or name
        for one in checked:
            if is_last_kept or one.id not in found.kept:
                found.kept[one.id] = _SearchedDocument(one, from_json(one.metadata))


def _result(document: CheckedDocument, score: float) -> SearchResult:
    metadata = from_json(document.metadata)
    return SearchResult(id=document.id, content=document.content, score=score, metadata=metadata)
