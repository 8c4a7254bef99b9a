"""Sizes of turns: tokens, as nearly as this process can count them, and characters."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Any, Final, TypeAlias

from actors.kernel.agent.llm import LLMClient
from actors.kernel.agent.message import ChatMessage, ContentBlock
from actors.kernel.agent.transcript import TOKENS, stamped_tokens

CountText: TypeAlias = Callable[[str], int]
"""Returns how many tokens a text is."""

MESSAGE_TOKENS: Final = 4
"""Tokens that a provider adds to each turn for its role."""
MEDIA_TOKENS: Final = 1_000
"""An image, a sound or a file, whose real size only the provider knows."""

_MEDIA: Final = frozenset({"image", "audio", "video", "file"})
_MOST: Final = 2_000_000
"""Longer texts are estimated: the tokenizer would hold the event loop up for seconds."""
_PIECE: Final = 40_000
"""Characters that are encoded at once."""


def estimated_tokens(text: str) -> int:
    """Return a third of the number of characters, rounded up: more than most texts have."""
    return -(-len(text) // 3)


@cache
def installed_tokenizer() -> CountText | None:
    """Return the counter of `bpe-openai` (extra ``tokens``), which needs no network, or None."""
    bindings = _bindings()
    if bindings is None:
        return None
    encoding = bindings.tokenizer_for_encoding("o200k_base")

    def count_piece(text: str) -> int:
        try:
            size: int = encoding.count(text)
        except UnicodeEncodeError:  # half a surrogate pair
            size = encoding.count(text.encode(errors="replace").decode())
        return size

    def count(text: str) -> int:
        if len(text) > _MOST:
            return estimated_tokens(text)
        return sum(count_piece(text[at : at + _PIECE]) for at in range(0, len(text), _PIECE))

    return count


def _bindings() -> Any:
    """Import the tokenizer without its package, which reads tables that only its Python code needs.

    They take 0.6 s and 140 MB of each process.
    """
    package = find_spec("bpe_openai")
    if package is None:
        return None
    spec = PathFinder.find_spec("bpe_openai._bindings", package.submodule_search_locations)
    if spec is None or spec.loader is None:
        return None
    bindings = module_from_spec(spec)
    spec.loader.exec_module(bindings)
    return bindings


class TokenCounter:
    """Tokens of turns. A size that stands in `metadata["tokens"]` is not counted again.

    Args:
        count_text: Counts a text. By default `bpe-openai` if it is installed, else a third of the
            characters.
    """

    def __init__(self, count_text: CountText | None = None) -> None:
        self._count_text = count_text

    def count(self, message: ChatMessage) -> int:
        """Return the size of one turn."""
        stamp = stamped_tokens(message)
        return self._count(message) if stamp is None else stamp

    def total(self, messages: Iterable[ChatMessage]) -> int:
        """Return the size of turns together."""
        return sum(map(self.count, messages))

    def text(self, text: str) -> int:
        """Return the size of a text alone."""
        return (self._count_text or installed_tokenizer() or estimated_tokens)(text)

    async def stamped(
        self, messages: Iterable[ChatMessage], *, llm: LLMClient | None = None
    ) -> list[ChatMessage]:
        """Return the turns with their sizes in `metadata["tokens"]`, each counted once for good.

        Args:
            messages: Those that have a size keep it.
            llm: Its `count_tokens` is asked if neither a counter was given nor `bpe-openai` is
                installed.
        """
        asked = None if self._count_text or installed_tokenizer() else llm
        done = []
        for message in messages:
            if stamped_tokens(message) is not None:
                done.append(message)
                continue
            size = await asked.count_tokens([message]) if asked else self._count(message)
            metadata = message.metadata | {TOKENS: str(size)}
            done.append(message.model_copy(update={"metadata": metadata}))
        return done

    def _count(self, message: ChatMessage) -> int:
        media = sum(block.type in _MEDIA for block in message.content)
        texts = map(self.text, texts_of(message))
        return MESSAGE_TOKENS + MEDIA_TOKENS * media + sum(texts)


ESTIMATE: Final = TokenCounter(estimated_tokens)
"""A third of the characters, whatever is installed."""


class Tally:
    """Sizes of turns, each counted once while one window is made.

    Args:
        counter: Counts.
    """

    def __init__(self, counter: TokenCounter) -> None:
        self._counter = counter
        # Beside its size each turn itself, lest another one gets its address in memory.
        self._sizes: dict[int, tuple[ChatMessage, int]] = {}

    def total(self, messages: Iterable[ChatMessage]) -> int:
        """Return the size of turns together."""
        total = 0
        for message in messages:
            stamp = stamped_tokens(message)
            total += self._counted(message) if stamp is None else stamp
        return total

    def _counted(self, message: ChatMessage) -> int:
        known = self._sizes.get(id(message))
        if known is None:
            known = self._sizes[id(message)] = (message, self._counter.count(message))
        return known[1]


def characters(message: ChatMessage) -> int:
    """Return how many characters the model reads in a turn. Media have none."""
    return sum(map(len, texts_of(message)))


def texts_of(message: ChatMessage) -> list[str]:
    """Return what the model reads in a turn, block by block: texts, calls, results."""
    return [_text_of(block) for block in message.content if block.type not in _MEDIA]


def _text_of(block: ContentBlock) -> str:
    extra: dict[str, Any] = block.model_extra or {}
    if block.type == "tool_call":
        return f"{extra.get('name', '')} {as_json(extra.get('arguments'))}"
    if block.text is not None:
        return block.text
    return as_json(extra) if extra else ""


def as_json(value: object) -> str:
    """Return JSON text of a block's data, whatever a provider put there."""
    return json.dumps(value, ensure_ascii=False, default=str, skipkeys=True)
