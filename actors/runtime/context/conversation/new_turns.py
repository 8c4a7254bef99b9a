"""The turns that a call of a model adds to a session, and those that stay there if the call fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from actors.context.compaction.steps import SHORTEST_TOKENS
from actors.context.errors import WindowTooSmallError
from actors.context.tokens import TokenCounter
from actors.context.turns import NEW, PINNED, REFUSED, id_of, with_content
from actors.errors import ModelError, ModelErrorKind
from actors.kernel.agent.hooks import InputBlockedError
from actors.kernel.agent.message import ChatMessage, ContentBlock
from actors.kernel.agent.tools import ToolResult
from actors.kernel.agent.transcript import TOKENS, check_turn, turn_id
from actors.kernel.json import JsonValue
from actors.kernel.runtime.effects import EffectCall
from actors.runtime.context.call import Payload
from actors.runtime.replay.failures import recorded_error

REPLACED: Final = "replaced"
"""The key of a receipt under which the turns are that guards put in place of the author's."""
TOO_LONG: Final[ModelErrorKind] = "context_too_long"
_OF_THE_REQUEST: Final[frozenset[ModelErrorKind]] = frozenset(("refused", "invalid"))
"""Kinds of errors that the same turns would cause again, in every later window."""


@dataclass(frozen=True)
class NewTurns:
    """The turns that a call adds. They are counted once, and not on a replay.

    Attributes:
        turns: The turns, in order.
        counter: The counter of their tokens.
        is_replaced: True if guards put them in place of the author's.
    """

    turns: list[ChatMessage]
    counter: TokenCounter
    is_replaced: bool = False

    @cached_property
    def sizes(self) -> list[int]:
        """Their tokens."""
        return [self.counter.count(turn) for turn in self.turns]

    @property
    def fixed_tokens(self) -> int:
        """Their tokens if each result of a tool is as short as it can be made."""
        return sum(
            min(size, SHORTEST_TOKENS) if turn.role == "tool" else size
            for turn, size in zip(self.turns, self.sizes, strict=True)
        )

    def marked(self, ids: Sequence[str]) -> list[ChatMessage]:
        """Return them as strategies are given them: no strategy drops one."""
        return [
            with_id(turn, id_, tokens=size, is_new=True)
            for turn, id_, size in zip(self.turns, ids, self.sizes, strict=False)
        ]


def ids_of(call: EffectCall, run_id: str, count: int) -> list[str]:
    """Return the ids of the turns that a call adds: made of its position, and of its request."""
    return [turn_id(run_id, f"{call.position} {call.digest}", n) for n in range(count)]


def with_id(
    message: ChatMessage, turn: str, *, tokens: int | None = None, is_new: bool = False
) -> ChatMessage:
    """Return a message marked as the turn with this id, and of this size."""
    marks = {"turn": turn} | ({PINNED: NEW} if is_new else {})
    if tokens is not None:
        marks[TOKENS] = str(tokens)
    return message.with_metadata(message.metadata | marks)


def own_turns(new: Sequence[str | ChatMessage]) -> list[ChatMessage]:
    """Return turns that may be kept: a plain text is the user's, a message of the author is copied.

    Raises:
        MessageTooLargeError: A turn has more than 32 MiB as JSON.
    """
    turns = [ChatMessage.of("user", one) if isinstance(one, str) else one.copied() for one in new]
    for turn in turns:
        check_turn(turn)
    return turns


def asked_turns(turns: Sequence[ChatMessage], payload: Payload) -> list[ChatMessage]:
    """Return the turns that the model was asked with: those of the author, or of a guard in their place.

    Args:
        turns: The author's.
        payload: The payload of the call's result.
    """
    receipt = payload.get("receipt")
    replaced = receipt.get(REPLACED) if isinstance(receipt, dict) else None
    if not isinstance(replaced, list):
        return [*turns]
    return [ChatMessage.model_validate(turn) for turn in replaced]


def stored_turns(turns: Sequence[ChatMessage], payload: Payload) -> list[ChatMessage]:
    """Return the new turns that become turns of the session with a call's result.

    A turn because of which the call failed is in no later window, because these would fail in the same way: it
    is marked, or left out if it is too long. A result of a tool stays, so that the model knows of the call. Its
    content stays unless it may be the cause and no strategy can shorten it.

    Args:
        turns: The author's.
        payload: The payload of the call's result.
    """
    asked = asked_turns(turns, payload)
    if payload.get("status") != "error":
        return asked
    error = recorded_error(payload)
    kind = error.kind if isinstance(error, ModelError) else None
    if isinstance(error, WindowTooSmallError) or kind == TOO_LONG:
        return [turn for turn in asked if turn.role == "tool"]
    if isinstance(error, InputBlockedError):
        return [_refused(turn, "guard") for turn in turns]
    if kind in _OF_THE_REQUEST:
        return [_refused(turn, str(kind)) for turn in asked]
    # A guard may decide otherwise when the call is repeated. The answer then has the id of none of these turns.
    return asked if len(asked) == len(turns) else []


def _refused(turn: ChatMessage, by: str) -> ChatMessage:
    """Return the turn with a mark. Results of tools have no mark, and no content any more."""
    if turn.role != "tool":
        return turn.with_metadata(turn.metadata | {REFUSED: by})
    results = [block for block in turn.content if block.type == "tool_result"]
    return with_content(turn, [*map(_without_text, results)])


def _without_text(block: ContentBlock) -> ContentBlock:
    name = str((block.model_extra or {}).get("name") or "")
    text = "the tool was called; its result is withheld, because the request with it was refused"
    return ToolResult(id=id_of(block), name=name, text=text, is_error=True).block()


def as_data(turns: Sequence[ChatMessage]) -> list[JsonValue]:
    """Return turns as JSON data."""
    return [turn.model_dump(mode="json") for turn in turns]
