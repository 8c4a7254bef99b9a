"""A model behind an HTTP server with the chat completions API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from typing_extensions import override

from actors.errors import ContractError
from actors.kernel.agent.message import ChatMessage, ContentBlock
from actors.kernel.agent.models import (
    Completion,
    GenerationOptions,
    LLMClient,
    LLMResponse,
    StreamEvent,
    TextDelta,
    Usage,
)
from actors.kernel.json_data import clean_text
from actors.kernel.secrets import Secret, SecretProvider
from actors.workflow.integrations.calls import calls_in
from actors.workflow.integrations.chat_request import chat_request
from actors.workflow.integrations.http_requests import HeaderSecret, JsonServer, RemoteModelError

PROVIDER_KEY: Final = "x-provider-api-key"
_CHARS_PER_TOKEN: Final = 4
_MAX_REFUSAL: Final = 1_000
"""Maximum number of characters of a refusal that are kept."""
_NO_SUCH_PATH: Final = frozenset({404, 405, 501})


class RemoteModel(LLMClient):
    """A model in another process: ``POST <url>/chat/completions``.

    Args:
        url: The server's address, such as ``http://127.0.0.1:8080/v1``.
        model: The model for calls that name none.
        api_key: The server's key, which is sent as ``Authorization: Bearer …``.
        headers: Further headers. Headers with credentials are `Secret`.
        provider_keys: Keys of providers behind the server, by the value of a call's ``provider``.
        provider_key_header: The header for the provider's key.
        timeout_s: See `JsonServer`.
        secrets: See `JsonServer`.

    Raises:
        ContractError: See `JsonServer`.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str = "default",
        api_key: Secret | None = None,
        headers: Mapping[str, str | Secret] | None = None,
        provider_keys: Mapping[str, Secret] | None = None,
        provider_key_header: str = PROVIDER_KEY,
        timeout_s: float = 300.0,
        secrets: SecretProvider | None = None,
    ) -> None:
        own: dict[str, str | Secret | HeaderSecret] = {**(headers or {})}
        if api_key is not None:
            own["authorization"] = HeaderSecret(api_key, "Bearer ")
        self._model, self._keys = model, dict(provider_keys or {})
        self._key_header = provider_key_header
        self.server = JsonServer(url, headers=own, timeout_s=timeout_s, secrets=secrets)

    @property
    @override
    def model(self) -> str:
        return self._model

    def route_headers(self, provider: str | None) -> dict[str, str | Secret | HeaderSecret]:
        """Return the header with the key of a provider. Empty: there is no key for it."""
        key = self._keys.get(provider or "")
        return {} if key is None else {self._key_header: key}

    @override
    async def generate(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> LLMResponse:
        return await self.ask(messages, options or GenerationOptions())

    async def ask(
        self,
        messages: Sequence[ChatMessage],
        options: GenerationOptions,
        *,
        provider: str | None = None,
        model: str | None = None,
        idempotency_key: str | None = None,
    ) -> LLMResponse:
        """Return one whole answer.

        Raises:
            RemoteModelError: See `JsonServer.ask`; or the response is not a chat completion.
            UnknownSecretError: The source of secrets does not have a key.
        """
        body, names = chat_request(messages, options, model or self._model, provider)
        headers = self.route_headers(provider)
        if idempotency_key:
            headers["idempotency-key"] = idempotency_key
        told = await self.server.ask("POST", "/chat/completions", body, headers=headers)
        return _response(told, names)

    async def prompt_cache_capabilities(self, provider: str | None) -> dict[str, Any]:
        """See `CachingModel`. A server without this path supports no control of its cache."""
        named = {"model": self._model} | ({"provider": provider} if provider else {})
        path = f"/prompt_cache/capabilities?{urlencode(named)}"
        try:
            told = await self.server.ask("GET", path, headers=self.route_headers(provider))
        except RemoteModelError as exc:
            if exc.status in _NO_SUCH_PATH:
                return {"supported": False}
            raise
        return {"supported": True, **(told if isinstance(told, dict) else {"value": told})}

    async def prompt_cache_set(
        self, provider: str | None, key: str, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """See `CachingModel`."""
        return await self._cache("set", provider, {**options, "key": key})

    async def prompt_cache_clear(self, provider: str | None, key: str | None) -> dict[str, Any]:
        """See `CachingModel`."""
        return await self._cache("clear", provider, {} if key is None else {"key": key})

    async def _cache(
        self, what: str, provider: str | None, more: Mapping[str, Any]
    ) -> dict[str, Any]:
        named = {"model": self._model} | ({"provider": provider} if provider else {})
        path, headers = f"/prompt_cache/{what}", self.route_headers(provider)
        try:
            told = await self.server.ask("POST", path, {**more, **named}, headers=headers)
        except RemoteModelError as exc:
            if exc.status not in _NO_SUCH_PATH:
                raise
            problem = f"model {self._model!r} has no control of its prompt cache: {exc}"
            raise ContractError(problem) from None
        return told if isinstance(told, dict) else {"value": told}

    @override
    async def generate_stream(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        response = await self.generate(messages, options=options)
        if response.text:
            yield TextDelta(text=response.text)
        yield Completion(response=response)

    @override
    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        return sum(len(one.text) for one in messages) // _CHARS_PER_TOKEN + len(messages)


def _response(told: Any, names: Mapping[str, str]) -> LLMResponse:
    """Return the answer. `names` has our names of tools by those of the provider that differ."""
    choices = told.get("choices") if isinstance(told, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    message = first.get("message") if isinstance(first, dict) else None
    if not isinstance(first, dict) or not isinstance(message, dict):
        raise RemoteModelError("the response has no choices[0].message", retryable=False)
    reason = first.get("finish_reason")
    if (refusal := message.get("refusal")) or reason == "content_filter":
        problem = f"the model refused to answer: {refusal or reason}"
        raise RemoteModelError(clean_text(problem)[:_MAX_REFUSAL], retryable=False)
    blocks: list[dict[str, Any]] = []
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(reasoning, str):
        blocks.append({"type": "reasoning", "text": reasoning})
    if message.get("content"):
        blocks.append({"type": "text", "text": _text(message["content"])})
    found = message.get("tool_calls")
    wanted = found if isinstance(found, list) else []
    for call, raw in zip(calls_in(wanted), wanted, strict=True):
        name = names.get(call["name"], call["name"])
        block = {"type": "tool_call", "id": call["call_id"], "name": name}
        if "error" in call:
            block["invalid_arguments"] = _written_arguments(raw)
        blocks.append({**block, "arguments": call["arguments"]})
    return LLMResponse(
        content=[ContentBlock.model_validate(one) for one in blocks],
        usage=_usage(told.get("usage")),
        model=str(told.get("model") or ""),
        stop_reason=None if reason is None else str(reason),
    )


def _written_arguments(raw: dict[str, Any]) -> Any:
    """Return the arguments of a call as the model wrote them."""
    function = raw.get("function")
    return (function if isinstance(function, dict) else raw).get("arguments")


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    return "".join(
        str(one.get("text") or "") if isinstance(one, dict) else str(one) for one in parts
    )


def _usage(told: Any) -> Usage:
    if not isinstance(told, dict):
        return Usage()
    details = told.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    return Usage(
        input=_count(told.get("prompt_tokens")),
        output=_count(told.get("completion_tokens")),
        cached=_count(cached),
    )


def _count(value: Any) -> int:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if is_count else 0
