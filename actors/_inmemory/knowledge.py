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
    documents: dict[str, _SearchedDocument] = field(default_factory=dict)


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
        contents = self._collections.get(collection)
        if contents is None:
            return []
        check_embedder(embedder_name(self._embedder), contents.embedder, collection)
        check_query(unit, contents.dimensions, collection)
        hits = sorted(
            (-cosine(unit, row.document.unit), row.document.id)
            for row in contents.documents.values()
            if matches(row.metadata, conditions)
        )
        results = []
        for score, id_ in hits[:limit]:
            document = contents.documents[id_].document
            # Parsed for each result: a caller that changes its metadata must not change the document.
            metadata = from_json(document.metadata)
            results.append(
                SearchResult(id=id_, content=document.content, score=-score, metadata=metadata)
            )
        return results

    @override
    async def delete(self, ids: Sequence[str], *, collection: str = "default") -> None:
        check_collection(collection)
        check_ids(ids)
        if (contents := self._collections.get(collection)) is not None:
            for id_ in ids:
                contents.documents.pop(id_, None)

    @override
    async def erase(
        self, what: EraseRequest, *, cursor: str | None = None, limit: int = ERASE_BATCH
    ) -> EraseCount:
        """Erase documents. For a subject, those whose metadata has it as ``about`` are erased."""
        del cursor
        keys = list(islice(self._find_covered(what), limit))
        for collection, id_ in keys:
            del self._collections[collection].documents[id_]
        return EraseCount({"documents": len(keys)}, "+" if len(keys) == limit else None)

    @override
    async def count(self, what: EraseRequest) -> dict[str, int]:
        return {"documents": sum(1 for _ in self._find_covered(what))}

    def _find_covered(self, what: EraseRequest) -> Iterator[tuple[str, str]]:
        if what.tenant != self._tenant:
            return
        for name, collection in self._collections.items():
            for id_, row in collection.documents.items():
                if what.is_about(row.metadata):
                    yield name, id_

    async def _keep(
        self, documents: Sequence[VectorDocument], collection: str, *, is_last_kept: bool
    ) -> None:
        check_collection(collection)
        new_documents = await checked_documents(
            documents, self._embedder, is_last_kept=is_last_kept
        )
        if not new_documents:
            return
        first = new_documents[0]
        name = embedder_name(self._embedder)
        contents = self._collections.setdefault(collection, _Collection(len(first.unit), name))
        check_embedder(name, contents.embedder, collection)
        check_dimensions(first, contents.dimensions, f"those of collection {collection!r}")
        contents.embedder = contents.embedder or name
        for document in new_documents:
            if is_last_kept or document.id not in contents.documents:
                contents.documents[document.id] = _SearchedDocument(
                    document, from_json(document.metadata)
                )


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
        entity = self._entities.get(entity_id)
        return None if entity is None else _copy(entity)

    @override
    async def delete_entity(self, entity_id: str) -> None:
        check_entity_id(entity_id)
        for relationship_id in list(self._touching.get(entity_id, ())):
            self._remove(relationship_id)
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
        relationship = self._relationships.get(relationship_id)
        return None if relationship is None else _copy(relationship)

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
        entity_ids, relationship_ids = dict.fromkeys(level), dict[str, None]()
        for _ in range(depth):
            new_ids = self._edges(level, types) - relationship_ids.keys()
            if len(relationship_ids) + len(new_ids) > MAX_RELATIONSHIPS:
                raise SubGraphTooLargeError(entity_id, depth, MAX_RELATIONSHIPS)
            relationship_ids |= dict.fromkeys(sorted(new_ids))
            level = {end for id_ in new_ids for end in self._ends(id_)} - entity_ids.keys()
            entity_ids |= dict.fromkeys(sorted(level))
        return SubGraph(
            entities=[_copy(self._entities[id_]) for id_ in entity_ids],
            relationships=[_copy(self._relationships[id_]) for id_ in relationship_ids],
        )

    @override
    async def erase(
        self, what: EraseRequest, *, cursor: str | None = None, limit: int = ERASE_BATCH
    ) -> EraseCount:
        """Erase entities and relationships. An entity's relationships are removed before the entity."""
        del cursor
        edges, nodes = self._find_covered(what)
        edges, nodes = edges[:limit], nodes[:limit] if len(edges) < limit else []
        for id_ in edges:
            self._remove(id_)
        for id_ in nodes:
            self._touching.pop(id_, None)
            del self._entities[id_]
        is_done = max(len(edges), len(nodes)) < limit
        rows = {"entities": len(nodes), "relationships": len(edges)}
        return EraseCount(rows, None if is_done else "+")

    @override
    async def count(self, what: EraseRequest) -> dict[str, int]:
        edges, nodes = self._find_covered(what)
        return {"entities": len(nodes), "relationships": len(edges)}

    def _find_covered(self, what: EraseRequest) -> tuple[list[str], list[str]]:
        """Return the relationships and entities that a request covers."""
        if what.tenant != self._tenant:
            return [], []
        groups = self._entities.items(), self._relationships.items()
        nodes, edges = (
            {id_: None for id_, member in group if what.is_about(member.properties)}
            for group in groups
        )
        for member in nodes:
            edges |= dict.fromkeys(self._touching[member])
        return list(edges), list(nodes)

    def _edges(self, entities: Iterable[str], types: frozenset[str] | None) -> set[str]:
        return {
            edge
            for entity in entities
            for edge in self._touching[entity]
            if types is None or self._relationships[edge].type in types
        }

    def _ends(self, relationship_id: str) -> tuple[str, str]:
        relationship = self._relationships[relationship_id]
        return relationship.source_id, relationship.target_id

    def _remove(self, relationship_id: str) -> None:
        if relationship_id in self._relationships:
            for end in self._ends(relationship_id):
                self._touching[end].discard(relationship_id)
            del self._relationships[relationship_id]


def _copy(original: T) -> T:
    """Return an equal value whose properties are a copy."""
    return original.model_copy(update={"properties": deepcopy(original.properties)})
