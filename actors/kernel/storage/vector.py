"""Search by meaning: documents with embeddings, in collections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, JsonValue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class VectorDocument(BaseModel):
    """One text; without an embedding the store computes it, if it has a client for that."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    content: str
    embedding: tuple[float, ...] | None = None
    metadata: dict[str, JsonValue] = Field(default_factory=dict)


class SearchResult(BaseModel):
    """One hit; `score` is the cosine similarity, 1.0 for the same direction."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    content: str
    score: float
    metadata: dict[str, JsonValue] = Field(default_factory=dict)


@runtime_checkable
class EmbeddingClient(Protocol):
    """Turns texts into vectors of one length."""

    async def embed(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        """Return one vector per text, in their order."""
        ...


@runtime_checkable
class VectorStore(Protocol):
    """Documents in collections that do not see each other."""

    async def add(
        self, documents: Sequence[VectorDocument], *, collection: str = "default"
    ) -> None:
        """Keep documents whose id is new; known ones are left as they are.

        Raises:
            ValueError: A document has no embedding and the store has no client to compute it.
        """
        ...

    async def upsert(
        self, documents: Sequence[VectorDocument], *, collection: str = "default"
    ) -> None:
        """Keep documents, in place of those with the same id.

        Raises:
            ValueError: See `add`.
        """
        ...

    async def search(
        self,
        query_embedding: Sequence[float],
        *,
        collection: str = "default",
        limit: int = 5,
        filter: Mapping[str, JsonValue] | None = None,  # noqa: A002 - the sources' name
    ) -> list[SearchResult]:
        """Return the nearest documents, best first; equal scores by id.

        `filter`: every key must be in the metadata with an equal value.
        """
        ...

    async def delete(self, ids: Sequence[str], *, collection: str = "default") -> None:
        """Remove documents; unknown ids are ignored."""
        ...
