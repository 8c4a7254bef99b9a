"""Token counts without a request to the provider."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

from actors.kernel.agent.message import ChatMessage
from actors.kernel.agent.token_estimate import estimated_tokens, texts_of
from compose.models.clean_text import clean

_TOKENS_A_MESSAGE: Final = 4
"""Tokens around each message: role and separators, as OpenAI counts them."""
_MAX_EXACT: Final = 1_000_000
"""Longer texts are estimated, in characters: the tokenizer would hold the event loop up for a second."""


def counted_tokens(messages: Sequence[ChatMessage]) -> int:
    """Return the tokens of the messages by `bpe-openai`, if that is installed; else characters divided by 3.

    Encodings of other providers differ from OpenAI's by about a tenth.
    """
    texts = [text for message in messages for text in texts_of(message)]
    count = _counter()
    if count is None or sum(map(len, texts)) > _MAX_EXACT:
        return estimated_tokens(messages)
    return sum(count(clean(text)) for text in texts) + _TOKENS_A_MESSAGE * len(messages)


@cache
def _counter() -> Callable[[str], int] | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it opens its data in an old way
        try:
            from bpe_openai import get_encoding  # noqa: PLC0415 - 75 MB that only counting needs
        except ImportError:
            return None
        encoding = get_encoding("o200k_base")
    return lambda text: len(encoding.encode_ordinary(text))
