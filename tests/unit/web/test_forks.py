"""Branches of a conversation as a reader sees them."""

from __future__ import annotations

from datetime import UTC, datetime

from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.transcript import Turn
from compose._web.pages.conversation import Fork, forks_among

AT = datetime(2026, 1, 1, tzinfo=UTC)


def turns(*pairs: tuple[str, str | None]) -> list[Turn]:
    """Return turns by id and parent, in the order in which they were written."""
    message = ChatMessage.of("user", "x")
    return [Turn(n, id_, "r", message, None, parent, AT) for n, (id_, parent) in enumerate(pairs)]


def test_a_fork_names_the_newest_end_of_its_neighbours() -> None:
    """Of three branches at the root, the second one is shown; the first one has branches of its own."""
    tree = turns(
        ("a", None),
        ("a1", "a"),
        ("b", None),
        ("b1", "b"),
        ("a2", "a"),
        ("c", None),
        ("c1", "c"),
        ("a3", "a2"),
    )

    assert forks_among(tree, {"b", "b1"}) == {"b": Fork(2, 3, "a3", "c1")}
    assert forks_among(tree, {"a", "a1"}) == {
        "a": Fork(1, 3, None, "b1"),
        "a1": Fork(1, 2, None, "a3"),
    }


def test_a_conversation_without_branches_has_no_fork() -> None:
    """One node behind each."""
    assert forks_among(turns(("a", None), ("b", "a")), {"a", "b"}) == {}
