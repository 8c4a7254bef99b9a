"""The effect LLM_CALL: calls of the host's models, or of a model behind a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from actors.errors import ContractError
from actors.kernel.agent.models import LLMClient, LLMResponse
from actors.kernel.agent.tools import Tool
from actors.kernel.workflow.effects import Effect, EffectOutcome
from actors.kernel.workflow.errors import GraphError
from actors.kernel.workflow.run_state import RunState
from actors.runtime.verbs.graph import asking
from actors.workflow.integrations.chat_payload import (
    check_no_login,
    messages_of,
    options_of,
    result_of,
)
from actors.workflow.integrations.http_requests import RemoteModelError
from actors.workflow.integrations.remote_model import RemoteModel

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
        known = ", ".join(sorted(self._models)) or "none"
        wanted = ":".join(str(one) for one in (provider, model) if one) or DEFAULT
        raise GraphError("llm_call", f"there is no model {wanted!r}. There are: {known}")
