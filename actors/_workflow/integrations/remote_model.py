"""A model behind an HTTP server with the chat completions API.

Secrets are read for each request and are sent in headers only. The body of a request is as the provider behind
the server accepts it. For a conversation may have turns that the provider refuses: a blank text, an id of
another provider's call, a tool that does not exist. Each later request of the run would be refused, too.
"""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from typing_extensions import override

from actors._context.fitting import (
    EARLIER,
    EMPTY_MESSAGE,
    NO_OUTPUT,
    CallIds,
    ProviderRules,
    by_sent_name,
    fitted_name,
    names_for,
    rules_of,
)
from actors._context.repair import repaired
from actors._kernel.agent.message import ChatMessage, ContentBlock
from actors._kernel.agent.models import (
    Completion,
    GenerationOptions,
    LLMClient,
    LLMResponse,
    StreamEvent,
    TextDelta,
    Usage,
)
from actors._kernel.json_data import clean_text
from actors._kernel.secrets import Secret, SecretProvider
from actors._runtime.loop.tasks import in_thread
from actors._runtime.verbs.secrets import EnvSecrets, FileSecrets, Secrets, redacted
from actors._workflow.integrations.chat_payload import calls_in
from actors.errors import ContractError

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
        timeout_s: Seconds to connect, and between two pieces of a response.
        secrets: The source of secrets. By default the folder ``CALLBOARD_SECRETS_DIR``, as on hosts, or if that
            is not set, the variables ``CALLBOARD_SECRET_<NAME>``.

    Raises:
        ContractError: The address is not an HTTP address or holds credentials, or a header with credentials is
            a plain text.
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
        all_headers: dict[str, str | Secret | HeaderSecret] = {**(headers or {})}
        if api_key is not None:
            all_headers["authorization"] = HeaderSecret(api_key, "Bearer ")
        self._model, self._keys = model, dict(provider_keys or {})
        self._key_header = provider_key_header
        self.server: JsonServer = JsonServer(
            url, headers=all_headers, timeout_s=timeout_s, secrets=secrets
        )

    @property
    @override
    def model(self) -> str:
        return self._model

    def route_headers(self, provider: str | None) -> dict[str, str | Secret | HeaderSecret]:
        """Return the header with the key of a provider; empty if there is no key for it."""
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
            RemoteModelError: The connection failed, or the response is an error or not a chat completion.
            UnknownSecretError: The source of secrets does not have a key.
        """
        body, names = chat_request(messages, options, model or self._model, provider)
        headers = self.route_headers(provider)
        if idempotency_key:
            headers["idempotency-key"] = idempotency_key
        answer = await self.server.ask("POST", "/chat/completions", body, headers=headers)
        return _response(answer, names)

    async def prompt_cache_capabilities(self, provider: str | None) -> dict[str, Any]:
        """Return ``supported`` and the server's description of its cache.

        A server without this path supports no control of its cache.
        """
        query = {"model": self._model} | ({"provider": provider} if provider else {})
        path = f"/prompt_cache/capabilities?{urlencode(query)}"
        try:
            answer = await self.server.ask("GET", path, headers=self.route_headers(provider))
        except RemoteModelError as exc:
            if exc.status in _NO_SUCH_PATH:
                return {"supported": False}
            raise
        return {"supported": True, **(answer if isinstance(answer, dict) else {"value": answer})}

    async def prompt_cache_set(
        self, provider: str | None, key: str, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Create or select the cache of a key on the server."""
        return await self._cache("set", provider, {**options, "key": key})

    async def prompt_cache_clear(self, provider: str | None, key: str | None) -> dict[str, Any]:
        """Remove the cache of a key on the server, or all caches if the key is None."""
        return await self._cache("clear", provider, {} if key is None else {"key": key})

    async def _cache(
        self, action: str, provider: str | None, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        selection = {"model": self._model} | ({"provider": provider} if provider else {})
        path, headers = f"/prompt_cache/{action}", self.route_headers(provider)
        try:
            answer = await self.server.ask("POST", path, {**options, **selection}, headers=headers)
        except RemoteModelError as exc:
            if exc.status not in _NO_SUCH_PATH:
                raise
            problem = f"model {self._model!r} has no control of its prompt cache: {exc}"
            raise ContractError(problem) from None
        return answer if isinstance(answer, dict) else {"value": answer}

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
        return sum(len(m.text) for m in messages) // _CHARS_PER_TOKEN + len(messages)


def _response(data: Any, names: Mapping[str, str]) -> LLMResponse:
    """Return the answer. `names` has our names of tools by those of the provider that differ."""
    choices = data.get("choices") if isinstance(data, dict) else None
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
    tool_calls = message.get("tool_calls")
    raw_calls = tool_calls if isinstance(tool_calls, list) else []
    for call, raw in zip(calls_in(raw_calls), raw_calls, strict=True):
        name = names.get(call["name"], call["name"])
        block = {"type": "tool_call", "id": call["call_id"], "name": name}
        if "error" in call:
            function = raw.get("function")  # its arguments are as the model wrote them
            fields = function if isinstance(function, dict) else raw
            block["invalid_arguments"] = fields.get("arguments")
        blocks.append({**block, "arguments": call["arguments"]})
    return LLMResponse(
        content=[ContentBlock.model_validate(b) for b in blocks],
        usage=_usage(data.get("usage")),
        model=str(data.get("model") or ""),
        stop_reason=None if reason is None else str(reason),
    )


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    return "".join(
        str(part.get("text") or "") if isinstance(part, dict) else str(part) for part in parts
    )


def _usage(data: Any) -> Usage:
    if not isinstance(data, dict):
        return Usage()
    details = data.get("prompt_tokens_details")
    cached_tokens = details.get("cached_tokens") if isinstance(details, dict) else 0
    return Usage(
        input=_count(data.get("prompt_tokens")),
        output=_count(data.get("completion_tokens")),
        cached=_count(cached_tokens),
    )


def _count(value: Any) -> int:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if is_count else 0


MOST_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of a response, in bytes."""
_SHOWN: Final = 500
_LOGINS: Final = ("authorization", "api-key", "apikey", "token", "secret", "cookie")
_TRY_AGAIN: Final = frozenset({408, 409, 425, 429})
_SERVER_ERROR: Final = 500
_OK: Final = range(200, 300)


class RemoteModelError(Exception):
    """A server of models gave no answer.

    Attributes:
        retryable: True if another attempt may succeed.
        status: The status of the response, or None if there was no response.
    """

    retryable: bool
    status: int | None

    def __init__(self, text: str, *, retryable: bool, status: int | None = None) -> None:
        super().__init__(text)
        self.retryable, self.status = retryable, status


@dataclass(frozen=True, slots=True)
class HeaderSecret:
    """The value of a header: a secret with a prefix, such as ``Bearer``."""

    secret: Secret
    prefix: str = ""


class JsonServer:
    """A server of a JSON API. Redirects are not followed, since they would send keys to another server.

    Args:
        url: The base address of paths, such as ``http://127.0.0.1:8080/v1``.
        headers: The headers of each request. Headers with credentials are `Secret`.
        timeout_s: Seconds to connect, and between two pieces of a response.
        secrets: The source of secrets. By default the folder ``CALLBOARD_SECRETS_DIR``, as on hosts, or if that
            is not set, the variables ``CALLBOARD_SECRET_<NAME>``.

    Raises:
        ContractError: The address is not an HTTP address or holds credentials, or a header with credentials is
            a plain text.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str | Secret | HeaderSecret],
        timeout_s: float,
        secrets: SecretProvider | None,
    ) -> None:
        self._parts = urlsplit(url)
        if self._parts.scheme not in {"http", "https"} or not self._parts.hostname:
            raise ContractError("url: give the http://… or https://… address of a server of models")
        if self._parts.username or self._parts.query:
            raise ContractError("url: remove the login and the query. Give headers={…: Secret(…)}")
        for name, value in headers.items():
            if isinstance(value, str) and any(word in name.lower() for word in _LOGINS):
                raise ContractError(f"header {name!r} logs in: give Secret('NAME'), not its value")
        self._headers, self._timeout_s = dict(headers), timeout_s
        folder = os.environ.get("CALLBOARD_SECRETS_DIR")
        self._secrets = Secrets(secrets or (FileSecrets(Path(folder)) if folder else EnvSecrets()))

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str | Secret | HeaderSecret] | None = None,
    ) -> Any:
        """Return the JSON of a response. Values of secrets in it are redacted.

        Raises:
            UnknownSecretError: The source of secrets does not have a secret.
            RemoteModelError: The connection failed, the response is no JSON or too large, or its status is not
                2xx.
        """
        all_headers = {**self._headers, **(headers or {})}
        header_secrets = {
            name: _header_secret(value)
            for name, value in all_headers.items()
            if not isinstance(value, str)
        }
        values = await self._secrets.values(header.secret for header in header_secrets.values())
        request_headers = {name: v for name, v in all_headers.items() if isinstance(v, str)}
        for name, header in header_secrets.items():
            request_headers[name] = _header_text(header, values[header.secret.name])
        content = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        try:
            status, raw = await in_thread(self._send, method, path, content, request_headers)
        except (OSError, http.client.HTTPException) as exc:
            error_text = str(redacted(f"{type(exc).__name__}: {exc}", values))
            raise RemoteModelError(f"{self._where(path)}: {error_text}", retryable=True) from None
        # A server may repeat a header in its response, and the response goes into the ledger.
        return redacted(self._read(path, status, raw, values), values)

    def _read(self, path: str, status: int, raw: bytes, values: Mapping[str, str]) -> Any:
        if status not in _OK:
            body_text = str(redacted(raw.decode(errors="replace"), values))[:_SHOWN]
            is_retryable = status in _TRY_AGAIN or status >= _SERVER_ERROR
            problem = f"{self._where(path)}: status {status}: {body_text}"
            raise RemoteModelError(problem, retryable=is_retryable, status=status)
        if len(raw) > MOST_BYTES:
            problem = f"{self._where(path)}: more than {MOST_BYTES} bytes"
            raise RemoteModelError(problem, retryable=False)
        try:
            return json.loads(raw) if raw.strip() else {}
        except (ValueError, RecursionError):
            problem = f"{self._where(path)}: the response is no JSON"
            raise RemoteModelError(problem, retryable=True) from None

    def _where(self, path: str) -> str:
        return f"{self._parts.scheme}://{self._parts.netloc}{self._parts.path.rstrip('/')}{path}"

    def _send(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        is_tls = self._parts.scheme == "https"
        kind = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
        connection = kind(str(self._parts.hostname), self._parts.port, timeout=self._timeout_s)
        all_headers = {"accept": "application/json", **headers}
        if body is not None:
            all_headers["content-type"] = "application/json"
        try:
            connection.request(method, f"{self._parts.path.rstrip('/')}{path}", body, all_headers)
            response = connection.getresponse()
            # One byte more than allowed shows that the response is too large, without reading all of it.
            return response.status, response.read(MOST_BYTES + 1)
        finally:
            connection.close()


def _header_secret(value: Any) -> HeaderSecret:
    if isinstance(value, HeaderSecret):
        return value
    if isinstance(value, Secret):
        return HeaderSecret(value)
    raise ContractError(f"a header is a {type(value).__name__}: give a text or a Secret")


def _header_text(header: HeaderSecret, value: str) -> str:
    if not value.isprintable() or not value.isascii():
        problem = f"secret {header.secret.name} is no value of a header: it has other than printable ASCII"
        raise ContractError(problem)
    return f"{header.prefix}{value}"


def chat_request(
    messages: Sequence[ChatMessage], options: GenerationOptions, model: str, provider: str | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the body, and our names of tools by those of the provider that differ from them.

    If `provider` is None or not known, the body keeps the strictest common rules.
    """
    rules, chat = rules_of((provider or "").lower()), repaired(messages)
    names = names_for(rules, (tool.name for tool in options.tools), _called_tools(chat))
    rows = _Rows(rules, names)
    system = options.system_instructions
    if system and system.strip():
        rows.add({"role": "system", "content": system})
    for message in chat:
        rows.add_message(message)
    body = {**options.extra, "model": model, "messages": rows.finish()}
    body |= _settings(options, rules, names)
    return body | ({"provider": provider} if provider else {}), by_sent_name(names)


def _settings(
    options: GenerationOptions, rules: ProviderRules, names: Mapping[str, str]
) -> dict[str, Any]:
    schema, tools = options.response_format, []
    choice: Any = options.tool_choice
    if choice not in {None, "auto", "none", "required"}:
        choice = {"type": "function", "function": {"name": names.get(choice, choice)}}
    for tool in options.tools:
        function = {**tool.model_dump(), "name": names[tool.name]}
        tools.append({"type": "function", "function": function})
    settings: dict[str, Any] = {
        "temperature": options.temperature,
        "max_tokens": options.max_tokens,
        "stop": list(options.stop) or None,
        "tools": tools or None,
        "tool_choice": choice,
    }
    if schema:
        name = fitted_name(str(schema.get("title") or "answer"), rules)
        settings["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": name, "schema": schema},
        }
    return {name: value for name, value in settings.items() if value is not None}


class _Rows:
    """The messages of one request, in the order of the conversation."""

    def __init__(self, rules: ProviderRules, names: Mapping[str, str]) -> None:
        self._rules, self._names = rules, names
        self._ids = CallIds(rules)
        self._rows: list[dict[str, Any]] = []

    def add_message(self, message: ChatMessage) -> None:
        """Add the rows of a message. A message of the user has one, also if it says nothing."""
        if message.role == "tool":
            for block in message.content:
                if block.type == "tool_result":
                    self.add(self._result(block))
            return
        text = message.text
        if not self._rules.takes_blank_text and not text.strip():
            text = ""
        urls = [
            (block.model_extra or {}).get("url")
            for block in message.content
            if block.type == "image"
        ]
        images = [url for url in urls if isinstance(url, str)]
        calls = _blocks(message, "tool_call") if message.role == "assistant" else []
        if message.role == "user" and not text and not images:
            text = EMPTY_MESSAGE
        if not (text or images or calls):
            return
        row: dict[str, Any] = {"role": message.role, "content": text or None}
        if images:
            parts = [{"type": "image_url", "image_url": {"url": url}} for url in images]
            row["content"] = ([{"type": "text", "text": text}] if text else []) + parts
        if message.role == "assistant":
            self._ids.next_answer()
        if calls:
            row["tool_calls"] = [self._call(call) for call in calls]
        self.add(row)

    def add(self, row: dict[str, Any]) -> None:
        """Add a row. If the provider takes no two turns of one role in a row, they become one."""
        last_row: dict[str, Any] = self._rows[-1] if self._rows else {"role": None}
        is_one = not self._rules.takes_equal_roles and row["role"] in {"user", "assistant"}
        if not is_one or last_row["role"] != row["role"]:
            self._rows.append(row)
            return
        last_row["content"] = _join_contents(last_row["content"], row["content"])
        if calls := [*last_row.get("tool_calls", ()), *row.get("tool_calls", ())]:
            last_row["tool_calls"] = calls

    def finish(self) -> list[dict[str, Any]]:
        """Return all rows. The first turn is of the user, if the provider wants that."""
        start = next((n for n, row in enumerate(self._rows) if row["role"] != "system"), None)
        if not self._rules.takes_first_answer:
            if start is None:
                self._rows.append({"role": "user", "content": EMPTY_MESSAGE})
            elif self._rows[start]["role"] == "assistant":
                self._rows.insert(start, {"role": "user", "content": EARLIER})
        last_row = self._rows[-1] if self._rows else {}
        if not self._rules.takes_blank_text and last_row.get("role") == "assistant":
            last_row["content"] = last_row["content"] and last_row["content"].rstrip()
        return self._rows

    def _call(self, call: Mapping[str, Any]) -> dict[str, Any]:
        name, id_ = str(call.get("name") or ""), str(call.get("id") or "")
        arguments = json.dumps(call.get("arguments") or {}, ensure_ascii=False)
        function = {"name": self._names[name], "arguments": arguments}
        return {"id": self._ids.of_call(id_), "type": "function", "function": function}

    def _result(self, block: ContentBlock) -> dict[str, Any]:
        text, id_ = block.text or "", str((block.model_extra or {}).get("id") or "")
        if not self._rules.takes_blank_result and not text.strip():
            text = NO_OUTPUT
        return {"role": "tool", "tool_call_id": self._ids.of_result(id_), "content": text}


def _join_contents(first: Any, second: Any) -> Any:
    """Return the content of two turns as one: a text, or parts if one of them has parts."""
    if not first or not second:
        return first or second
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    parts: list[Any] = []
    for content in (first, second):
        parts += [{"type": "text", "text": content}] if isinstance(content, str) else content
    return parts


def _called_tools(messages: Iterable[ChatMessage]) -> list[str]:
    return [
        str(call.get("name") or "")
        for message in messages
        if message.role == "assistant"
        for call in _blocks(message, "tool_call")
    ]


def _blocks(message: ChatMessage, kind: str) -> list[Mapping[str, Any]]:
    return [block.model_extra or {} for block in message.content if block.type == kind]
