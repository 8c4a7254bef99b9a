"""The effect LLM_CALL: calls of the host's models, or of a model behind a server.

A model's prompt cache is controlled here, too: its capabilities, and the creation and removal of caches by key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, runtime_checkable

from actors._kernel.agent.models import LLMClient, LLMResponse
from actors._kernel.agent.tools import Tool
from actors._kernel.workflow.effects import Effect, EffectOutcome
from actors._kernel.workflow.errors import GraphError
from actors._kernel.workflow.run_state import RunState
from actors._runtime.verbs.graph import asking
from actors._workflow.integrations.chat_payload import (
    check_no_login,
    messages_of,
    options_of,
    result_of,
)
from actors._workflow.integrations.remote_model import RemoteModel, RemoteModelError
from actors.errors import ContractError

DEFAULT: Final = "default"


class ModelCalls:
    """The handler of LLM_CALL.

    Args:
        models: One model for all calls, or several by name. A call gets the model named ``provider:model``,
            else ``model``, else ``provider``, else ``default``.
        tools: The tools that a payload may name.
    """

    def __init__(self, models: LLMClient | Mapping[str, LLMClient], tools: Sequence[Tool]) -> None:
        self._models, self._tools = models, tools

    async def handle(self, run: RunState, effect: Effect) -> EffectOutcome:
        """Return the model's answer. A payload that cannot be sent fails without another attempt."""
        del run
        payload = effect.payload
        try:
            check_no_login(payload)
            response = await self._answer(payload)
        except RemoteModelError as exc:
            return EffectOutcome.failed(str(exc), retryable=exc.retryable)
        except ContractError as exc:
            return EffectOutcome.failed(str(exc), retryable=False)
        return EffectOutcome.completed(result_of(response, payload))

    async def _answer(self, payload: Mapping[str, Any]) -> LLMResponse:
        provider, model = payload.get("provider"), payload.get("model")
        client = self.client(provider, model)
        messages, options = messages_of(payload), options_of(payload, self._tools)
        # Set within an effect on a host: pieces of the answer are shown, and the tree's budget counts the call.
        answers = asking.get()
        if not isinstance(client, RemoteModel):
            if answers is not None:
                return await answers.ask(client, messages, options)
            return await client.generate(messages, options=options)
        if answers is not None:
            options = answers.limited(options)
        trace = (payload.get("params") or {}).get("trace_metadata") or {}
        key = trace.get("effect_idempotency_key")
        return await client.ask(
            messages, options, provider=provider, model=model, idempotency_key=key
        )

    def client(self, provider: Any = None, model: Any = None) -> LLMClient:
        """Return the model for a call.

        Raises:
            GraphError: No model has one of these names.
        """
        if not isinstance(self._models, Mapping):
            return self._models
        for name in (f"{provider}:{model}", model, provider, DEFAULT):
            if name in self._models:
                return self._models[str(name)]
        model_names = ", ".join(sorted(self._models)) or "none"
        requested_name = ":".join(str(n) for n in (provider, model) if n) or DEFAULT
        raise GraphError(
            "llm_call", f"there is no model {requested_name!r}. There are: {model_names}"
        )


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
        """Remove the cache of a key, or all caches if the key is None."""


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
        return await self._caching_client().prompt_cache_set(self._provider, key, options)

    async def clear(self, key: str | None = None) -> dict[str, Any]:
        """Remove the cache of a key, or all caches; return the model's answer.

        Raises:
            ContractError: The model has no control of its cache.
        """
        return await self._caching_client().prompt_cache_clear(self._provider, key)

    def _caching_client(self) -> CachingModel:
        if isinstance(self._client, CachingModel):
            return self._client
        problem = f"model {self._client.model!r} has no control of its prompt cache"
        raise ContractError(f"{problem}. Ask capabilities() first")
