"""Control of a model's prompt cache: its capabilities, and the creation and removal of caches by key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from actors.errors import ContractError
from actors.kernel.agent.models import LLMClient


@runtime_checkable
class CachingModel(Protocol):
    """A model whose prompt cache a caller can control."""

    async def prompt_cache_capabilities(self, provider: str | None) -> dict[str, Any]:
        """Return ``supported`` and the server's description of its cache."""

    async def prompt_cache_set(
        self, provider: str | None, key: str, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Create or select the cache of a key. `options` are options of the server, such as ``ttl_s``."""

    async def prompt_cache_clear(self, provider: str | None, key: str | None) -> dict[str, Any]:
        """Remove the cache of a key. None: remove all caches."""


class PromptCache:
    """Control of the prompt cache of one model.

    Args:
        client: The model.
        provider: The provider whose cache is meant, if the server has several.
    """

    def __init__(self, client: LLMClient, provider: str | None = None) -> None:
        self._client, self._provider = client, provider

    async def capabilities(self) -> dict[str, Any]:
        """Return ``supported`` and the model's description of its cache."""
        if not isinstance(self._client, CachingModel):
            return {"supported": False}
        return await self._client.prompt_cache_capabilities(self._provider)

    async def set(self, key: str, **options: Any) -> dict[str, Any]:
        """Create or select the cache of a key; return the model's answer.

        Raises:
            ContractError: The model has no control of its cache, or the key is empty.
        """
        if not key:
            raise ContractError("prompt cache: give the key of the cache")
        return await self._able().prompt_cache_set(self._provider, key, options)

    async def clear(self, key: str | None = None) -> dict[str, Any]:
        """Remove the cache of a key, or all caches; return the model's answer.

        Raises:
            ContractError: The model has no control of its cache.
        """
        return await self._able().prompt_cache_clear(self._provider, key)

    def _able(self) -> CachingModel:
        if isinstance(self._client, CachingModel):
            return self._client
        problem = f"model {self._client.model!r} has no control of its prompt cache"
        raise ContractError(f"{problem}. Ask capabilities() first")
