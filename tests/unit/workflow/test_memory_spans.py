"""The index of memory: spans are found by what they say, and objects are put into lists by their name."""

from __future__ import annotations

from typing import Any

import pytest

from actors._kernel.workflow.errors import GraphError
from actors._workflow.machine.variables import with_item
from actors._workflow.notes.spans import (
    SpanFilter,
    has_words,
    neighbours,
    newest_first,
    span_at,
    spans_of,
    with_tags,
)


def span(name: str, minute: int = 0, **more: Any) -> dict[str, Any]:
    """A span of one minute."""
    first, last = (f"2025-01-01T00:{minute + n:02}:00Z" for n in (0, 1))
    return {"artifact_id": name, "from_timestamp": first, "to_timestamp": last} | more


SPANS = [
    span("a", 0, tags={"topic": "API", "who": "ann"}, created_by="Ann", location="Paris"),
    span("b", 10, tags={"topic": "cook", "location": "nyc"}, created_by="bob"),
    span("c", 20, tags={"topic": "api"}),
]


def find_names(**criteria: Any) -> str:
    """The names of the spans that fit."""
    return "".join(
        s["artifact_id"] for s in filter(SpanFilter(**criteria).fits, spans_of(within(SPANS)))
    )


def within(spans: Any) -> dict[str, Any]:
    """Vars with an index."""
    return {"_runtime": {"memory_spans": spans}}


@pytest.mark.item(423)
def test_spans_are_found_by_all_that_a_filter_says() -> None:
    """Without regard to case; tags by all or by one of them, and each by one of its values."""
    assert find_names() == "abc"
    assert find_names(ids=["b", "x"]) == "b"
    assert find_names(tags={"topic": ["api"]}) == "ac"
    assert find_names(tags={"topic": ["api", "cook"], "who": ["ANN"]}) == "a"
    assert find_names(tags={"topic": ["cook"], "who": ["ann"]}) == ""
    assert find_names(tags={"topic": ["cook"], "who": ["ann"]}, any_tag=True) == "ab"
    assert find_names(authors=["ann"]) == "a"
    assert find_names(locations=["paris", "NYC"]) == "ab"
    assert find_names(tags={"topic": ["api"]}, authors=["bob"]) == ""


@pytest.mark.item(423)
def test_spans_are_found_by_time() -> None:
    """Those that overlap, borders included, in any offset; one without instants is at no time."""
    assert find_names(since="2025-01-01T00:11:00Z") == "bc"
    assert find_names(until="2025-01-01T01:10:00+01:00") == "ab"
    assert find_names(since="2025-01-01T00:11:30Z", until="2025-01-01T00:19:00Z") == ""
    timeless = {"artifact_id": "x", "from_timestamp": "t1"}
    border = "2025-01-01T00:00:00Z"
    assert not SpanFilter(since=border).fits(timeless)
    assert not SpanFilter(until=border).fits(timeless)
    assert SpanFilter().fits(timeless)


def test_a_span_is_named_by_its_id_or_its_place() -> None:
    """Places begin with 1; an id that looks like a place is an id."""
    assert [
        (span_at(SPANS, reference) or {}).get("artifact_id") for reference in (1, "3", "b", " b ")
    ] == [*"acbb"]
    odd: list[Any] = [None, 0, 4, "x", True, "", "9" * 40, "²", [], {}]
    assert [span_at(SPANS, reference) for reference in odd] == [None] * len(odd)
    assert span_at([span("a"), span("1")], 1) == span("1")


def test_what_is_no_span_is_left_out() -> None:
    """The vars may hold anything in its place."""
    odd: list[Any] = [None, 7, "x", {}, [None, {}, {"artifact_id": 3}, []]]
    for value in odd:
        assert spans_of(within(value)) == []
    assert spans_of({"_runtime": []}) == spans_of({}) == []


def test_neighbours_are_the_next_ones_in_time() -> None:
    """Whatever their order in the index; those that were found are none."""
    mixed = [SPANS[2], SPANS[0], SPANS[1]]
    assert newest_first(mixed) == [SPANS[2], SPANS[1], SPANS[0]]
    assert neighbours(mixed, [SPANS[0]], 1) == [SPANS[1]]
    assert neighbours(mixed, [SPANS[0]], 2) == [SPANS[2], SPANS[1]]
    assert neighbours(mixed, [SPANS[1]], 1) == [SPANS[2], SPANS[0]]
    assert neighbours(mixed, [SPANS[1]], 0) == []


@pytest.mark.item(424)
def test_tags_are_added_or_replaced() -> None:
    """The span that was there stays as it was."""
    before = span("a", tags={"topic": "api", "who": "ann"})
    assert with_tags(before, {"who": "bob"}, merge=True)["tags"] == {"topic": "api", "who": "bob"}
    assert with_tags(before, {"who": "bob"}, merge=False)["tags"] == {"who": "bob"}
    assert before == span("a", tags={"topic": "api", "who": "ann"})


def test_words_are_found_in_any_order_and_case() -> None:
    """All of them; none is a word that everything has."""
    assert has_words("Alice owns the API", "api ALICE")
    assert not has_words("Alice owns the API", "alice bob")
    assert has_words("", "  ")


def test_an_object_takes_the_place_of_its_namesake() -> None:
    """Or becomes the last one; nothing that was there is changed."""
    before = within([{"id": 1, "v": 1}, "x", {"v": 0}, {"id": 2}])
    path = ["_runtime", "memory_spans"]

    after = with_item(before, path, "id", {"id": 1, "v": 2})
    longer = with_item(after, path, "id", {"id": 3})

    assert after == within([{"id": 1, "v": 2}, "x", {"v": 0}, {"id": 2}])
    assert longer["_runtime"]["memory_spans"][-1] == {"id": 3}
    assert before["_runtime"]["memory_spans"][0] == {"id": 1, "v": 1}
    assert with_item({}, path, "id", {"id": 1}) == within([{"id": 1}])
    with pytest.raises(GraphError, match=r"_runtime\.memory_spans.*str, not a list"):
        with_item(within("x"), path, "id", {"id": 1})
