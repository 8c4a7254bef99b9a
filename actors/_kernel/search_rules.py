"""Rules of search that every backend follows: embeddings of documents, and limits of a graph.

An embedding is a unit vector of 32-bit numbers, given with a document or computed for it. Every `VectorStore`
keeps an embedding this way, so that all of them find the same documents: scores do not depend on a vector's
length, and vectors of one direction have one score. The limits say which entities a graph keeps, and how far a
walk goes.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import mul
from typing import Final

from actors._kernel.hidden import metadata_text
from actors._kernel.stores.data import EmbeddingClient, Entity, Relationship, VectorDocument
from actors._kernel.stores.errors import InvalidDocumentError
from actors._kernel.text import check_name_of
from actors.errors import ContractError, InvalidTextError

MAX_DIMENSIONS: Final = 16_000
"""The longest vector: pgvector's limit."""
MAX_DOCUMENTS: Final = 2_000
"""Documents or ids of one call, which is one statement."""
MAX_CONTENT_BYTES: Final = 10 * 1024 * 1024
"""The longest content of a document, in UTF-8."""
MAX_BATCH_BYTES: Final = 64 * 1024 * 1024
"""Contents and metadata of one call together, in characters."""
MAX_EMBEDDED_TEXTS: Final = 256
"""Texts of one call of an `EmbeddingClient`."""
MAX_HITS: Final = 1_000
"""The greatest `limit` of a search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedDocument:
    """A document that every backend can keep.

    Attributes:
        metadata: JSON text of an object.
        unit: Its embedding, of length 1; empty until it is computed.
    """

    id: str
    content: str
    metadata: str
    unit: array[float]


def unit_vector(values: Sequence[float], *, what: str) -> array[float]:
    """Return the vector of the same direction and of length 1, in 32-bit numbers.

    Args:
        values: Any finite numbers, not all of them 0.
        what: Names the vector in the error, for example ``document 'a'``.

    Raises:
        InvalidDocumentError: It is empty, too long, 0, or one of its values is no finite number.
    """
    try:
        numbers = list(map(float, values))
    except (TypeError, ValueError) as exc:
        raise InvalidDocumentError(what, f"an embedding is a sequence of numbers ({exc})") from exc
    if not 1 <= len(numbers) <= MAX_DIMENSIONS:
        problem = f"its embedding has {len(numbers)} numbers, not 1 to {MAX_DIMENSIONS}"
        raise InvalidDocumentError(what, f"{problem}: use another embedding model")
    for index, number in enumerate(numbers):
        if not math.isfinite(number):
            problem = f"number {index} of its embedding is {number}: embed the text anew"
            raise InvalidDocumentError(what, problem)
    largest = max(map(abs, numbers))
    if largest == 0:
        problem = "its embedding is zero and has no direction: embed a text that is not empty"
        raise InvalidDocumentError(what, problem)
    # Scaled first: squares of very large numbers are infinite, and those of very small ones are 0.
    scaled_numbers = [number / largest for number in numbers]
    length = math.sqrt(math.fsum(map(mul, scaled_numbers, scaled_numbers)))
    return array("f", [number / length for number in scaled_numbers])


def cosine(vector: array[float], other: array[float]) -> float:
    """Return the cosine of the angle between two vectors of one length, from -1 to 1."""
    product: float = sum(map(mul, vector, other))
    lengths = math.sqrt(sum(map(mul, vector, vector)) * sum(map(mul, other, other)))
    return max(-1.0, min(1.0, product / lengths))


async def checked_documents(
    documents: Sequence[VectorDocument], embedder: EmbeddingClient | None, *, is_last_kept: bool
) -> list[CheckedDocument]:
    """Return the documents with their embeddings, each id once.

    The embedder is asked for those that are missing: at most `MAX_EMBEDDED_TEXTS` a call, one call after
    another. Its errors come as they are.

    Args:
        documents: All of them are checked.
        embedder: Computes embeddings.
        is_last_kept: Keep the last of several documents with one id, not the first.

    Raises:
        InvalidDocumentError: An embedding is missing and there is no embedder, it is not valid, or two of
            them have different lengths; or they are too many.
        InvalidTextError: An id or a content cannot be kept.
        NotSerializableError: Metadata cannot be kept.
    """
    check_count(len(documents), "documents")
    candidates = list(map(_check_document, documents))
    size = sum(len(document.content) + len(document.metadata) for document in candidates)
    if size > MAX_BATCH_BYTES:
        problem = f"{size} characters in one call, more than {MAX_BATCH_BYTES}: use several calls"
        raise InvalidDocumentError("documents", problem)
    _check_alike([document for document in candidates if document.unit])
    documents_by_id: dict[str, CheckedDocument] = {}
    for document in candidates:
        if is_last_kept or document.id not in documents_by_id:
            documents_by_id[document.id] = document
    missing_documents = [document for document in documents_by_id.values() if not document.unit]
    if not missing_documents:
        return list(documents_by_id.values())
    if embedder is None:
        problem = "it has no embedding, and the store has no embedder: give one of them"
        raise InvalidDocumentError(f"document {missing_documents[0].id!r}", problem)
    for offset in range(0, len(missing_documents), MAX_EMBEDDED_TEXTS):
        batch = missing_documents[offset : offset + MAX_EMBEDDED_TEXTS]
        vectors = await embedder.embed([document.content for document in batch])
        documents_by_id |= {document.id: document for document in _with_embeddings(batch, vectors)}
    unique_documents = list(documents_by_id.values())
    _check_alike(unique_documents)
    return unique_documents


def check_dimensions(document: CheckedDocument, dimensions: int, whose: str) -> None:
    """Check that the embedding has as many numbers as wanted.

    Raises:
        InvalidDocumentError: It has more or fewer.
    """
    if (length := len(document.unit)) != dimensions:
        problem = (
            f"its embedding has {length} numbers, {whose} {dimensions}: a collection has one length"
        )
        raise InvalidDocumentError(
            f"document {document.id!r}", f"{problem}, use another one for another embedding model"
        )


def embedder_name(embedder: EmbeddingClient | None) -> str | None:
    """Return the attribute `model` of an embedder, or None if it has none, so models cannot be distinguished.

    Raises:
        InvalidTextError: It is a text that cannot be kept.
    """
    name = getattr(embedder, "model", None)
    if not isinstance(name, str) or not name:
        return None
    check_name_of("model of an embedder", name)
    return name


def check_embedder(own_name: str | None, stored_name: str | None, collection: str) -> None:
    """Check that a store's embedder may be that of a collection, because they have one name or one has none.

    Raises:
        InvalidDocumentError: They have two names.
    """
    if own_name is not None and stored_name is not None and own_name != stored_name:
        problem = (
            f"its embeddings are of {stored_name!r}, and the embedder of this store is {own_name!r}"
        )
        remedy = f"open the store with {stored_name!r}, or embed the documents anew in another collection"
        raise InvalidDocumentError(f"collection {collection!r}", f"{problem}: {remedy}")


def check_query(unit: array[float], dimensions: int, collection: str) -> None:
    """Check that a query's embedding has the collection's length.

    Raises:
        InvalidDocumentError: It has another one.
    """
    if len(unit) != dimensions:
        problem = (
            f"it has {len(unit)} numbers, the embeddings of collection {collection!r} {dimensions}"
        )
        raise InvalidDocumentError("query embedding", f"{problem}: use the same embedding model")


def check_collection(collection: str) -> None:
    """Check that this can name a collection.

    Raises:
        InvalidTextError: It cannot.
    """
    check_name_of("name of a collection", collection)


def check_hits(limit: object) -> None:
    """Check that so many hits can be asked for.

    Raises:
        ContractError: They are negative, or more than `MAX_HITS`.
    """
    if not isinstance(limit, int) or isinstance(limit, bool) or not 0 <= limit <= MAX_HITS:
        raise ContractError(f"limit of a search is a whole number from 0 to {MAX_HITS}: {limit!r}")


def check_count(count: int, what: str) -> None:
    """Check that so many documents or ids go into one call.

    Raises:
        InvalidDocumentError: They are more than `MAX_DOCUMENTS`.
    """
    if count > MAX_DOCUMENTS:
        problem = f"{count} in one call, more than {MAX_DOCUMENTS}: use several calls"
        raise InvalidDocumentError(what, problem)


def check_ids(ids: Sequence[str]) -> None:
    """Check that these can be ids of documents.

    Raises:
        InvalidTextError: One of them cannot.
        InvalidDocumentError: They are too many, or one text and no sequence of them.
    """
    if isinstance(ids, str):
        raise InvalidDocumentError("ids", f"give a list of them, not the text {ids!r}")
    check_count(len(ids), "ids")
    for id_ in ids:
        check_name_of("id of a document", id_)


def _check_alike(documents: Sequence[CheckedDocument]) -> None:
    for document in documents:
        check_dimensions(document, len(documents[0].unit), f"that of document {documents[0].id!r}")


def _check_document(document: VectorDocument) -> CheckedDocument:
    check_name_of("id of a document", document.id)
    what = f"document {document.id!r}"
    _check_content(document.content, what)
    embedding = document.embedding
    return CheckedDocument(
        id=document.id,
        content=document.content,
        metadata=metadata_text(document.metadata, what=f"metadata of {what}"),
        unit=array("f") if embedding is None else unit_vector(embedding, what=what),
    )


def _check_content(content: str, what: str) -> None:
    try:
        size = len(content.encode())
    except UnicodeEncodeError as exc:
        problem = f"has half a surrogate pair at {exc.start}: it is no Unicode text, decode it anew"
        raise InvalidTextError(f"content of {what}", problem) from exc
    if (index := content.find("\x00")) >= 0:
        problem = f"has a NUL at {index}: no database takes one, leave it out"
        raise InvalidTextError(f"content of {what}", problem)
    if size > MAX_CONTENT_BYTES:
        problem = f"has {size} bytes, more than {MAX_CONTENT_BYTES}: split it into documents"
        raise InvalidTextError(f"content of {what}", problem)


def _with_embeddings(
    batch: Sequence[CheckedDocument], vectors: Sequence[Sequence[float]]
) -> Iterator[CheckedDocument]:
    if len(vectors) != len(batch):
        problem = (
            f"it returned {len(vectors)} vectors for {len(batch)} texts: one for each is needed"
        )
        raise InvalidDocumentError("embedder", problem)
    for document, vector in zip(batch, vectors, strict=True):
        yield replace(document, unit=unit_vector(vector, what=f"document {document.id!r}"))


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
    for type_ in relationship_types:
        check_name_of("type of a relationship", type_)


def missing_end(relationship: Relationship, entity_id: str) -> KeyError:
    """Return the error of a relationship one of whose ends does not exist."""
    return KeyError(
        f"entity {entity_id!r}, an end of relationship {relationship.id!r}, does not exist: add it first"
    )
