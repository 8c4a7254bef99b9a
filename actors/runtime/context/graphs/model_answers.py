"""The answers of models within an effect of a graph: shown while they are said, and counted by the budget."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from actors.kernel.agent.message import ChatMessage
from actors.kernel.agent.models import GenerationOptions, LLMClient, LLMResponse
from actors.kernel.json import JsonValue, number_of
from actors.kernel.runtime.commit import BudgetDelta
from actors.kernel.runtime.effects import EffectCall
from actors.runtime.context.call import Payload
from actors.runtime.context.model_calls import Live, capped, completed


@dataclass(frozen=True, slots=True)
class ModelAnswers:
    """Asks models for the effect that executes.

    Attributes:
        live: Shows the pieces of answers.
        call: The effect.
        told: JSON data that each piece has, too.
    """

    live: Live
    call: EffectCall
    told: JsonValue

    def limited(self, options: GenerationOptions) -> GenerationOptions:
        """Return the options, the answer limited to what the tree's budget leaves."""
        limited = capped(self.call, options) or options
        self.call.cap = None  # the entry of such an effect has no place for it
        return limited

    async def ask(
        self, model: LLMClient, messages: Sequence[ChatMessage], options: GenerationOptions
    ) -> LLMResponse:
        """Return a model's answer; its pieces are live events of the run."""
        on_piece, guards = partial(self.live.piece, self.call, self.told), self.live.guards
        try:
            return await completed(model, messages, self.limited(options), on_piece, guards=guards)
        finally:
            self.live.end(self.call)


def spent_on(payload: Payload) -> BudgetDelta:
    """Return the cost of an effect of a graph, from the usage in its recorded result."""
    found: Any = payload.get("value")
    for name in ("result", "usage"):
        found = found.get(name) if isinstance(found, dict) else None
    if not isinstance(found, dict):
        return BudgetDelta()
    used = number_of(found.get("input_tokens")) + number_of(found.get("output_tokens"))
    tokens = used or number_of(found.get("total_tokens"))
    return BudgetDelta(tokens=int(tokens), cost_usd=number_of(found.get("cost_usd")))


asking: Final[ContextVar[ModelAnswers | None]] = ContextVar("callboard_asking", default=None)
"""The model calls of the LLM_CALL effect that executes here. None: no run on a host executes one."""
