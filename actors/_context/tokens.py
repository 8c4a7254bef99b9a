"""Sizes: turns in tokens and in characters, context sizes of models, and limits of a window.

Tokens are counted as exactly as this process can. Limits that are added to those of the strategies are reserved
tokens and a provider's maximum.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from math import inf
from typing import Any, Final, TypeAlias

from actors._kernel.agent.message import ChatMessage, ContentBlock
from actors._kernel.agent.models import LLMClient
from actors._kernel.agent.transcript import TOKENS, stamped_tokens

CountText: TypeAlias = Callable[[str], int]
"""Function that returns the number of tokens of a text."""

MESSAGE_TOKENS: Final = 4
"""Tokens that a provider adds to each turn for its role."""
MEDIA_TOKENS: Final = 1_000
"""Tokens that an image, a sound or a file counts as. Only the provider knows the real size."""

_MEDIA: Final = frozenset({"image", "audio", "video", "file"})
_MOST: Final = 2_000_000
"""Length in characters above which a text is estimated.

The tokenizer would block the event loop for seconds.
"""
_PIECE: Final = 40_000
"""Number of characters that are encoded at once."""


def estimated_tokens(text: str) -> int:
    """Return a third of the number of characters, rounded up. It is more than the tokens of most texts."""
    return -(-len(text) // 3)


@cache
def installed_tokenizer() -> CountText | None:
    """Return the counter of `bpe-openai` (extra ``tokens``), which needs no network.

    None if it is not installed.
    """
    bindings = _bindings()
    if bindings is None:
        return None
    encoding = bindings.tokenizer_for_encoding("o200k_base")

    def count_piece(text: str) -> int:
        try:
            size: int = encoding.count(text)
        except UnicodeEncodeError:  # the text has half a surrogate pair
            size = encoding.count(text.encode(errors="replace").decode())
        return size

    def count(text: str) -> int:
        if len(text) > _MOST:
            return estimated_tokens(text)
        return sum(
            count_piece(text[offset : offset + _PIECE]) for offset in range(0, len(text), _PIECE)
        )

    return count


def _bindings() -> Any:
    """Import the tokenizer without its package. The package reads tables that only its Python code needs.

    These tables cost each process 0.6 s and 140 MB.
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
    """Counter of the tokens of turns. A size in `metadata["tokens"]` is used without a count.

    Args:
        count_text: The function that counts a text. Default: `bpe-openai` if it is installed, else a third of
            the characters.
    """

    def __init__(self, count_text: CountText | None = None) -> None:
        self._count_text = count_text

    def count(self, message: ChatMessage) -> int:
        """Return the size of one turn."""
        stamp = stamped_tokens(message) if message.metadata else None
        return self._count(message) if stamp is None else stamp

    def total(self, messages: Iterable[ChatMessage]) -> int:
        """Return the size of turns together."""
        return sum(map(self.count, messages))

    def text(self, text: str) -> int:
        """Return the size of a text alone."""
        return self._count_of_text(text)

    @property
    def _count_of_text(self) -> CountText:
        return self._count_text or installed_tokenizer() or estimated_tokens

    async def stamped(
        self, messages: Iterable[ChatMessage], *, llm: LLMClient | None = None
    ) -> list[ChatMessage]:
        """Return the turns with their sizes in `metadata["tokens"]`, so that they are not counted again.

        Args:
            messages: The turns. Turns that have a size keep it.
            llm: The client whose `count_tokens` is used if no counter was given and `bpe-openai` is not
                installed.
        """
        client = None if self._count_text or installed_tokenizer() else llm
        sized_messages = []
        for message in messages:
            if stamped_tokens(message) is not None:
                sized_messages.append(message)
                continue
            size = await client.count_tokens([message]) if client else self._count(message)
            sized_messages.append(message.with_metadata(message.metadata | {TOKENS: str(size)}))
        return sized_messages

    def _count(self, message: ChatMessage) -> int:
        size, count = MESSAGE_TOKENS, self._count_of_text
        for block in message.content:
            size += MEDIA_TOKENS if block.type in _MEDIA else count(_text_of(block))
        return size


ESTIMATE: Final = TokenCounter(estimated_tokens)
"""The counter that estimates a third of the characters, even if a tokenizer is installed."""


class Tally:
    """The sizes of turns, each counted once while a window is made.

    Args:
        counter: The counter of tokens.
    """

    def __init__(self, counter: TokenCounter) -> None:
        self._counter = counter
        # Each turn is kept with its size, so that its id cannot be used by another object.
        self._sizes: dict[int, tuple[ChatMessage, int]] = {}

    def total(self, messages: Iterable[ChatMessage]) -> int:
        """Return the size of turns together."""
        total = 0
        for message in messages:
            size = stamped_tokens(message)
            if size is None:
                entry = self._sizes.get(id(message))
                if entry is None:
                    entry = self._sizes[id(message)] = (message, self._counter.count(message))
                size = entry[1]
            total += size
        return total


def characters(message: ChatMessage) -> int:
    """Return the number of characters that the model reads in a turn. Media count as none."""
    return sum(map(len, texts_of(message)))


def texts_of(message: ChatMessage) -> list[str]:
    """Return the texts that the model reads in a turn, block by block: texts, calls, results."""
    return [_text_of(block) for block in message.content if block.type not in _MEDIA]


def _text_of(block: ContentBlock) -> str:
    if block.type == "text" and block.text is not None:
        return block.text
    extra: dict[str, Any] = block.model_extra or {}
    if block.type == "tool_call":
        return f"{extra.get('name', '')} {as_json(extra.get('arguments'))}"
    if block.text is not None:
        return block.text
    return as_json(extra) if extra else ""


def as_json(value: object) -> str:
    """Return JSON text of a block's data, even if a provider's data is not JSON."""
    return json.dumps(value, ensure_ascii=False, default=str, skipkeys=True)


ContextSizes: TypeAlias = Callable[[str], int | None]
"""Function that returns the size of a model's window in tokens, or None if it does not know the model."""

DEFAULT_CONTEXT_SIZE: Final = 32_768
"""Size of the window of an unknown model, in tokens."""

CONTEXT_SIZES: Final[Mapping[str, int]] = {
    "claude-": 200_000,
    "gemini-": 1_048_576,
    "gpt-3.5-turbo": 16_385,
    "gpt-4": 8_192,
    "gpt-4-turbo": 128_000,
    "gpt-4.1": 1_047_576,
    "gpt-4o": 128_000,
    "gpt-5": 400_000,
    "llama-3.1": 131_072,
    "llama-3.3": 131_072,
    "mistral-large": 131_072,
    "o1": 200_000,
    "o3": 200_000,
    "o4-mini": 200_000,
}
"""Size of the window in tokens, by prefix of the model's name. The longest matching prefix is used."""


@lru_cache(maxsize=1_024)
def context_size_of(model_name: str) -> int | None:
    """Return the size of a model's window, or None. A provider before the name is ignored."""
    name = re.split(r"[:/]", model_name)[-1]
    prefixes = [prefix for prefix in CONTEXT_SIZES if name.startswith(prefix)]
    return CONTEXT_SIZES[max(prefixes, key=len)] if prefixes else None


def context_size_of_client(
    client: LLMClient, context_sizes: ContextSizes = context_size_of
) -> int | None:
    """Return the size of a client's window: its attribute `context_window`, else by its model's name."""
    size: int | None = getattr(client, "context_window", None)
    return size or context_sizes(client.model)


_limits: ContextVar[tuple[int, float]] = ContextVar("callboard_window_limits", default=(0, inf))


@contextmanager
def reserving(tokens: int, *, at_most: float = inf) -> Iterator[None]:
    """Reduce token budgets inside the block.

    Args:
        tokens: Number of tokens that are reserved for instructions, tool schemas and the answer.
        at_most: Maximum size of the turns in tokens, even if a budget is larger.
    """
    token = _limits.set((tokens, at_most))
    try:
        yield
    finally:
        _limits.reset(token)


def limited(budget: int) -> int:
    """Return the tokens that turns may have under a budget, after the reserve and the maximum: at least 1."""
    reserved_tokens, at_most = _limits.get()
    return max(int(min(budget - reserved_tokens, at_most)), 1)
