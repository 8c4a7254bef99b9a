"""Embedders of providers, through pydantic-ai."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from actors.errors import ContractError, ModelError
from actors.runtime.loop.tasks import in_thread
from compose.models.embedders.texts import check_embeddable
from compose.models.provider_model import inferred

if TYPE_CHECKING:
    from pydantic_ai.embeddings import EmbeddingModel, EmbeddingSettings
    from pydantic_ai.providers import Provider

BATCH: Final = 64
"""Texts per request, which every provider accepts."""
LIMIT_S: Final = 60.0
"""Seconds that one request takes at most."""
MAX_BYTES: Final = 64 * 1024
"""Maximum number of bytes of one text. Each provider also has its own, often lower, limit in tokens."""


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
    provider, colon, rest = name.partition(":")
    if not (provider and colon and rest):
        msg = f"embedder {name!r}: give provider:model, such as 'openai:text-embedding-3-small'"
        raise ContractError(msg)
    if find_spec("pydantic_ai") is None:
        msg = f"embedder {name!r} needs an extra: pip install 'callboard[models]'"
        raise ContractError(msg)
    given = {"api_key": api_key, "base_url": base_url}
    login = {key: value for key, value in given.items() if value is not None}
    return ProviderEmbedder(name, login, settings or {})


class ProviderEmbedder:
    """A `QueryEmbeddingClient` of a provider. A request has up to 64 texts and no retries. See `embedder`."""

    def __init__(self, name: str, login: Mapping[str, str], settings: Mapping[str, Any]) -> None:
        self.model, self._login = name, dict(login)
        self._settings = cast("EmbeddingSettings", dict(settings))
        self._made: tuple[asyncio.AbstractEventLoop, _Opened] | None = None

    async def embed(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        """Return vectors of texts to search in. Cancelling it closes the connection to the provider.

        Raises:
            ModelError: The provider gives no answer.
            ContractError: A text has more than 64 KiB, NUL or an unpaired surrogate; or there is no such
                provider.
        """
        return await self._embedded(texts, "document")

    async def embed_queries(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        """Return vectors of questions. See `embed`."""
        return await self._embedded(texts, "query")

    async def _embedded(
        self, texts: Sequence[str], kind: Literal["query", "document"]
    ) -> list[tuple[float, ...]]:
        if self._made is None:
            await in_thread(_import_sdk)
        from compose.models.provider_errors import model_error  # noqa: PLC0415 - imports the SDK

        check_embeddable(texts, limit_bytes=MAX_BYTES)
        found: list[tuple[float, ...]] = []
        try:
            sdk = await self._sdk()
            for start in range(0, len(texts), BATCH):
                given = list(texts[start : start + BATCH])
                async with asyncio.timeout(LIMIT_S):
                    answer = await sdk.embed(given, input_type=kind, settings=self._settings)
                found += [tuple(vector) for vector in answer.embeddings]
        except (ContractError, ModelError):
            raise
        except Exception as exc:
            error = model_error(exc, self.model)
            if error is None:
                raise
            raise error from exc
        return found

    async def aclose(self) -> None:
        """Close the connections to the provider. The next call opens new ones."""
        if self._made is not None:
            opened, self._made = self._made[1], None
            async with opened.provider:
                pass

    async def _sdk(self) -> EmbeddingModel:
        """Return the SDK's model for the running event loop, because its connections belong to one loop."""
        loop = asyncio.get_running_loop()
        if self._made is None or self._made[0] is not loop:
            # In a thread: the first client of an SDK takes about a second of imports.
            opened = await in_thread(_opened, self.model, self._login)
            if self._made is None or self._made[0] is not loop:  # another call may have been faster
                self._made = (loop, opened)
        return self._made[1].model


def _import_sdk() -> None:
    importlib.import_module("compose.models.provider_errors")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    model: EmbeddingModel
    provider: Provider[Any]


def _opened(name: str, login: Mapping[str, str]) -> _Opened:
    """Return the SDK's model. The retries of its client are switched off, if the client has that setting."""
    from pydantic_ai.embeddings import infer_embedding_model  # noqa: PLC0415 - imports the SDK

    found: list[Provider[Any]] = []

    def infer(open_provider: Callable[[str], Any]) -> EmbeddingModel:
        def once(kind: str) -> Any:
            found.append(open_provider(kind))
            if hasattr(client := found[0].client, "max_retries"):
                client.max_retries = 0
            return found[0]

        return infer_embedding_model(name, provider_factory=once)

    model = inferred(f"embedder {name!r}", login, infer)
    return _Opened(model=model, provider=found[0])
