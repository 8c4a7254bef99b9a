"""Context sizes of models, by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Final, TypeAlias

from actors.kernel.agent.models import LLMClient

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
    found = [prefix for prefix in CONTEXT_SIZES if name.startswith(prefix)]
    return CONTEXT_SIZES[max(found, key=len)] if found else None


def context_size_of_client(
    client: LLMClient, context_sizes: ContextSizes = context_size_of
) -> int | None:
    """Return the size of a client's window: its attribute `context_window`, else by its model's name."""
    size: int | None = getattr(client, "context_window", None)
    return size or context_sizes(client.model)
