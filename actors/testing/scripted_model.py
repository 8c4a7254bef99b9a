"""A model that answers from a script."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from actors.errors import ContractError, Facts
from actors.kernel.agent.message import ChatMessage
from actors.kernel.agent.models import GenerationOptions, LLMResponse, StreamEvent
from actors.testing.function_model import FunctionModel
from actors.testing.model_reply import Asked, Line


class ScriptEndedError(Facts, ContractError):
    """A scripted model was asked more often than its script has answers."""

    text = (
        "model {model!r} was asked for answer {call}, and its script has {lines}: add a line, or give "
        "`otherwise`, the answer to all further requests. It was asked: {asked!r}"
    )
    model: str
    call: int
    lines: int
    asked: str


class ScriptedModel:
    """A model that gives the answers of a script, one a request, in order. See `LLMClient`.

    Answers are streamed in pieces; usage is estimated unless a `ModelReply` names it.

    Args:
        script: Texts, tool calls, whole responses, errors to raise, or `ModelReply` values for all else.
        otherwise: The answer to every request beyond the script; None: such a request is a `ScriptEndedError`.
        model: The model's name.
        strict: Refuse what all providers refuse, with their error, see `check_request`. A refused request uses
            up a line of the script.
    """

    def __init__(
        self,
        *script: Line,
        otherwise: Line | None = None,
        model: str = "scripted",
        strict: bool = True,
    ) -> None:
        self._script, self._otherwise = script, otherwise
        self._inner = FunctionModel(self._next, model=model, strict=strict)

    @property
    def model(self) -> str:
        """See `LLMClient.model`."""
        return self._inner.model

    @property
    def asked(self) -> list[Asked]:
        """Each request so far, in order; also those that failed."""
        return self._inner.asked

    @property
    def calls(self) -> int:
        """The number of requests so far."""
        return self._inner.calls

    async def generate(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> LLMResponse:
        """See `LLMClient.generate`."""
        return await self._inner.generate(messages, options=options)

    def generate_stream(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """See `LLMClient.generate_stream`."""
        return self._inner.generate_stream(messages, options=options)

    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """Return the characters of the messages divided by 3."""
        return await self._inner.count_tokens(messages)

    def _next(self, messages: Sequence[ChatMessage], options: GenerationOptions) -> Line:
        del messages, options
        if self.calls <= len(self._script):
            return self._script[self.calls - 1]
        if self._otherwise is None:
            last = self.asked[-1].text[:200]
            raise ScriptEndedError(self.model, self.calls, len(self._script), last)
        return self._otherwise
