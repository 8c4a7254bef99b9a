"""One call of a language model: stream it, pass deltas on, return the whole answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors.errors import ContractError
from actors.kernel.agent.llm import Completion
from actors.kernel.agent.message import ChatMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from actors.kernel.agent.llm import GenerationOptions, LLMClient, StreamEvent


def chat_messages(messages: Sequence[ChatMessage] | str) -> list[ChatMessage]:
    """Return a conversation; a plain text is one user turn."""
    if isinstance(messages, str):
        return [ChatMessage.of("user", messages)]
    return list(messages)


async def complete(
    model: LLMClient,
    messages: Sequence[ChatMessage],
    options: GenerationOptions | None,
    on_delta: Callable[[StreamEvent], None],
) -> Any:
    """Return the model's answer as JSON data.

    Raises:
        ContractError: The stream ended without a `Completion`.
    """
    async for event in model.generate_stream(messages, options=options):
        if isinstance(event, Completion):
            return event.response.model_dump(mode="json")
        on_delta(event)
    msg = f"model {model.model!r} ended its stream without a Completion"
    raise ContractError(msg)
