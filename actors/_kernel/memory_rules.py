"""Rules of long-term memory that all its stores share: limits, names, versions, words and ranks."""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, get_args

from pydantic import JsonValue

from actors._kernel.basics import MAX_INT
from actors._kernel.hidden import checked_filter, metadata_text
from actors._kernel.search_rules import unit_vector
from actors._kernel.stores.administration import EraseRequest
from actors._kernel.stores.memory import (
    Memory,
    MemoryConflictError,
    MemoryQuery,
    MemorySource,
    NewMemory,
    RecallMode,
)
from actors._kernel.stores.runs import agent_scope
from actors._kernel.text import check_name_of, check_text_of
from actors.errors import ContractError, InvalidTextError

MAX_MEMORY_BYTES: Final = 64 * 1024
"""The longest text of a memory, in UTF-8."""
MAX_EMBEDDED_BYTES: Final = 16 * 1024
"""The part of a text that is embedded, from its head. Every embedder of `compose.models` takes so much; the
models behind them read less. The whole text is found by its words."""
MAX_ABOUT_BYTES: Final = 1_300
"""The longest scope: a word of the author's, or an agent's id with a prefix."""
MAX_RECALLED: Final = 100
"""The greatest `limit` of a search."""
MAX_LISTED: Final = 1_000
"""The greatest `limit` of a list."""
MAX_QUERY_WORDS: Final = 64
"""The first words of a query that count."""
KEPT_VERSIONS: Final = 100
"""Earlier versions of a memory that stay."""
LEAST_CLOSENESS: Final = 0.6
"""Least similarity of two words that count as one word: the threshold of pg_trgm's `word_similarity`."""
LEAST_LETTERS: Final = 4
"""Shorter words are equal or different."""
RECIPROCAL: Final = 60
"""Source: Cormack, Clarke and Buettcher, Reciprocal Rank Fusion, SIGIR 2009."""
BLOCKS: Final = "blocks:"
"""The scopes of blocks begin so."""
_WORD: Final = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedMemory:
    """A text that every backend can keep.

    Attributes:
        slot: Identifies the key, or the text if there is none.
        metadata: JSON text of an object.
        unit: The embedding, of length 1; empty if there is none.
    """

    new: NewMemory
    slot: str
    metadata: str
    unit: array[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedQuery:
    """A search that every backend understands.

    Attributes:
        words: Lower case, each once; empty: words are not searched for.
        unit: The embedding, of length 1; empty: meaning is not searched for.
        candidates: Hits of each ranking; more than the limit where two are joined.
    """

    query: MemoryQuery
    words: tuple[str, ...]
    unit: array[float]
    filter: dict[str, JsonValue] | None
    candidates: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMemory:
    """A memory with its scores. A score is None if that search did not find it."""

    memory: Memory
    meaning: float | None
    words: float | None


def checked_memory(new: NewMemory, embedding: Sequence[float] | None) -> CheckedMemory:
    """Return a text with its embedding, if every backend can keep them.

    Raises:
        InvalidTextError: The text, the key or the scope cannot be kept.
        NotSerializableError: The metadata cannot.
        InvalidDocumentError: The embedding cannot.
        ContractError: The source or the expected version is none.
    """
    check_name_of("id of a memory", new.id)
    check_about(new.about)
    if new.key is not None:
        check_key(new.key)
    check_memory_text(new.text)
    if new.source not in get_args(MemorySource):
        raise ContractError(
            f"source of a memory is one of {get_args(MemorySource)}: {new.source!r}"
        )
    if new.expected is not None:
        check_expected(new.expected)
    return CheckedMemory(
        new=new,
        slot=slot_of(new.key, new.text),
        metadata=metadata_text(new.metadata, what="metadata of a memory"),
        unit=array("f") if embedding is None else unit_vector(embedding, what="a memory"),
    )


def check_memory_text(text: str) -> None:
    """Check that this can be the text of a memory.

    Raises:
        InvalidTextError: It cannot.
    """
    what = "text of a memory"
    if (size := len(str(text).encode(errors="replace"))) > MAX_MEMORY_BYTES:
        remedy = "keep it as an artifact, and remember what it is about"
        raise InvalidTextError(what, f"has {size} bytes, more than {MAX_MEMORY_BYTES}: {remedy}")
    check_text_of(what, text)
    if not text.strip():
        raise InvalidTextError(what, "is empty: use forget to remove a memory")


def check_about(about: str) -> None:
    """Check that this can be a scope.

    Raises:
        InvalidTextError: It cannot.
    """
    what = "scope of a memory (about=)"
    check_text_of(what, about)
    if not about.strip():
        raise InvalidTextError(what, "is empty: give it a name")
    if (size := len(about.encode())) > MAX_ABOUT_BYTES:
        raise InvalidTextError(what, f"has {size} bytes, more than {MAX_ABOUT_BYTES}: shorten it")


def check_key(key: str) -> None:
    """Check that this can be the key of a memory, or the label of a block.

    Raises:
        InvalidTextError: It cannot.
    """
    check_name_of("key of a memory", key)
    if not key.strip():
        raise InvalidTextError("key of a memory", "is empty: give it a name, or leave it out")


def checked_keys(keys: Sequence[str]) -> list[str]:
    """Return keys that memories can have.

    Raises:
        InvalidTextError: One of them cannot be one.
        ContractError: They are one text, or too many.
    """
    if isinstance(keys, str):
        raise ContractError(f"keys of memories are a list: write [{keys!r}]")
    _check_range("number of keys of memories", len(keys), 0, MAX_LISTED)
    for key in keys:
        check_key(key)
    return list(keys)


def check_expected(version: object) -> None:
    """Check that this can be an expected version.

    Raises:
        ContractError: It cannot.
    """
    _check_range("expected version of a memory", version, 0, MAX_INT)


def check_page(limit: int, offset: int) -> None:
    """Check that so many memories can be listed.

    Raises:
        ContractError: They cannot.
    """
    _check_range("limit of a list of memories", limit, 0, MAX_LISTED)
    _check_range("offset of a list of memories", offset, 0, MAX_INT)


def checked_query(query: MemoryQuery) -> CheckedQuery:
    """Return a search that every backend understands.

    Raises:
        InvalidTextError: Its text or scope cannot be searched for.
        NotSerializableError: Its filter is no JSON object.
        ContractError: See `LongTermMemory.search`.
    """
    check_about(query.about)
    check_text_of("query of a memory", query.text)
    _check_range("limit of a search in memories", query.limit, 0, MAX_RECALLED)
    if query.mode not in get_args(RecallMode):
        raise ContractError(f"mode of a search is one of {get_args(RecallMode)}: {query.mode!r}")
    if query.as_of is not None and query.as_of.tzinfo is None:
        raise ContractError(f"as_of of a search is an aware instant: {query.as_of!r}")
    for source in query.sources or ():
        if source not in get_args(MemorySource):
            raise ContractError(f"sources of a search are of {get_args(MemorySource)}: {source!r}")
    if query.mode == "meaning" and query.embedding is None:
        raise ContractError(
            "a search by meaning needs an embedding: give the agent an `embedder`, or use mode='words'"
        )
    is_meant = query.mode != "words" and query.embedding is not None
    ranking_size = max(20, 4 * query.limit) if query.mode == "hybrid" else query.limit
    return CheckedQuery(
        query=query,
        words=() if query.mode == "meaning" else words_of(query.text)[:MAX_QUERY_WORDS],
        unit=unit_vector(query.embedding or (), what="query") if is_meant else array("f"),
        filter=checked_filter(query.filter, what="filter of a search"),
        candidates=ranking_size if query.limit else 0,
    )


def embedded_head(text: str) -> str:
    """Return the part of a text or of a query that is embedded: its head, as whole characters."""
    head = text.encode()[:MAX_EMBEDDED_BYTES]
    return head.decode(errors="ignore")


def slot_of(key: str | None, text: str) -> str:
    """Return the slot of a memory in its scope: made of the key, or of the text if there is none."""
    kind, name = ("t", text) if key is None else ("k", key)
    return kind + hashlib.sha256(name.encode()).hexdigest()


def named(key_or_id: str, about: str) -> tuple[str, str, str]:
    """Return scope, slot and id of a memory that is named by its key or by an id.

    Raises:
        InvalidTextError: They cannot be that.
    """
    check_about(about)
    check_key(key_or_id)
    return about, slot_of(key_or_id, ""), key_or_id


def blocks_of(about: str) -> str:
    """Return the scope of the blocks of a scope."""
    return BLOCKS + about


def memory_scopes(what: EraseRequest) -> list[str] | None:
    """Return the scopes of the memories that an erase removes, or None for all of the tenant.

    Not for a session, to which no memory belongs.
    """
    if what.about is not None:
        return [what.about]
    if what.agent is None:
        return None
    own_scope = agent_scope(what.agent)
    return [own_scope, blocks_of(own_scope)]


def next_version(new: NewMemory, present: Memory | None) -> int | None:
    """Return the version that keeping this text makes, or None if the present text is equal.

    Raises:
        MemoryConflictError: The present version is not the expected one.
    """
    if present is not None and present.text == new.text:
        return None
    version = 0 if present is None else present.version
    if new.expected is not None and new.expected != version:
        raise conflict(new, version, None if present is None else present.text)
    return version + 1


def conflict(new: NewMemory, version: int, present_text: str | None) -> MemoryConflictError:
    """Return the error of a version that was not expected; `version` 0: there is none."""
    name, expected = new.key or new.id, new.expected or 0
    return MemoryConflictError(name, new.about, expected, version, present_text)


def words_of(text: str) -> tuple[str, ...]:
    """Return the words of a text, each once, in lower case and in their order."""
    return tuple(dict.fromkeys(_WORD.findall(text.lower())))


def word_score(query_words: Sequence[str], words: Iterable[str]) -> float:
    """Return from 0 to 1 how well words of a text answer those asked for; 0: not at all.

    Ten parts of eleven are the share of words that are there; one part is the closest spelling.
    """
    text_words = set(words)
    share = (
        sum(word in text_words for word in query_words) / len(query_words) if query_words else 0.0
    )
    longer = [word for word in query_words if len(word) >= LEAST_LETTERS]
    best = max((closeness(word, other) for word in longer for other in text_words), default=0.0)
    return joined_score(share, best)


def joined_score(share: float, best: float) -> float:
    """Return the score of a share of words and the closest spelling among them."""
    spelling_score = best if best >= LEAST_CLOSENESS else 0.0
    return (10 * share + spelling_score) / 11


def closeness(query_word: str, word: str) -> float:
    """Return the share of the trigrams of `query_word` that are in `word`."""
    trigrams = _trigrams(query_word)
    return len(trigrams & _trigrams(word)) / len(trigrams)


def ranked(hits: Sequence[FoundMemory], query: MemoryQuery, candidates: int) -> list[Memory]:
    """Return hits of one or two searches as one list, best first."""
    scores_by_meaning = _best({hit.memory.id: hit.meaning for hit in hits}, hits, candidates)
    scores_by_words = _best({hit.memory.id: hit.words for hit in hits}, hits, candidates)
    if query.mode == "hybrid":
        scores = fused([list(scores_by_meaning), list(scores_by_words)])
    else:
        scores = scores_by_meaning if query.mode == "meaning" else scores_by_words
    best_scores = _best(scores, hits, query.limit)
    memories_by_id = {hit.memory.id: hit.memory for hit in hits}
    return [
        memories_by_id[id_].model_copy(update={"score": score})
        for id_, score in best_scores.items()
    ]


def fused(rankings: Iterable[Sequence[str]]) -> dict[str, float]:
    """Return the sum of reciprocal ranks of each id: see `RECIPROCAL`."""
    scores_by_id: dict[str, float] = {}
    for ranking in rankings:
        for rank, id_ in enumerate(ranking, 1):
            scores_by_id[id_] = scores_by_id.get(id_, 0.0) + 1 / (RECIPROCAL + rank)
    return scores_by_id


def _best(
    scores_by_id: Mapping[str, float | None], found_memories: Sequence[FoundMemory], limit: int
) -> dict[str, float]:
    hits = [
        (-score, -found_memory.memory.updated_at.timestamp(), found_memory.memory.id)
        for found_memory in found_memories
        if (score := scores_by_id.get(found_memory.memory.id)) is not None
    ]
    return {id_: -score for score, _, id_ in sorted(hits)[:limit]}


# Cached: a search compares each word of the query with each word of every memory.
@lru_cache(maxsize=4096)
def _trigrams(word: str) -> frozenset[str]:
    padded_word = f"  {word} "
    return frozenset(padded_word[offset : offset + 3] for offset in range(len(padded_word) - 2))


def _check_range(what: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ContractError(f"{what} is a whole number from {least} to {most}: {value!r}")
