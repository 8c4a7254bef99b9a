"""A graph of entities and the relationships between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, JsonValue


class Entity(BaseModel):
    """A node."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    type: str
    properties: dict[str, JsonValue] = Field(default_factory=dict)


class Relationship(BaseModel):
    """An edge. It has a direction, but neighbours are found both ways."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    type: str
    source_id: str
    target_id: str
    properties: dict[str, JsonValue] = Field(default_factory=dict)


class SubGraph(BaseModel):
    """A part of a graph: the entities reached, and the relationships walked."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    entities: list[Entity] = Field(default_factory=list)
    relationships: list[Relationship] = Field(default_factory=list)


@runtime_checkable
class GraphStore(Protocol):
    """Entities and relationships by id."""

    async def add_entity(self, entity: Entity) -> None:
        """Keep an entity, in place of the one with its id."""

    async def get_entity(self, entity_id: str) -> Entity | None:
        """Return an entity, or None."""

    async def delete_entity(self, entity_id: str) -> None:
        """Remove an entity and every relationship that touches it. Unknown ids are ignored."""

    async def add_relationship(self, relationship: Relationship) -> None:
        """Keep a relationship, in place of the one with its id.

        Raises:
            KeyError: One of its ends does not exist.
        """

    async def get_relationship(self, relationship_id: str) -> Relationship | None:
        """Return a relationship, or None."""

    async def delete_relationship(self, relationship_id: str) -> None:
        """Remove a relationship. Unknown ids are ignored."""

    async def get_neighbors(
        self, entity_id: str, *, depth: int = 1, relationship_types: Sequence[str] | None = None
    ) -> SubGraph:
        """Return the part of the graph at most `depth` edges away, breadth first, walked both ways.

        Each entity is in it once, also in a cycle. With `relationship_types` only edges of these
        types are walked.
        """


@runtime_checkable
class CypherCapable(Protocol):
    """A graph store that also runs Cypher."""

    async def cypher(
        self, query: str, *, parameters: Mapping[str, JsonValue] | None = None
    ) -> list[dict[str, JsonValue]]:
        """Run a query and return its rows. Values are passed as `parameters` only."""
