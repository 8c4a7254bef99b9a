"""A graph of entities and the relationships between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, JsonValue


class Entity(BaseModel):
    """A node. Its properties have at most 64 KiB as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    type: str
    properties: dict[str, JsonValue] = Field(default_factory=dict)


class Relationship(BaseModel):
    """An edge. It has a direction, but neighbours are found both ways. It may lead back to its source.

    Several may have the same ends and type: they differ by id. Properties have at most 64 KiB as JSON.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    type: str
    source_id: str
    target_id: str
    properties: dict[str, JsonValue] = Field(default_factory=dict)


class SubGraph(BaseModel):
    """A part of a graph: the entities reached, and the relationships walked. Both ends of each are in it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    entities: list[Entity] = Field(default_factory=list)
    relationships: list[Relationship] = Field(default_factory=list)


@runtime_checkable
class GraphStore(Protocol):
    """Entities and relationships by id.

    A relationship exists only while both of its ends do. Ids and types have at most 1,024 bytes; each method
    refuses others, and those with a NUL or half a surrogate pair, with `InvalidTextError`.
    """

    async def add_entity(self, entity: Entity) -> None:
        """Keep an entity. It replaces the one with its id, whose relationships stay.

        Raises:
            ContractError: Its properties are not JSON data, or too large.
        """

    async def get_entity(self, entity_id: str) -> Entity | None:
        """Return an entity, or None."""

    async def delete_entity(self, entity_id: str) -> None:
        """Remove an entity and every relationship that touches it. Unknown ids are ignored."""

    async def add_relationship(self, relationship: Relationship) -> None:
        """Keep a relationship. It replaces the one with its id, whatever the ends of that one were.

        Raises:
            KeyError: One of its ends does not exist.
            ContractError: Its properties are not JSON data, or too large.
        """

    async def get_relationship(self, relationship_id: str) -> Relationship | None:
        """Return a relationship, or None."""

    async def delete_relationship(self, relationship_id: str) -> None:
        """Remove a relationship. Unknown ids are ignored."""

    async def get_neighbors(
        self, entity_id: str, *, depth: int = 1, relationship_types: Sequence[str] | None = None
    ) -> SubGraph:
        """Return the part of the graph at most `depth` edges away, breadth first, walked both ways.

        Its entities are those at a distance of at most `depth`, the given one first; its relationships are
        those with an end at a distance of less than `depth`. So one between two entities that are both
        `depth` away is not in it, and depth 0 is the entity alone. Each is in it once, also in a cycle.
        Entities are ordered by distance, then by id; relationships by the distance of their nearer end,
        then by id. An unknown entity has an empty part.

        Args:
            entity_id: Start of the walk.
            depth: Edges, 0 to 16.
            relationship_types: Only edges of these types are walked; of none, if it is empty.

        Raises:
            ValueError: `SubGraphTooLargeError`: the part has more than 10,000 relationships.
            ContractError: `depth` is out of range, or `relationship_types` is no list of types.
        """


@runtime_checkable
class CypherCapable(Protocol):
    """A graph store that also runs Cypher.

    A query sees the graph of one tenant. An entity has the label `Entity`, a relationship `Relationship`. Their
    ids and types are properties, beside their own: `(a:Entity {type: 'person'})`, `[r:Relationship]`, `a.name`.
    """

    async def cypher(
        self, query: str, *, parameters: Mapping[str, JsonValue] | None = None
    ) -> list[dict[str, JsonValue]]:
        """Run a query that only reads, and return its rows by the names of their columns.

        A column has the name after AS, or the text of its expression. Entities and relationships come with the
        fields of `Entity` and `Relationship`; a path is a list of these.

        Args:
            query: Its text, at most 64 KiB. It ends with RETURN and names its columns.
            parameters: Values of `$name`, at most 64 KiB as JSON. Never write values into the text.

        Raises:
            ValueError: `CypherError`: the query writes, calls a function that is not known, is no Cypher, takes
                too long, or has more than 10,000 rows or 16 MiB.
            ContractError: The text or the parameters cannot be kept.
        """
