"""Guards: checks of what goes into a model and comes out of it, and of calls of tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from actors.errors import ContractError, MiddlewareTermination
from actors.kernel.agent.message import ChatMessage

GuardStage: TypeAlias = Literal["input", "output", "tool_call", "tool_result"]


@dataclass(frozen=True, slots=True)
class Allow:
    """Verdict: nothing is wrong."""


@dataclass(frozen=True, slots=True)
class Replace:
    """The guard replaces the messages that it checked.

    For ``output``, ``tool_call`` and ``tool_result`` it is exactly one message.
    """

    messages: Sequence[ChatMessage]


@dataclass(frozen=True, slots=True)
class Block:
    """Verdict: it must not go on. The run gets `reason`; if it is about a tool's call, the model does."""

    reason: str


GuardVerdict: TypeAlias = Allow | Replace | Block


@runtime_checkable
class Guard(Protocol):
    """A check. An agent's optional attribute `guards` is a list of them, asked in order.

    A guard is asked inside the effect that it is about, so its verdict is recorded with that effect's
    result, and a replay does not ask again. It may ask a model by `actors.context.ask`.
    """

    async def check(self, stage: GuardStage, messages: Sequence[ChatMessage]) -> GuardVerdict:
        """Return what is to become of the messages.

        Args:
            stage: ``input``: the turns that are new in a conversation, or the messages of `ctx.llm`, before the
                model is asked. ``output``: its answer. ``tool_call``: a message with one `tool_call` block.
                ``tool_result``: a message with one `tool_result`.
            messages: See `stage`. They are copies: only `Replace` changes anything.
        """


class InputBlockedError(MiddlewareTermination):
    """A guard blocked new turns of a conversation. They are in no later window of it."""


async def checked(
    guards: Sequence[Guard], stage: GuardStage, messages: Sequence[ChatMessage]
) -> list[ChatMessage]:
    """Return the messages as the guards let them pass, one guard after the other.

    Raises:
        InputBlockedError: A guard blocked an input.
        MiddlewareTermination: A guard blocked something else.
        ContractError: A guard returned no verdict, or not one message where there has to be one.
    """
    current = list(messages)
    for guard in guards:
        verdict = await guard.check(stage, [message.copied() for message in current])
        if isinstance(verdict, Block):
            error = InputBlockedError if stage == "input" else MiddlewareTermination
            raise error(f"guard {_name(guard)} blocked {stage}: {verdict.reason}")
        if isinstance(verdict, Replace):
            current = [message.copied() for message in verdict.messages]
        elif not isinstance(verdict, Allow):
            msg = (
                f"guard {_name(guard)} returned {verdict!r}: return Allow(), Replace(…) or Block(…)"
            )
            raise ContractError(msg)
        if stage != "input" and len(current) != 1:
            msg = f"guard {_name(guard)} replaced {stage} by {len(current)} messages: it is one"
            raise ContractError(msg)
    return current


def _name(guard: Guard) -> str:
    return type(guard).__name__
