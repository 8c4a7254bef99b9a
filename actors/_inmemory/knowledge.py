"""Knowledge in one process: documents with embeddings, and a graph.

A search compares the query with each document. The graph has entities, relationships, and for each entity the
relationships that touch it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from pydantic import JsonValue
from pydantic_core import from_json
from typing_extensions import override

from actors._kernel.hidden import checked_filter, matches
from actors._kernel.runtime.ids import DEFAULT_TENANT
from actors._kernel.search_rules import (
    MAX_RELATIONSHIPS,
    CheckedDocument,
    check_collection,
    check_dimensions,
    check_embedder,
    check_entity_id,
    check_hits,
    check_ids,
    check_query,
    check_relationship_id,
    check_walk,
    checked_documents,
    cosine,
    embedder_name,
    entity_properties,
    missing_end,
    relationship_properties,
    unit_vector,
)
from actors._kernel.stores.administration import ERASE_BATCH, Erasable, EraseCount, EraseRequest
from actors._kernel.stores.data import (
    EmbeddingClient,
    Entity,
    GraphStore,
    Relationship,
    SearchResult,
    SubGraph,
    VectorDocument,
    VectorStore,
)
from actors._kernel.stores.errors import SubGraphTooLargeError


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
        conditions = checked_filter(filter, what="filter of a search") or {}
        searched = self._collections.get(collection)
        if searched is None:
            return []
        check_embedder(embedder_name(self._embedder), searched.embedder, collection)
        check_query(unit, searched.dimensions, collection)
        hits = sorted(
            (-cosine(unit, row.document.unit), row.document.id)
            for row in searched.kept.values()
            if matches(row.metadata, conditions)
        )
        results = []
        for score, id_ in hits[:limit]:
            document = searched.kept[id_].document
            # Parsed anew: the caller may change the metadata of a result.
            metadata = from_json(document.metadata)
            results.append(
                SearchResult(id=id_, content=document.content, score=-score, metadata=metadata)
            )
        return results

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


T = TypeVar("T", Entity, Relationship)


class InMemoryGraphStore(GraphStore, Erasable):
    """A `GraphStore` of one tenant, whose data is lost with the process. It does not support Cypher.

    Give it to `Runtime.erase` as `also=`.

    Args:
        tenant: The owner of the graph.
    """

    erased_as = "graph"

    def __init__(self, *, tenant: str = DEFAULT_TENANT) -> None:
        self._tenant = tenant
        self._entities: dict[str, Entity] = {}
        self._relationships: dict[str, Relationship] = {}
        self._touching: dict[str, set[str]] = {}

    @override
    async def add_entity(self, entity: Entity) -> None:
        entity_properties(entity)
        self._entities[entity.id] = _copy(entity)
        self._touching.setdefault(entity.id, set())

    @override
    async def get_entity(self, entity_id: str) -> Entity | None:
        check_entity_id(entity_id)
        found = self._entities.get(entity_id)
        return None if found is None else _copy(found)

    @override
    async def delete_entity(self, entity_id: str) -> None:
        check_entity_id(entity_id)
        for one in list(self._touching.get(entity_id, ())):
            self._remove(one)
        self._touching.pop(entity_id, None)
        self._entities.pop(entity_id, None)

    @override
    async def add_relationship(self, relationship: Relationship) -> None:
        relationship_properties(relationship)
        ends = (relationship.source_id, relationship.target_id)
        for end in ends:
            if end not in self._entities:
                raise missing_end(relationship, end)
        self._remove(relationship.id)
        self._relationships[relationship.id] = _copy(relationship)
        for end in ends:
            self._touching[end].add(relationship.id)

    @override
    async def get_relationship(self, relationship_id: str) -> Relationship | None:
        check_relationship_id(relationship_id)
        found = self._relationships.get(relationship_id)
        return None if found is None else _copy(found)

    @override
    async def delete_relationship(self, relationship_id: str) -> None:
        check_relationship_id(relationship_id)
        self._remove(relationship_id)

    @override
    async def get_neighbors(
        self, entity_id: str, *, depth: int = 1, relationship_types: Sequence[str] | None = None
    ) -> SubGraph:
        check_entity_id(entity_id)
        check_walk(depth, relationship_types)
        types = None if relationship_types is None else frozenset(relationship_types)
        level = {entity_id} & self._entities.keys()
        reached, walked = dict.fromkeys(level), dict[str, None]()
        for _ in range(depth):
            found = self._edges(level, types) - walked.keys()
            if len(walked) + len(found) > MAX_RELATIONSHIPS:
                raise SubGraphTooLargeError(entity_id, depth, MAX_RELATIONSHIPS)
            walked |= dict.fromkeys(sorted(found))
            level = {end for one in found for end in self._ends(one)} - reached.keys()
            reached |= dict.fromkeys(sorted(level))
        return SubGraph(
            entities=[_copy(self._entities[one]) for one in reached],
            relationships=[_copy(self._relationships[one]) for one in walked],
        )

    @override
    async def erase(
        self, what: EraseRequest, *, cursor: str | None = None, limit: int = ERASE_BATCH
    ) -> EraseCount:
        """See `Erasable.erase`. An entity's relationships are removed before the entity."""
        del cursor
        edges, nodes = self._meant(what)
        edges, nodes = edges[:limit], nodes[:limit] if len(edges) < limit else []
        for one in edges:
            self._remove(one)
        for one in nodes:
            self._touching.pop(one, None)
            del self._entities[one]
        is_done = max(len(edges), len(nodes)) < limit
        rows = {"entities": len(nodes), "relationships": len(edges)}
        return EraseCount(rows, None if is_done else "+")

    @override
    async def count(self, what: EraseRequest) -> dict[str, int]:
        edges, nodes = self._meant(what)
        return {"entities": len(nodes), "relationships": len(edges)}

    def _meant(self, what: EraseRequest) -> tuple[list[str], list[str]]:
        """Return the relationships and entities that a request covers."""
        if what.tenant != self._tenant:
            return [], []
        kept = self._entities.items(), self._relationships.items()
        nodes, edges = (
            {id_: None for id_, one in group if what.is_about(one.properties)} for group in kept
        )
        for one in nodes:
            edges |= dict.fromkeys(self._touching[one])
        return list(edges), list(nodes)

    def _edges(self, entities: Iterable[str], types: frozenset[str] | None) -> set[str]:
        return {
            one
            for entity in entities
            for one in self._touching[entity]
            if types is None or self._relationships[one].type in types
        }

    def _ends(self, relationship_id: str) -> tuple[str, str]:
        found = self._relationships[relationship_id]
        return found.source_id, found.target_id

    def _remove(self, relationship_id: str) -> None:
        if relationship_id in self._relationships:
            for end in self._ends(relationship_id):
                self._touching[end].discard(relationship_id)
            del self._relationships[relationship_id]


def _copy(kept: T) -> T:
    """Return an equal value whose properties are a copy."""
    return kept.model_copy(update={"properties": deepcopy(kept.properties)})
