"""A graph in one process: entities, relationships, and the relationships that touch each entity."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import TypeVar

from typing_extensions import override

from actors.kernel.runtime.ids import DEFAULT_TENANT
from actors.kernel.search_rules import (
    MAX_RELATIONSHIPS,
    check_entity_id,
    check_relationship_id,
    check_walk,
    entity_properties,
    missing_end,
    relationship_properties,
)
from actors.kernel.stores.administration import ERASE_BATCH, Erasable, EraseCount, EraseRequest
from actors.kernel.stores.data import Entity, GraphStore, Relationship, SubGraph
from actors.kernel.stores.errors import SubGraphTooLargeError

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
