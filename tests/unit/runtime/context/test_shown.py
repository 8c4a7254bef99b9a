"""Turns as a model is given them: without marks, made once while they are in the window."""

from __future__ import annotations

import hashlib

from pydantic_core import to_json

from actors._context.turns import SUMMARY, UPTO
from actors._kernel.agent.message import ChatMessage
from actors._kernel.json import canonical_json
from actors._runtime.verbs.conversation.sessions import (
    ShownTurns,
    digest,
    shown_turn,
    window_digest,
    without_marks,
)


def turn(name: str, text: str = "", **marks: str) -> ChatMessage:
    """Return a marked turn."""
    return ChatMessage.of("user", text or name).with_metadata(
        {"turn": name, "tokens": "5", **marks}
    )


def test_a_turn_is_shown_without_marks_but_that_of_a_summary() -> None:
    """A message without metadata is shown as it is."""
    plain = ChatMessage.of("user", "a")
    summary = turn("s", **{SUMMARY: "1", UPTO: "t9"})

    assert without_marks(plain) is plain
    assert without_marks(turn("a")) == plain
    assert without_marks(summary).metadata == {SUMMARY: "1"}


def test_a_turn_that_stays_in_the_window_is_made_once() -> None:
    """Other marks change nothing. What left the window is made again when it comes back."""
    shown_turns, first, second = ShownTurns(), turn("a"), turn("b")

    before = shown_turns.of([first, second])
    after = shown_turns.of([second.with_metadata({"turn": "b", "pinned": "1"}), turn("b")])
    back = shown_turns.of([first])

    assert after[0] is before[1]
    assert after[1] == before[1]
    assert after[1] is not before[1]
    assert back[0] == before[0]
    assert back[0] is not before[0]


def test_a_large_turn_is_not_kept() -> None:
    """The JSON of a window that a run keeps is 4 KiB for each turn at most."""
    shown_turns, small, large = ShownTurns(), turn("a", "x" * 3_000), turn("b", "x" * 4_096)

    before, after = shown_turns.of([small, large]), shown_turns.of([small, large])

    assert after[0] is before[0]
    assert after[1] is not before[1]
    assert after[1] == before[1]


def test_a_turn_with_the_content_of_another_is_another_turn() -> None:
    """Its role, its name, its content and the mark of a summary are shown."""
    shown_turns, first = ShownTurns(), turn("a")
    others = [
        first.model_copy(update={"role": "assistant"}),
        first.model_copy(update={"name": "ann"}),
        first.model_copy(update={"content": [*first.content, *first.content]}),
        first.with_metadata({SUMMARY: "1"}),
    ]

    shown_turns.of([first])

    assert [t.message for t in shown_turns.of(others)] == [without_marks(t) for t in others]


def test_the_digest_of_a_window_is_that_of_its_messages_as_an_array() -> None:
    """Also of an empty one, and of one with half a surrogate pair, which is no UTF-8."""
    shown_turns = ShownTurns()
    for window in ([], [turn("a")], [turn("a"), turn("b", "Grüße")]):
        messages = [without_marks(t) for t in window]
        expected_digest = hashlib.sha256(to_json(messages)).hexdigest()
        assert window_digest(shown_turns.of(window)) == digest(messages) == expected_digest

    odd = [turn("a"), turn("b", "\ud800")]
    messages = [without_marks(t) for t in odd]
    text = canonical_json([m.model_dump(mode="json") for m in messages])
    expected_digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    assert window_digest(shown_turns.of(odd)) == digest(messages) == expected_digest
    assert shown_turn(messages[1]).text is None
