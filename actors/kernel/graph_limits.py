"""Limits of a graph, the same on every backend: which entities it keeps, and how far a walk goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from actors.errors import ContractError
from actors.kernel.metadata import metadata_text
from actors.kernel.storage.graph import Entity, Relationship
from actors.kernel.text import check_name_of

MAX_DEPTH: Final = 16
"""The greatest distance of neighbours, in edges."""
MAX_RELATIONSHIPS: Final = 10_000
"""Relationships of one `SubGraph`."""
MAX_CYPHER_ROWS: Final = 10_000
"""Rows of one Cypher query."""
MAX_TYPES: Final = 1_000
"""Types of one walk."""


def entity_properties(entity: Entity) -> str:
    """Return the properties of an entity that can be kept, as JSON text.

    Raises:
        InvalidTextError: Its id or type cannot be kept.
        NotSerializableError: Its properties cannot.
    """
    check_entity_id(entity.id)
    check_name_of(f"type of entity {entity.id!r}", entity.type)
    return metadata_text(entity.properties, what=f"properties of entity {entity.id!r}")


def relationship_properties(relationship: Relationship) -> str:
    """Return the properties of a relationship that can be kept, as JSON text.

    Raises:
        InvalidTextError: Its id, its type or one of its ends cannot be kept.
        NotSerializableError: Its properties cannot.
    """
    check_relationship_id(relationship.id)
    what = f"relationship {relationship.id!r}"
    check_name_of(f"type of {what}", relationship.type)
    check_name_of(f"source of {what}", relationship.source_id)
    check_name_of(f"target of {what}", relationship.target_id)
    return metadata_text(relationship.properties, what=f"properties of {what}")


def check_entity_id(entity_id: str) -> None:
    """Check that this can be the id of an entity.

    Raises:
        InvalidTextError: It cannot.
    """
    check_name_of("id of an entity", entity_id)


def check_relationship_id(relationship_id: str) -> None:
    """Check that this can be the id of a relationship.

    Raises:
        InvalidTextError: It cannot.
    """
    check_name_of("id of a relationship", relationship_id)


def check_walk(depth: object, relationship_types: Sequence[str] | None) -> None:
    """Check that neighbours can be asked for at this depth and by these types.

    Raises:
        ContractError: The depth is out of range, or the types are one text or too many.
        InvalidTextError: One of the types cannot be one.
    """
    if not isinstance(depth, int) or isinstance(depth, bool) or not 0 <= depth <= MAX_DEPTH:
        msg = f"depth of neighbours is a whole number of edges from 0 to {MAX_DEPTH}: {depth!r}"
        raise ContractError(msg)
    if relationship_types is None:
        return
    if isinstance(relationship_types, str):
        msg = f"relationship_types is a list of types, not a text: write [{relationship_types!r}]"
        raise ContractError(msg)
    if len(relationship_types) > MAX_TYPES:
        msg = f"{len(relationship_types)} relationship_types, more than {MAX_TYPES}: leave them out"
        raise ContractError(msg)
    for one in relationship_types:
        check_name_of("type of a relationship", one)


def missing_end(relationship: Relationship, entity_id: str) -> KeyError:
    """Return the error of a relationship one of whose ends does not exist."""
    return KeyError(
        f"entity {entity_id!r}, an end of relationship {relationship.id!r}, does not exist: add it first"
    )
