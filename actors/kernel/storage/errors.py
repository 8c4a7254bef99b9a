"""Refusals of the stores: values that no backend keeps, and answers that are too large to be given whole."""

from __future__ import annotations

from actors.errors import ContractError, Facts


class InvalidDocumentError(Facts, ContractError, ValueError):
    """A document, a vector or a batch of them cannot be kept or searched for. Nothing was changed."""

    text = "{what}: {problem}"
    what: str
    problem: str


class SubGraphTooLargeError(Facts, ContractError, ValueError):
    """The neighbours of an entity are more than one answer holds."""

    text = (
        "the part of the graph up to {depth} edges from {entity_id!r} has more than {limit} relationships: "
        "ask for a smaller depth, or for some relationship_types only"
    )
    entity_id: str
    depth: int
    limit: int


class CypherError(Facts, ContractError, ValueError):
    """A Cypher query was refused, or cannot be run as it is. It changed nothing."""

    text = "Cypher: {problem}"
    problem: str


class OpenRunsError(Facts, ContractError):
    """An erase was refused: runs that hold the data are open.

    Attributes:
        what: What was to be erased.
        runs: Ids of at most 10 of the open runs.
        remedy: How to go on.
    """

    text = "{what} has open runs: {runs}; {remedy}"
    what: str
    runs: str
    remedy: str
