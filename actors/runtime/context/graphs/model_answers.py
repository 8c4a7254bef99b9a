"""The answers of models within an effect of a graph: shown while they are said, and limited by the budget."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Final

from actors.kernel.agent.llm import GenerationOptions, LLMClient, LLMResponse
from actors.kernel.agent.message import ChatMessage
from actors.kernel.json import JsonValue
from actors.kernel.runtime.effects import EffectCall
from actors.runtime.context.model_calls import Live, capped, completed


@dataclass(frozen=True, slots=True)
class ModelAnswers:
    """Asks models for the effect that executes.

    Attributes:
        live: Shows the pieces of answers.
        call: The effect.
        told: Shown with each piece.
    """

    live: Live
    call: EffectCall
    told: JsonValue

    def limited(self, options: GenerationOptions) -> GenerationOptions:
        """Return the options, the answer limited to what the tree's budget leaves."""
        return capped(self.call, options) or options

    async def ask(
        self, model: LLMClient, messages: Sequence[ChatMessage], options: GenerationOptions
    ) -> LLMResponse:
        """Return a model's answer; its pieces are live events of the run."""
        on_piece, guards = partial(self.live.piece, self.call, self.told), self.live.guards
        try:
            return await completed(model, messages, self.limited(options), on_piece, guards=guards)
        finally:
            self.live.end(self.call)


asking: Final[ContextVar[ModelAnswers | None]] = ContextVar("callboard_asking", default=None)
"""The answers of the effect whose handler is called here; None: it is no call of a model by a run on a host."""
