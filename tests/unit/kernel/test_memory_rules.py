"""Rules of long-term memory: versions, words, and rankings that are joined."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from actors._kernel.memory_rules import (
    MAX_EMBEDDED_BYTES,
    MAX_MEMORY_BYTES,
    FoundMemory,
    closeness,
    embedded_head,
    fused,
    next_version,
    ranked,
    slot_of,
    word_score,
    words_of,
)
from actors._kernel.stores.memory import Memory, MemoryConflictError, MemoryQuery, NewMemory
from compose._models import embedders

START = datetime(2026, 1, 1, tzinfo=UTC)


def memory(id_: str, *, text: str = "", version: int = 1, age: int = 0) -> Memory:
    """A memory of some days ago."""
    at = START - timedelta(days=age)
    return Memory(id=id_, about="u", text=text, version=version, created_at=at, updated_at=at)


def test_ranks_that_are_joined_prefer_what_both_found() -> None:
    """The second of both rankings is before the first of one."""
    scores = fused([["a", "b"], ["c", "b"]])

    assert max(scores, key=lambda id_: scores[id_]) == "b"
    assert scores["a"] == scores["c"] == 1 / 61
    assert scores["b"] == 2 / 62


def test_hits_of_one_score_come_newest_first() -> None:
    """Then by id, so that every backend gives one order; what a search did not find is no hit of it."""
    hits = [
        FoundMemory(memory=memory(id_, age=age), meaning=meaning, words=words)
        for id_, age, meaning, words in (
            ("old", 9, 0.5, 0.2),
            ("b", 1, 0.5, None),
            ("a", 1, 0.5, None),
            ("best", 5, 0.9, None),
        )
    ]

    def ids(mode: str, limit: int = 5, candidates: int = 20) -> list[str]:
        query = MemoryQuery(text="", about="u", limit=limit, mode=mode)  # type: ignore[arg-type]
        return [hit.id for hit in ranked(hits, query, candidates)]

    assert ids("meaning") == ["best", "a", "b", "old"]
    assert ids("words") == ["old"]
    assert ids("hybrid") == ["old", "best", "a", "b"]
    assert ids("hybrid", limit=1) == ["old"]


def test_words_are_compared_in_lower_case_and_by_their_letters() -> None:
    """A share of words counts ten times as much as one close spelling; short words are equal or not."""
    assert words_of("Über-größe, UNITS units_2!") == ("über", "größe", "units", "2")
    assert word_score(["units", "metric"], ["metric"]) == pytest.approx((10 * 0.5 + 1) / 11)
    assert closeness("coffe", "coffee") == pytest.approx(5 / 6)
    assert 0 < word_score(["coffe"], ["coffee"]) < word_score(["coffee", "x"], ["coffee"])
    assert word_score(["tea"], ["teas"]) == 0
    assert word_score([], ["a"]) == 0


def test_a_version_follows_the_present_one() -> None:
    """An equal text makes none, whatever was expected; a wrong expectation is told the text."""
    new = NewMemory(id="n", about="u", text="new", key="k", expected=2)

    assert next_version(new, memory("a", text="old", version=2)) == 3
    assert next_version(new, memory("a", text="new", version=9)) is None
    with pytest.raises(MemoryConflictError, match=r"'k' of 'u' has version 7, not 2: .*'old'"):
        next_version(new, memory("a", text="old", version=7))


def test_the_head_of_a_text_is_embedded() -> None:
    """No character is cut; a text that fits is embedded whole, and every embedder takes the head."""
    assert embedded_head("ä" * 9) == "ä" * 9
    assert embedded_head("x" + "ä" * MAX_EMBEDDED_BYTES) == "x" + "ä" * (
        MAX_EMBEDDED_BYTES // 2 - 1
    )
    assert embedded_head("x" * MAX_MEMORY_BYTES) == "x" * MAX_EMBEDDED_BYTES
    assert min(embedders.MAX_BYTES, embedders.PROVIDER_MAX_BYTES) >= MAX_EMBEDDED_BYTES


def test_a_key_is_no_text_of_the_same_letters() -> None:
    """They are different memories."""
    assert slot_of("a", "x") == slot_of("a", "y")
    assert slot_of(None, "a") != slot_of("a", "a")
