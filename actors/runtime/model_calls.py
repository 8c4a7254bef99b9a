"""One call of a language model: stream it, pass deltas on, return the whole answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors.errors import ContractError
from actors.kernel.agent.llm import Completion, ReasoningDelta
from actors.kernel.agent.message import ChatMessage
from actors.kernel.runtime.commit import BudgetDelta
from actors.kernel.runtime.live import Delta

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from actors.kernel.agent.llm import GenerationOptions, LLMClient, StreamEvent
    from actors.kernel.agent.supervision import Supervision
    from actors.runtime.journaling import EffectCall
    from actors.runtime.recorder import Recorder


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


class Pieces:
    """Hands the pieces of one call's answer to who looks, numbered.

    Attributes:
        call: Has the position by the time that the model is asked.
    """

    def __init__(self, recorder: Recorder, tell: Callable[[Delta], None]) -> None:
        self._run, self._tell = recorder, tell
        self._n = 0
        self.call: EffectCall | None = None

    def __call__(self, event: StreamEvent) -> None:
        """Hand on one piece."""
        if isinstance(event, Completion) or self.call is None:
            return
        run, is_reasoning = self._run, isinstance(event, ReasoningDelta)
        delta = Delta(
            run_id=run.run_id, agent_id=run.agent_id, attempt=run.history.life,
            position=self.call.position, n=self._n,
            kind="reasoning.delta" if is_reasoning else "text.delta", text=event.text,
        )  # fmt: skip
        self._n += 1
        self._tell(delta)


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
