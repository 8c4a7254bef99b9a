"""Calls of tools and answers that are in no session yet: what is said of them if the run ends now."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from actors.context.repair import NOT_EXECUTED, UNKNOWN
from actors.context.turns import result_ids
from actors.kernel.agent.message import ChatMessage, ContentBlock
from actors.kernel.agent.models import STOPPED, ReasoningDelta, TextDelta
from actors.kernel.agent.tools import ToolCall, ToolResult


@dataclass(slots=True)
class _OpenCall:
    session: str
    name: str
    result: ChatMessage | None = None


@dataclass(slots=True)
class OpenCalls:
    """The calls of a run's chats that have no result in their session. A replay notes them again.

    Also what its user was shown of answers that have no end.
    """

    _calls: dict[str, _OpenCall] = field(default_factory=dict)
    _texts: dict[str, list[str]] = field(default_factory=dict)
    """Pieces that were shown of answers without a recorded end, by position."""

    def show(self, position: str, piece: TextDelta | ReasoningDelta, n: int) -> None:
        """Note a piece of an answer, its number `n`. Piece 0 voids those before it."""
        if n == 0:
            self._texts[position] = []
        if isinstance(piece, TextDelta):
            self._texts.setdefault(position, []).append(piece.text)

    def end_answer(self, position: str) -> None:
        """Forget what was shown of an answer: its end is recorded."""
        self._texts.pop(position, None)

    def answers(self) -> list[ChatMessage]:
        """Return what was shown of answers without a recorded end, each with a mark."""
        texts = {position: "".join(pieces) for position, pieces in self._texts.items()}
        return [_stopped(position, text) for position, text in texts.items() if text.strip()]

    def add(self, session: str, calls: Iterable[ToolCall]) -> None:
        """Note the calls of an answer."""
        for call in calls:
            self._calls[call.id] = _OpenCall(session, call.name)

    def end(self, call_id: str, result: ChatMessage) -> None:
        """Note the result of a call."""
        if (call := self._calls.get(call_id)) is not None:
            call.result = result

    def close(self, turns: Sequence[str | ChatMessage]) -> None:
        """Forget the calls whose results are among turns that a session has now."""
        for turn in turns:
            if isinstance(turn, ChatMessage):
                for call_id in result_ids(turn):
                    self._calls.pop(call_id, None)

    def results(self, begun: Collection[str]) -> list[tuple[str, ChatMessage]]:
        """Return what is known of the open calls, each as a turn with its session.

        Args:
            begun: Ids of calls that may have acted.
        """
        return [
            (call.session, call.result or _ended(id_, call.name, has_begun=id_ in begun))
            for id_, call in self._calls.items()
        ]


def _stopped(position: str, text: str) -> ChatMessage:
    mark = ContentBlock.model_validate({"type": STOPPED, "position": position})
    return ChatMessage(role="assistant", content=[ContentBlock(type="text", text=text), mark])


def _ended(call_id: str, name: str, *, has_begun: bool) -> ChatMessage:
    text = UNKNOWN if has_begun else NOT_EXECUTED
    return ToolResult(id=call_id, name=name, text=text, is_error=True).message()
