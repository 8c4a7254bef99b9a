"""Search by meaning: documents with embeddings, in collections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, JsonValue


class VectorDocument(BaseModel):
    """A text. Without an embedding the store computes it, if it has an `EmbeddingClient`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    content: str
    embedding: tuple[float, ...] | None = None
    metadata: dict[str, JsonValue] = Field(default_factory=dict)


class SearchResult(BaseModel):
    """A hit. `score` is the cosine similarity: 1.0 for the same direction."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    content: str
    score: float
    metadata: dict[str, JsonValue] = Field(default_factory=dict)


@runtime_checkable
class EmbeddingClient(Protocol):
    """A model that turns texts into vectors of one length."""

    async def embed(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        """Return one vector for each text, in their order."""


@runtime_checkable
class VectorStore(Protocol):
    """Documents in collections that do not see each other."""

    async def add(
        self, documents: Sequence[VectorDocument], *, collection: str = "default"
    ) -> None:
        """Keep documents whose id is new. Known ones stay as they are. All or none.

        Raises:
            ValueError: A document has no embedding and the store has no client, or the embedding's
                length is not the collection's.
        """

    async def upsert(
        self, documents: Sequence[VectorDocument], *, collection: str = "default"
    ) -> None:
        """Keep documents, in place of those with the same id. All or none.

        Raises:
            ValueError: See `add`.
        """

    async def search(
        self,
        query_embedding: Sequence[float],
        *,
        collection: str = "default",
        limit: int = 5,
        filter: Mapping[str, JsonValue] | None = None,  # noqa: A002 - the sources' name
    ) -> list[SearchResult]:
        """Return the nearest documents, best first, equal scores by id.

        Args:
            query_embedding: Vector of the collection's length.
            collection: Searched alone.
            limit: Maximum number of hits.
            filter: Each key must be in a document's metadata, with an equal value.
        """

    async def delete(self, ids: Sequence[str], *, collection: str = "default") -> None:
        """Remove documents. Unknown ids are ignored."""
