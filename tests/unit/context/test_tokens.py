"""Sizes of turns."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from actors._context import tokens
from actors._context.tokens import (
    MEDIA_TOKENS,
    MESSAGE_TOKENS,
    Tally,
    characters,
    installed_tokenizer,
)
from actors._kernel.agent.message import ChatMessage, ContentBlock
from actors.context import TokenCounter, estimated_tokens
from tests.unit.context.talk import CHARS, IMAGE, Summariser, calls, result, say

if TYPE_CHECKING:
    from actors._context.tokens import CountText


@pytest.mark.parametrize(
    ("text", "size"), [("", 0), ("a", 1), ("abc", 1), ("abcd", 2), ("ä" * 9, 3)]
)
def test_an_estimate_is_a_third_of_the_characters(text: str, size: int) -> None:
    """Rounded up."""
    assert estimated_tokens(text) == size


def test_the_installed_tokenizer_counts_as_models_do() -> None:
    """It needs no network, takes every text, and long ones in pieces."""
    pytest.importorskip("bpe_openai", reason="extra `tokens` is not installed")
    count = installed_tokenizer()

    assert count is not None
    assert count("The quick brown fox jumps over the lazy dog.") == 10
    assert count("<|endoftext|>") > 1
    assert count("half a pair \ud800") > 3
    assert 250_000 < count("word " * 250_000) < 251_000
    assert TokenCounter().text("hello world") == 2


def test_the_installed_tokenizer_is_the_package_s_own() -> None:
    """It is loaded without the package, which takes 140 MB, and both can live in one process."""
    pytest.importorskip("bpe_openai", reason="extra `tokens` is not installed")
    script = """
import sys
from actors._context.tokens import installed_tokenizer
texts = ["", "a", "don't  do\\n\\nthat", "Größe 東京 🦊", "x" * 3_000, "<|endoftext|>"]
sizes = [installed_tokenizer()(text) for text in texts]
assert "bpe_openai" not in sys.modules
import bpe_openai
assert sizes == [len(bpe_openai.get_encoding("o200k_base").encode_ordinary(one)) for one in texts]
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True)


def test_everything_a_model_reads_is_counted() -> None:
    """Texts, calls with arguments, results, blocks of unknown types; media have a flat size."""
    unknown = ContentBlock.model_validate({"type": "odd", "value": {"a": object()}})
    turn = ChatMessage(role="assistant", content=[ContentBlock(type="text", text="abc"), unknown])

    assert CHARS.count(say("abcdef")) == MESSAGE_TOKENS + 2
    assert CHARS.count(calls("1")) == MESSAGE_TOKENS + estimated_tokens('look {"q": "1"}')
    assert CHARS.count(result("1", "abc", IMAGE)) == MESSAGE_TOKENS + 1 + MEDIA_TOKENS
    assert CHARS.count(turn) > MESSAGE_TOKENS + 3
    assert characters(result("1", "abc", IMAGE)) == 3


@pytest.mark.parametrize("stamp", ["", "many", "-3", "1e3", "9" * 5_000])
def test_a_size_that_was_counted_is_not_counted_again(stamp: str) -> None:
    """Whatever is no number there is counted."""
    assert CHARS.count(say("abc", tokens="123")) == 123
    assert CHARS.count(say("abc", tokens=stamp)) == MESSAGE_TOKENS + 1


async def test_sizes_are_written_beside_turns_once() -> None:
    """The turns that are given stay as they are."""
    turns = [say("abc", turn="t0"), say("abc", tokens="9")]

    stamped = await CHARS.stamped(turns, llm=(model := Summariser()))

    assert [turn.metadata for turn in stamped] == [{"turn": "t0", "tokens": "5"}, {"tokens": "9"}]
    assert turns[0].metadata == {"turn": "t0"}
    assert model.counted == 0
    assert CHARS.total(stamped) == 14


@pytest.mark.parametrize(("tokenizer", "size"), [(len, "7"), (None, "77")])
async def test_the_client_counts_where_no_tokenizer_is(
    tokenizer: CountText | None, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And without a client the characters do."""
    monkeypatch.setattr(tokens, "installed_tokenizer", lambda: tokenizer)
    model = Summariser()

    [stamped] = await TokenCounter().stamped([say("abc")], llm=model)
    [alone] = await TokenCounter().stamped([say("abc")])

    assert stamped.metadata["tokens"] == size
    assert alone.metadata["tokens"] == ("7" if tokenizer else "5")


def test_one_window_counts_each_turn_once() -> None:
    """However many strategies look at it."""
    texts = list[str]()

    def count(text: str) -> int:
        texts.append(text)
        return 1

    tally, turns = Tally(TokenCounter(count)), [say("a"), say("b")]

    assert tally.total(turns) == tally.total(turns) == 2 * MESSAGE_TOKENS + 2
    assert tally.total([*turns, say("c")]) == 3 * MESSAGE_TOKENS + 3
    assert texts == ["a", "b", "c"]
