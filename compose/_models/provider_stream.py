"""A request to a provider through pydantic-ai, and its answer.

An answer is complete if the provider itself has ended it: by a finish reason, or by the line `[DONE]` of
servers that send no reason. Usage and the end of the connection prove nothing: a proxy may close a stream in
the middle of an answer.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import (
    InstructionPart,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    ModelResponsePart,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from actors._context.fitting import ProviderRules, by_sent_name, fitted_name, names_for, rules_of
from actors._context.repair import repaired
from actors._context.tokens import TokenCounter, installed_tokenizer
from actors._kernel.agent.message import ChatMessage, ContentBlock
from actors._kernel.agent.models import (
    GenerationOptions,
    LLMResponse,
    ModelRegistry,
    ReasoningDelta,
    TextDelta,
    Usage,
)
from actors._kernel.json_data import clean
from actors.errors import ModelError
from compose._models.clean_text import TextPieces, clean_json
from compose._models.fitting import called_names, fitted_options, fitted_turns, rename_call
from compose._models.messages import (
    TOOLS,
    behind_the_last_answer,
    behind_the_summary,
    blocks_of,
    model_messages,
    takes_points,
)
from compose._models.provider_errors import model_error

__all__ = ["ModelCall", "model_error", "pieces", "response", "warm"]

_TOOL_CHOICES: Final = frozenset(("auto", "none", "required"))
_EVENTS: Final = {
    "AnthropicModel": ("anthropic", "types.beta", "BetaRawMessageStreamEvent"),
    "OpenAIResponsesModel": ("openai", "types.responses", "ResponseStreamEvent"),
}
"""Package, module and name of the type of a provider's events, by the class of its model."""
_MAKE: Final = "_make_sse_decoder"
_DONE: Final = "[DONE]"


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A call of a model: messages, options, and settings that are not among the options."""

    messages: Sequence[ChatMessage]
    options: GenerationOptions
    settings: Mapping[str, Any]

    def parameters(self, rules: ProviderRules) -> ModelRequestParameters:
        """Return instructions, tools and the answer's schema in pydantic-ai's form."""
        options, parameters = self.options, ModelRequestParameters()
        if options.system_instructions and options.system_instructions.strip():
            parameters.instruction_parts = [
                InstructionPart(content=clean(options.system_instructions))
            ]
        parameters.function_tools = [
            ToolDefinition(
                name=tool.name,
                description=clean(tool.description),
                parameters_json_schema=tool.parameters,
            )
            for tool in options.tools
        ]
        if options.response_format is not None:
            parameters.output_mode = "native"
            name = str(options.response_format.get("title") or "answer")
            parameters.output_object = OutputObjectDefinition(
                json_schema=options.response_format, name=fitted_name(name, rules)
            )
        return parameters

    def model_settings(self) -> ModelSettings:
        """Return the settings of this request. The SDK's retries are off, because `RetryingModel` retries."""
        options, choice = self.options, self.options.tool_choice
        settings: dict[str, Any] = {
            "temperature": options.temperature,
            "max_tokens": options.max_tokens,
            "stop_sequences": list(options.stop) or None,
            "tool_choice": choice if choice is None or choice in _TOOL_CHOICES else [choice],
        }
        option_settings = {name: value for name, value in settings.items() if value is not None}
        return cast(
            "ModelSettings", {**self.settings, **options.extra, **option_settings, "max_retries": 0}
        )


def warm(sdk: Model) -> None:
    """Make what the first answer would make on the event loop: schemas of events and messages, and a tokenizer.

    Some of them take a second.
    """
    installed_tokenizer()
    ModelMessagesTypeAdapter.dump_python([])
    package, module, name = _EVENTS.get(type(sdk).__name__, ("", "", ""))
    if package:
        # Private names of the SDKs: without them the first answer only takes longer.
        with suppress(ImportError, AttributeError, TypeError, ValueError):
            models = importlib.import_module(f"{package}._models")
            events = getattr(importlib.import_module(f"{package}.{module}"), name)
            models.construct_type(value={"type": "none"}, type_=events)


async def pieces(
    sdk: Model, request: ModelCall, on_sign: Callable[[], None] | None = None
) -> AsyncIterator[TextDelta | ReasoningDelta | ModelResponse]:
    """Yield text and reasoning as they arrive, then the whole answer after the connection is released.

    `on_sign` is called for each event of the provider.

    Raises:
        Exception: An error of pydantic-ai.
        ModelError: The answer is incomplete, or the provider refuses to answer.
    """
    watch_ends(sdk)
    sdk_request = _request(sdk, request)
    text_pieces, reasoning_pieces = TextPieces(), TextPieces()
    async with model_request_stream(
        sdk,
        sdk_request.messages,
        model_settings=sdk_request.settings,
        model_request_parameters=sdk_request.parameters,
        instrument=False,
    ) as stream:
        async for event in stream:
            if on_sign is not None:
                on_sign()
            text_piece, reasoning_piece = _pieces_of_event(event)
            if text_piece and (clean_piece := text_pieces.add(text_piece)):
                yield TextDelta(text=clean_piece)
            if reasoning_piece and (clean_piece := reasoning_pieces.add(reasoning_piece)):
                yield ReasoningDelta(text=clean_piece)
        answer = sdk_request.with_our_names(_complete_answer(stream, sdk))
    if clean_piece := text_pieces.rest():
        yield TextDelta(text=clean_piece)
    yield answer


@dataclass(frozen=True, slots=True)
class _SdkRequest:
    """A request in the SDK's form, as its provider accepts it.

    Attributes:
        names: Our names of tools by those of the provider that differ.
    """

    messages: list[ModelMessage]
    settings: ModelSettings
    parameters: ModelRequestParameters
    names: Mapping[str, str]

    def with_our_names(self, answer: ModelResponse) -> ModelResponse:
        """Return the answer with our names of tools."""
        if not self.names:
            return answer
        parts = [
            rename_call(part, self.names) if isinstance(part, ToolCallPart) else part
            for part in answer.parts
        ]
        return replace(answer, parts=parts)


def _request(sdk: Model, request: ModelCall) -> _SdkRequest:
    """Return the request as the provider accepts it, with cache points if the provider has them."""
    chat = repaired([_clean(message) for message in request.messages])
    has_points = takes_points(sdk.system, chat, request.model_settings())
    if has_points:
        chat = behind_the_summary(chat)
    messages = [_without_foreign_data(message, sdk) for message in model_messages(chat)]
    rules = rules_of(sdk.system)
    tool_names = [tool.name for tool in request.options.tools]
    names = names_for(rules, tool_names, called_names(messages))
    fitted_call = replace(request, options=fitted_options(request.options, names))
    messages, settings = fitted_turns(messages, rules, names), fitted_call.model_settings()
    if has_points:
        messages = behind_the_last_answer(messages)
        settings = cast("ModelSettings", TOOLS | settings)
    return _SdkRequest(messages, settings, fitted_call.parameters(rules), by_sent_name(names))


def _clean(message: ChatMessage) -> ChatMessage:
    """Return the message with text that every provider accepts."""
    content = [block.model_dump() for block in message.content]
    clean_content = clean_json(content)
    # Nearly every message is clean already, and needs no second validation of its blocks.
    if clean_content == content:
        return message
    return message.model_copy(
        update={"content": [ContentBlock.model_validate(block) for block in clean_content]}
    )


def _pieces_of_event(event: object) -> tuple[str, str]:
    """Return the text and the reasoning that an event adds."""
    match event:
        case PartStartEvent(part=TextPart(content=content)):
            return content, ""
        case PartStartEvent(part=ThinkingPart(content=content)):
            return "", content
        case PartDeltaEvent(delta=TextPartDelta(content_delta=content)):
            return content, ""
        case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=content)):
            return "", content or ""
        case _:
            return "", ""


def _complete_answer(stream: StreamedResponse, sdk: Model) -> ModelResponse:
    """Return the answer of a stream that has ended.

    Raises:
        ModelError: The provider refused to answer, or its answer has no end.
    """
    answer = stream.get()
    if answer.finish_reason == "content_filter":
        reason = (answer.provider_details or {}).get(
            "refusal"
        ) or "the provider's filter stopped it"
        raise ModelError("refused", problem=clean(f"{sdk.model_name}: {reason}"))
    if answer.state in {"incomplete", "interrupted"} or not has_end(stream, answer):
        problem = f"{sdk.model_name}: the stream ended before the answer was complete"
        raise ModelError("connection", problem=problem)
    if answer.finish_reason == "error":
        raise ModelError(
            "overloaded", problem=f"{sdk.model_name}: the provider broke the answer off"
        )
    return answer


def _without_foreign_data(message: ModelMessage, sdk: Model) -> ModelMessage:
    """Return the message without data of other providers.

    Reasoning of another provider, and reasoning without proof of its origin, would otherwise be sent as text.
    """
    if not isinstance(message, ModelResponse):
        return message
    sent_parts = [part for part in message.parts if _is_for(part, message, sdk)]
    return replace(message, parts=sent_parts)


def _is_for(part: ModelResponsePart, message: ModelResponse, sdk: Model) -> bool:
    if isinstance(part, ThinkingPart):
        if part.signature:
            return sdk.accepts_stateless_artifacts(message, part)
        is_own = part.provider_name is not None and part.provider_name == sdk.system
        return is_own and bool(part.id or part.provider_details)
    return isinstance(part, TextPart | ToolCallPart) or part.provider_name in {None, sdk.system}


def response(
    answer: ModelResponse, request: ModelCall, name: str, registry: ModelRegistry | None
) -> LLMResponse:
    """Return the answer in the kernel's form, with its cost. Missing usage is estimated, without a cost."""
    content = blocks_of(answer)
    usage = _usage(answer)
    if usage.total == 0:
        message = ChatMessage(role="assistant", content=content)
        usage = Usage(
            input=TokenCounter().total(request.messages), output=TokenCounter().total([message])
        )
    else:
        cost = cost_usd(answer, usage, name, registry)
        usage = usage.model_copy(update={"cost_usd": cost})
    reason = (answer.provider_details or {}).get("finish_reason") or answer.finish_reason or "stop"
    response = LLMResponse(
        content=content, usage=usage, model=answer.model_name or name, stop_reason=str(reason)
    )
    # A provider may have its own word for the limit, which `reached_limit` does not know.
    if answer.finish_reason == "length" and not response.reached_limit:
        return response.model_copy(update={"stop_reason": "length"})
    return response


def _usage(answer: ModelResponse) -> Usage:
    usage = answer.usage
    return Usage(
        input=max(0, usage.input_tokens),
        cached=max(0, usage.cache_read_tokens),
        cache_written=max(0, usage.cache_write_tokens),
        output=max(0, usage.output_tokens),
        reasoning=max(0, usage.output_reasoning_tokens),
    )


def cost_usd(
    response: ModelResponse, usage: Usage, name: str, registry: ModelRegistry | None
) -> float | None:
    """Return the cost of an answer in US dollars; None if it is unknown.

    The provider's own figure is used first, then the registry's price, then the price list's.
    """
    if response.usage.cost is not None:
        return float(response.usage.cost)
    if registry is not None and (registered_cost := registry.cost_usd(name, usage)) is not None:
        return registered_cost
    try:
        return max(0.0, float(response.cost().total_price))
    # The price list does not know the model, or the response has no name of a model or no whole usage.
    except (AssertionError, LookupError, ValueError):
        return None


class _WatchedDecoder:
    """The decoder of an OpenAI client's stream, which also notes the line `[DONE]`."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder
        self.is_done = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)

    async def aiter_bytes(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        """Yield the decoder's events."""
        async for event in self._decoder.aiter_bytes(pieces):
            self.is_done = self.is_done or str(event.data).startswith(_DONE)
            yield event


def watch_ends(sdk: Model) -> None:
    """Let the streams of an OpenAI client note their last lines. Other SDKs tell the finish reason."""
    _watch(getattr(sdk, "client", None))


def _watch(client: Any) -> Any:
    """Return the client, whose streams, and those of its copies with other options, are watched."""
    make: Any = getattr(client, _MAKE, None)
    copy: Any = getattr(client, "with_options", None)
    if make is not None and not hasattr(make, "is_watched"):

        def watched() -> _WatchedDecoder:
            return _WatchedDecoder(make())

        watched.is_watched = True  # type: ignore[attr-defined]
        setattr(client, _MAKE, watched)
        # pydantic-ai asks a copy of the client, if a request has its own number of retries.
        client.with_options = lambda **options: _watch(copy(**options))
    return client


def has_end(stream: StreamedResponse, answer: ModelResponse) -> bool:
    """Return whether the provider itself has ended the answer."""
    if (answer.provider_details or {}).get("finish_reason"):
        return True
    # For a stream without a reason, the SDK's class for OpenAI's chat makes one up.
    if getattr(stream, "_has_finish_reason", None) is None:
        return answer.finish_reason is not None
    source = getattr(getattr(stream, "_response", None), "source", None)
    return bool(getattr(getattr(source, "_decoder", None), "is_done", False))
