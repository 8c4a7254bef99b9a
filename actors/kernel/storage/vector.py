"""Search by meaning: documents with embeddings, in collections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, JsonValue


class VectorDocument(BaseModel):
    """A text. Without an embedding the store computes it, if it has an `EmbeddingClient`.

    Attributes:
        id: Names the document in its collection; at most 1,024 bytes.
        content: At most 10 MiB, without NUL and half surrogate pairs.
        embedding: 1 to 16,000 finite numbers, not all of them 0. A store keeps its direction only, in
            numbers of 32 bits.
        metadata: JSON data, at most 64 KiB.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    content: str
    embedding: tuple[float, ...] | None = None
    metadata: dict[str, JsonValue] = Field(default_factory=dict)


class SearchResult(BaseModel):
    """A hit.

    Attributes:
        score: Cosine similarity, exact to 1e-6: 1.0 for the same direction, -1.0 for the opposite one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

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
