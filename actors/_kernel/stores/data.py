"""Data that agents keep: task boards, documents with embeddings, and graphs.

A board is an agent's plan in a conversation, with the state of each task. Documents are in collections, and
are found by meaning. A graph has entities and the relationships between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import ClassVar, Final, Protocol, runtime_checkable

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, JsonValue

from actors._kernel.runtime.ids import AgentId


class TaskStatus(StrEnum):
    """PENDING → IN_PROGRESS → SUCCEEDED, FAILED or ABANDONED. A retry goes back to IN_PROGRESS."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABANDONED = "abandoned"


TASK_TRANSITIONS: Final[dict[TaskStatus, frozenset[TaskStatus]]] = {
    TaskStatus.PENDING: frozenset({TaskStatus.IN_PROGRESS, TaskStatus.ABANDONED}),
    TaskStatus.IN_PROGRESS: frozenset(
        {TaskStatus.SUCCEEDED, TaskStatus.FAILED, TaskStatus.ABANDONED, TaskStatus.PENDING}
    ),
    TaskStatus.SUCCEEDED: frozenset(),
    TaskStatus.FAILED: frozenset({TaskStatus.IN_PROGRESS, TaskStatus.ABANDONED}),
    TaskStatus.ABANDONED: frozenset({TaskStatus.IN_PROGRESS}),
}
"""Legal changes of status. Writing the present status again is allowed."""


class Task(BaseModel):
    """A card of a board.

    Attributes:
        id: Unique within its board; at most 128 bytes.
        title: At most 512 bytes.
        description: At most 4,096 bytes.
        status: See `TASK_TRANSITIONS`.
        note: The reason of the present status; at most 2,048 bytes.
        order: Its position on the board, from 0. The store numbers tasks.
        retry_count: Retries since the task was made, or since a person forced one.
        max_retries: The limit of `TaskStore.increment_retry`.
        updated_at: The instant of the last change, by the store's clock.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    id: str
    title: str
    description: str = ""
    status: TaskStatus = TaskStatus.PENDING
    note: str = ""
    order: int = Field(default=0, ge=0)
    retry_count: int = Field(default=0, ge=0)
    max_retries: int = Field(default=3, ge=0)
    updated_at: AwareDatetime | None = None


class TaskList(BaseModel):
    """The board of one agent in one conversation, tasks by order."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    conversation_id: str
    agent_id: str
    title: str = ""
    tasks: tuple[Task, ...] = ()


@runtime_checkable
class TaskStore(Protocol):
    """The boards of one tenant, by conversation and agent.

    Each call is atomic: concurrent ones lose nothing. Every call refuses bad input before it changes anything.
    A call with the `key` of one of the last 32 changes of its board changes nothing: it was made already. It
    returns what is there. Without a key each call counts.

    Raises:
        ContractError: A text cannot be kept or is too long, two tasks have one id, or a board would have
            more than 1,000 tasks.
        OtherTenantError: The agent is another tenant's.
    """

    async def create_task_list(
        self,
        conversation_id: str,
        agent_id: AgentId,
        tasks: Sequence[Task],
        *,
        title: str = "",
        key: str = "",
    ) -> TaskList:
        """Make the board. It replaces an earlier one. Tasks are numbered in their order."""

    async def get_task_list(self, conversation_id: str, agent_id: AgentId) -> TaskList | None:
        """Return the board, or None."""

    async def get_boards(self, conversation_id: str) -> list[TaskList]:
        """Return all boards of a conversation, by agent."""

    async def update_status(
        self,
        conversation_id: str,
        agent_id: AgentId,
        task_id: str,
        *,
        status: TaskStatus,
        note: str = "",
        key: str = "",
    ) -> Task:
        """Change the status of one task and return the task. An empty note leaves the earlier one.

        Raises:
            KeyError: There is no such board or task.
            ContractError: `TASK_TRANSITIONS` does not have the change.
        """

    async def add_tasks(
        self, conversation_id: str, agent_id: AgentId, tasks: Sequence[Task], *, key: str = ""
    ) -> TaskList:
        """Put tasks at the end of the board, with the next numbers.

        Raises:
            KeyError: There is no such board.
            ContractError: The board has a task with one of these ids.
        """

    async def increment_retry(
        self, conversation_id: str, agent_id: AgentId, task_id: str, *, key: str = ""
    ) -> Task | None:
        """Count one more retry and put the task in progress. At its limit return None and change nothing.

        Raises:
            KeyError: There is no such board or task.
            ContractError: The task has succeeded.
        """

    async def force_retry(
        self, conversation_id: str, agent_id: AgentId, task_id: str, *, key: str = ""
    ) -> Task:
        """Put a failed or abandoned task in progress with a counter of 0, for a person.

        Raises:
            KeyError: There is no such board or task.
            ContractError: The task is neither failed nor abandoned.
        """

    async def settle_conversation(self, conversation_id: str, *, key: str = "") -> list[TaskList]:
        """Turn tasks in progress to succeeded after a success, and return the boards that changed, by agent."""


@runtime_checkable
class TaskStores(Protocol):
    """The boards of all tenants of one deployment."""

    def of(self, tenant: str) -> TaskStore:
        """Return the boards of one tenant."""


class VectorDocument(BaseModel):
    """A text. Without an embedding the store computes it, if it has an `EmbeddingClient`.

    Attributes:
        id: Names the document in its collection; at most 1,024 bytes.
        content: At most 10 MiB, without NUL and half surrogate pairs.
        embedding: 1 to 16,000 finite numbers, not all of them 0. A store keeps its direction only, in
            numbers of 32 bits.
        metadata: JSON data, at most 64 KiB.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    id: str
    content: str
    embedding: tuple[float, ...] | None = None
    metadata: dict[str, JsonValue] = Field(default_factory=dict)


class SearchResult(BaseModel):
    """A hit.

    Attributes:
        score: Cosine similarity, exact to 1e-6: 1.0 for the same direction, -1.0 for the opposite one.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    id: str
    content: str
    score: float
    metadata: dict[str, JsonValue] = Field(default_factory=dict)


@runtime_checkable
class EmbeddingClient(Protocol):
    """A model that turns texts into vectors of one length. A store gives it at most 256 texts a call.

    If it has an attribute `model`, a text such as ``openai:text-embedding-3-small``, collections of documents
    hold it for the name of their embedder.
    """

    async def embed(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        """Return one vector for each text, in their order."""


@runtime_checkable
class QueryEmbeddingClient(EmbeddingClient, Protocol):
    """A model that embeds a question in another way than the texts that answer it."""

    async def embed_queries(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        """Return one vector for each question, in their order, as long as those of `embed`."""


@runtime_checkable
class VectorStore(Protocol):
    """Documents in collections that do not see each other.

    A collection begins with its first document, whose embedding fixes its length for good, even when all
    documents are deleted. So does the name of the first store's embedder that has one, whether it computed an
    embedding or not. All documents are checked, and all missing embeddings are computed, before
    anything is written: an embedder that fails leaves nothing behind, and its error comes as it is.
    Every method refuses names and ids that cannot be kept with `InvalidTextError`.
    """

    async def add(
        self, documents: Sequence[VectorDocument], *, collection: str = "default"
    ) -> None:
        """Keep documents whose id is new. Known ones stay as they are. All or none.

        Of several documents with one id the first counts. Embeddings are computed for known ids, too.

        Raises:
            ValueError: `InvalidDocumentError`: a document has no embedding and the store has no client; an
                embedding is zero, has a number that is not finite, or is not of the collection's length;
                the collection's embedder has another name than the store's;
                the client returned another number of vectors than it got texts; or there are more than
                2,000 documents or 64 Mi characters in one call.
            ContractError: A content or metadata cannot be kept.
        """

    async def upsert(
        self, documents: Sequence[VectorDocument], *, collection: str = "default"
    ) -> None:
        """Keep documents. They replace those with the same id. All or none.

        Of several documents with one id the last counts.

        Raises:
            ValueError: See `add`.
            ContractError: See `add`.
        """

    async def search(
        self,
        query_embedding: Sequence[float],
        *,
        collection: str = "default",
        limit: int = 5,
        filter: Mapping[str, JsonValue] | None = None,  # noqa: A002 - the sources' name
    ) -> list[SearchResult]:
        """Return the nearest documents, best first, equal scores by id. A new collection has none.

        Args:
            query_embedding: Vector of the collection's length.
            collection: Searched alone.
            limit: Maximum number of hits, 0 to 1,000.
            filter: Each key must be in a document's metadata, with a value that is equal as JSON: 1 is 1.0
                and not true, a list has the same values in the same order, and an object has the same keys
                and no others. Null is a value. `limit` documents that match are found if there are so many.

        Raises:
            ValueError: `InvalidDocumentError`: the query is zero, not finite or of another length; or the
                collection's embedder has another name than the store's.
            ContractError: `limit` is out of range, or the filter is not JSON data.
        """

    async def delete(self, ids: Sequence[str], *, collection: str = "default") -> None:
        """Remove documents, at most 2,000 in one call. Unknown ids are ignored."""


class Entity(BaseModel):
    """A node. Its properties have at most 64 KiB as JSON."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    id: str
    type: str
    properties: dict[str, JsonValue] = Field(default_factory=dict)


class Relationship(BaseModel):
    """An edge. It has a direction, but neighbours are found both ways. It may lead back to its source.

    Several may have the same ends and type: they differ by id. Properties have at most 64 KiB as JSON.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    id: str
    type: str
    source_id: str
    target_id: str
    properties: dict[str, JsonValue] = Field(default_factory=dict)


class SubGraph(BaseModel):
    """A part of a graph: the entities reached, and the relationships walked. Both ends of each are in it."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

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
