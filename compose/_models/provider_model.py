"""A client of one model of a provider, based on pydantic-ai, and the models that its price list knows."""

from __future__ import annotations

import asyncio
import importlib
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar

from actors._context.tokens import TokenCounter
from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.models import (
    Completion,
    GenerationOptions,
    LLMResponse,
    ModelFacts,
    ModelRegistry,
    ReasoningDelta,
    StreamEvent,
    TextDelta,
    collected,
)
from actors._runtime.loop.tasks import in_thread
from actors.errors import ContractError, ModelError

if TYPE_CHECKING:
    from pydantic_ai.models import Model

SdkObject = TypeVar("SdkObject")

_KEY: Final = re.compile(r"\b[A-Z][A-Z0-9_]*_(?:API_)?KEY\b")
"""The environment variable that an SDK's error names."""


class ProviderModel:
    """A client of one model of a provider. Each call is one request, without retries. See `LLMClient`.

    `prepare`, or the first call, imports the SDK and creates its client in a thread, because that takes about a
    second. If `context_window` or `has_response_format` is read before, that is done in the reading thread.

    Args:
        name: The name that logs record, ``provider:model``.
        make: Creates the SDK's model. Called once for each event loop.
        settings: Further settings of each request, with pydantic-ai's names. `GenerationOptions` take
            precedence.
        registry: Context sizes and prices that take precedence over those of the SDK.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Model],
        *,
        settings: Mapping[str, Any] | None = None,
        registry: ModelRegistry | None = None,
    ) -> None:
        self._name, self._make = name, make
        self._settings, self._registry = dict(settings or {}), registry
        self._sdk_of_loop: tuple[asyncio.AbstractEventLoop | None, Model] | None = None

    @classmethod
    def of_name(
        cls,
        name: str,
        *,
        login: Mapping[str, str],
        settings: Mapping[str, Any] | None = None,
        registry: ModelRegistry | None = None,
    ) -> Self:
        """Return the client of a model that pydantic-ai knows by this name."""

        def make() -> Model:
            from pydantic_ai.models import infer_model  # noqa: PLC0415 - imports the SDK

            return open_by_name(f"model {name!r}", login, partial(infer_model, name))

        return cls(name, make, settings=settings, registry=registry)

    reports_signs: ClassVar[bool] = True
    """True, because `generate_stream` takes `on_sign`."""

    @property
    def model(self) -> str:
        """The name that logs and traces have, ``provider:model``."""
        return self._name

    @property
    def context_window(self) -> int | None:
        """Maximum number of tokens of request and answer together; None if unknown."""
        registered_window = self._registry.context_window(self._name) if self._registry else None
        if registered_window:
            return registered_window
        try:
            return self._sdk().context_window
        except (ModelError, ContractError):  # no key, or no SDK: the call says so
            return None

    @property
    def has_response_format(self) -> bool:
        """True if the provider enforces `GenerationOptions.response_format` itself."""
        return bool(self._sdk().profile.get("supports_json_schema_output", False))

    async def generate(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> LLMResponse:
        """Return one whole answer. Cancelling it closes the connection to the provider.

        Raises:
            ModelError: The provider gives no answer.
        """
        return await collected(self.generate_stream(messages, options=options), model=self.model)

    async def generate_stream(
        self,
        messages: Sequence[ChatMessage],
        *,
        options: GenerationOptions | None = None,
        on_sign: Callable[[], None] | None = None,
    ) -> AsyncIterator[StreamEvent]:
        """Yield the pieces of an answer, then its `Completion`. Cancelling it closes the connection.

        Args:
            messages: The request's messages.
            options: Options of the answer.
            on_sign: Called for each event of the provider, also for those that yield nothing, such as pieces of
                calls of tools.

        Raises:
            ModelError: The provider gives no answer, or an incomplete one.
        """
        await self.prepare()
        from compose._models import provider_stream as stream  # noqa: PLC0415 - imports the SDK

        request = stream.ModelCall(messages, options or GenerationOptions(), self._settings)
        try:
            async for piece in stream.pieces(self._sdk(), request, on_sign):
                if isinstance(piece, TextDelta | ReasoningDelta):
                    yield piece
                else:
                    response = stream.response(piece, request, self._name, self._registry)
                    yield Completion(response=response)
        # The SDKs raise many classes of errors. `model_error` knows those of a provider; all others are
        # raised as they are.
        except Exception as exc:
            error = stream.model_error(exc, self._name)
            if error is None:
                raise
            raise error from exc

    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """Return a local estimate: by `bpe-openai` if installed, else the number of characters divided by 3."""
        return TokenCounter().total(messages)

    async def aclose(self) -> None:
        """Close the connections to the provider. The next call opens new ones."""
        if self._sdk_of_loop is not None:
            sdk, self._sdk_of_loop = self._sdk_of_loop[1], None
            # The end of the block closes the connections; the SDK has no other method for that.
            async with sdk:
                pass

    async def prepare(self) -> None:
        """Import the SDK and create its client in a thread, unless that is done.

        Raises:
            ModelError: The provider has no key.
            ContractError: The provider is unknown, or its SDK is not installed.
        """
        loop = asyncio.get_running_loop()
        if self._sdk_of_loop is None or self._sdk_of_loop[0] not in {loop, None}:
            sdk = await in_thread(self._load)
            # Checked again after the await, because another call may have been faster.
            if self._sdk_of_loop is None or self._sdk_of_loop[0] is not loop:
                self._sdk_of_loop = (loop, sdk)

    def _load(self) -> Model:
        stream = importlib.import_module("compose._models.provider_stream")
        sdk = self._make()
        stream.warm(sdk)
        return sdk

    def _sdk(self) -> Model:
        """Return the SDK's model for the running event loop, because its connections belong to one loop."""
        loop = None
        with suppress(RuntimeError):
            loop = asyncio.get_running_loop()
        if self._sdk_of_loop is None or self._sdk_of_loop[0] not in {loop, None}:
            self._sdk_of_loop = (loop, self._make())
        elif loop is not None:
            self._sdk_of_loop = (loop, self._sdk_of_loop[1])
        return self._sdk_of_loop[1]


def open_by_name(
    what: str, login: Mapping[str, str], infer: Callable[[Callable[[str], Any]], SdkObject]
) -> SdkObject:
    """Return the SDK's object for a name. `infer` is called with a function that opens the provider.

    Raises:
        ModelError: The provider has no key.
        ContractError: The provider is unknown, or its SDK is not installed.
    """
    from pydantic_ai.exceptions import UserError  # noqa: PLC0415 - imports the SDK
    from pydantic_ai.providers import infer_provider, infer_provider_class  # noqa: PLC0415

    def provider(kind: str) -> Any:
        return infer_provider_class(kind)(**login) if login else infer_provider(kind)

    try:
        return infer(provider)
    except UserError as exc:
        if (variable := _KEY.search(str(exc))) is not None:
            remedy = f"no key: set {variable[0]}, or give api_key="
            remedy = f"{remedy}. actors.testing.ScriptedModel needs none"
            raise ModelError("auth", problem=f"{what}: {remedy}") from exc
        msg = f"{what}: {exc}"
        raise ContractError(msg) from exc
    except (ImportError, TypeError, ValueError) as exc:
        remedy = "write a provider before the colon, such as anthropic, openai, google or mistral"
        msg = f"{what} cannot be opened: {exc}; {remedy}"
        raise ContractError(msg) from exc


def known_models() -> ModelRegistry:
    """Return a registry with the context sizes of the price list `genai-prices`, if that is installed.

    It needs no client and no key. It has no prices, because these depend on the size of a request. Responses of
    a client have their cost.
    """
    return ModelRegistry(_facts_of)


def _facts_of(name: str) -> ModelFacts | None:
    try:
        from genai_prices.data_snapshot import get_snapshot  # noqa: PLC0415 - loads the price list
    except ImportError:
        return None
    provider, _, bare = name.rpartition(":")
    try:
        _, price = get_snapshot().find_provider_model(
            bare, provider=None, provider_id=provider or None, provider_api_url=None
        )
    except LookupError:
        return None
    return ModelFacts(context_window=price.context_window)
