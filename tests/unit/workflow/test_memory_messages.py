"""The messages of a context: what of them is archived, and where messages go back in."""

from __future__ import annotations

from typing import Any

import pytest

from actors._workflow.notes.messages import (
    insert_messages,
    normalize_messages,
    note_message,
    span_metadata_from_messages,
    split_for_compaction,
    summary_message,
    without_known,
)

SYSTEM = {"role": "system", "content": "s"}


def messages_of(*words: str, role: str = "user") -> list[dict[str, Any]]:
    """Messages of these words, which are their ids, too."""
    return [{"role": role, "content": word, "metadata": {"message_id": word}} for word in words]


def words(messages: Any) -> str:
    """What messages say."""
    return "".join(message["content"] for message in messages)


@pytest.mark.item(425)
def test_the_last_messages_and_the_systems_stay() -> None:
    """All others are older; a number larger than what is there archives nothing."""
    context = [SYSTEM, *messages_of("a", "b"), summary_message("x", "old", "t"), *messages_of("c")]

    split = split_for_compaction(context, preserve_recent=1)

    assert split.system_messages == [context[0], context[3]]
    assert (words(split.older_messages), words(split.recent_messages)) == ("ab", "c")
    assert words(split_for_compaction(context, preserve_recent=0).older_messages) == "abc"
    for many in (3, 9):
        assert split_for_compaction(context, preserve_recent=many).older_messages == []


@pytest.mark.item(425)
def test_a_result_stays_with_its_call() -> None:
    """What stays never begins with the result of a tool, which no provider takes without its call."""
    context = [
        *messages_of("a"),
        *messages_of("call", role="assistant"),
        *messages_of("1", "2", role="tool"),
        *messages_of("b"),
    ]

    for recent in (2, 3, 4):
        split = split_for_compaction(context, preserve_recent=recent)
        assert (words(split.older_messages), words(split.recent_messages)) == ("a", "call12b")


def test_messages_get_what_they_lack() -> None:
    """An instant and an id; what is no message is left out, and what was given is not changed."""
    messages = [{"role": "user", "content": "a"}, 3, *messages_of("b")]

    normal_messages = normalize_messages(
        messages, now_iso=lambda: "now", new_message_id=lambda at: f"m{at}"
    )

    assert [
        (message["timestamp"], message["metadata"]["message_id"]) for message in normal_messages
    ] == [("now", "m0"), ("now", "b")]
    assert messages[0] == {"role": "user", "content": "a"}
    assert normalize_messages({"no": "list"}, now_iso=lambda: "now") == []
    assert span_metadata_from_messages([])["message_count"] == 0


@pytest.mark.item(426)
def test_messages_go_where_the_placement_says() -> None:
    """Behind their summary, behind the system messages at the beginning, or at the end; in their order."""
    context = [SYSTEM, *messages_of("a"), summary_message("x", "X", "t"), *messages_of("b")]
    pieces = [
        ("y", messages_of("1")),
        ("x", messages_of("2")),
        ("z", [note_message("z", "3", "t"), *messages_of("4")]),
    ]

    def order(placement: str) -> list[str]:
        return [
            message["content"].rpartition("\n")[2][-1:]
            for message in insert_messages(context, pieces, placement)
        ]

    assert order("after_summary") == [*"s134aX2b"]
    assert order("after_system") == [*"s1234aXb"]
    assert order("end") == [*"saXb1234"]
    assert insert_messages([], pieces, "after_system") == insert_messages([], pieces, "end")


@pytest.mark.item(426)
def test_a_message_is_put_in_once() -> None:
    """By its id; one that has none by its role, words and instant."""
    bare = {"role": "user", "content": "x"}
    fresh = without_known(
        [*messages_of("a", "b", "b"), bare, bare, {**bare, "timestamp": "t"}], messages_of("a")
    )

    assert words(fresh) == "bxx"
