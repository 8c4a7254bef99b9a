"""One call of a language model: stream it, pass deltas on, return the whole answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors.errors import ContractError
from actors.kernel.agent.llm import Completion
from actors.kernel.agent.message import ChatMessage
from actors.kernel.runtime.commit import BudgetDelta

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from actors.kernel.agent.llm import GenerationOptions, LLMClient, StreamEvent
    from actors.kernel.agent.supervision import Supervision


def chat_messages(messages: Sequence[ChatMessage] | str) -> list[ChatMessage]:
    """Return a conversation; a plain text is one user turn."""
    if isinstance(messages, str):
        return [ChatMessage.of("user", messages)]
    return list(messages)


def has_limits(supervision: Supervision | None) -> bool:
    """Return whether model calls are counted against a budget of the run's tree."""
    if supervision is None:
        return False
    budget = supervision.execution_budget
    limits = (budget.max_tokens, budget.max_cost_usd, budget.max_turns)
    return any(limit is not None for limit in limits)


def spent(value: object) -> BudgetDelta:
    """Return what a model's answer cost, as its usage tells it."""
    usage = value.get("usage") if isinstance(value, dict) else None
    if not isinstance(usage, dict):
        return BudgetDelta()
    tokens = _number(usage.get("input")) + _number(usage.get("output"))
    return BudgetDelta(tokens=int(tokens), cost_usd=_number(usage.get("cost_usd")))


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


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
