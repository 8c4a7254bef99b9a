"""Refusals of the stores: values that no backend keeps, and answers that are too large to be given whole."""

from __future__ import annotations

from actors.errors import ConflictError, ContractError, Facts


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
        remedy: The next step for the caller.
    """

    text = "{what} has open runs: {runs}; {remedy}"
    what: str
    runs: str
    remedy: str


class SessionActiveError(Facts, ConflictError):
    """A session has runs that have not ended, so it cannot be changed or deleted. Nothing was changed.

    Attributes:
        session: The session's agent.
        runs: Number of its open runs; 0: the session is being deleted.
        code: ``session_active``.
    """

    code = "session_active"
    text = (
        "session {session} is active: {runs} of its runs are open. Cancel them, wait for their end, "
        "and call again"
    )
    session: str
    runs: int


class SessionDeletingError(Facts, ConflictError):
    """A session is being deleted, so it takes no run."""

    text = "session {session} is being deleted: wait until that is done, or delete it again if its process died"
    session: str


class UnknownSessionError(Facts, ContractError):
    """There is no such session."""

    text = "there is no session {session}: `callboard sessions list` shows those that there are"
    session: str


class UnknownNodeError(Facts, ContractError):
    """A session has no such node."""

    text = "session {session} has no node {node!r}: `callboard sessions nodes` lists its nodes"
    session: str
    node: str


class TokenExistsError(Facts, ContractError):
    """Another token has this name."""

    text = "there is a token {name}: `callboard tokens revoke` ends it, or give the new one another name"
    name: str
