"""Repair of views for providers, which accept only tool calls that are followed by exactly one result.

If a crash or a cancellation ends a run between a call and its result, the history has a call without a result.
Providers refuse every later request with such a call.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from actors._context.turns import has_tool_blocks, id_of, with_content
from actors._kernel.agent.message import ChatMessage, ContentBlock
from actors._kernel.agent.tools import ToolResult

NOT_EXECUTED: Final = "not executed: the run ended"
"""The result of a call that had not begun when its run ended."""
UNKNOWN: Final = "unknown: the run ended before this call had a result; it may have been executed"
"""The result of a call that has none in the view."""


def repaired(view: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return the view with exactly one result after each tool call. The history is not changed.

    A call without a result gets `UNKNOWN`, as an error. A result without a call is dropped, and so is a
    second result of a call. A call in a turn that is not the model's is none, and so is a result in an
    answer without its call. A result that other turns
    separate from its call is moved to the call. A valid view is returned as it is. A second repair changes
    nothing.
    """
    if not any(map(has_tool_blocks, view)):
        return [*view]
    matches = _Matches.of(view)
    result: list[ChatMessage] = []
    for index, message in enumerate(view):
        rest = matches.rest_of(index, message)
        if rest is not None:
            result.append(rest)
        result += matches.moved[index]
        for call in matches.open[index]:
            name = str((call.model_extra or {}).get("name") or "")
            unknown_result = ToolResult(id=id_of(call), name=name, text=UNKNOWN, is_error=True)
            result.append(unknown_result.message())
    return result


@dataclass(slots=True)
class _Matches:
    """Calls of a view and their results.

    Attributes:
        open: The calls of each turn that have no result, in order.
        moved: For each turn with calls, the turns with their results.
        homes: For each turn with results, the turn to which each of its blocks belongs: the call's turn, the
            turn itself, or None for a block that is dropped.
    """

    open: defaultdict[int, list[ContentBlock]] = field(default_factory=lambda: defaultdict(list))
    moved: defaultdict[int, list[ChatMessage]] = field(default_factory=lambda: defaultdict(list))
    homes: dict[int, list[int | None]] = field(default_factory=dict)

    @classmethod
    def of(cls, view: Sequence[ChatMessage]) -> _Matches:
        """Return the matches of a view."""
        matches = cls()
        # Calls without a result yet, by id. A later turn's call with the same id takes the results.
        calls_by_id: dict[str, tuple[int, deque[ContentBlock]]] = {}
        for index, message in enumerate(view):
            blocks_by_id: defaultdict[str, deque[ContentBlock]] = defaultdict(deque)
            for block in message.content if message.role == "assistant" else ():
                if block.type == "tool_call":
                    blocks_by_id[id_of(block)].append(block)
                    matches.open[index].append(block)
            calls_by_id.update({id_: (index, blocks) for id_, blocks in blocks_by_id.items()})
            if any(block.type == "tool_result" for block in message.content):
                matches._match(index, message, calls_by_id)
        return matches

    def rest_of(self, index: int, message: ChatMessage) -> ChatMessage | None:
        """Return the part of a turn that stays at its position, or None if no part stays."""
        homes = self.homes.get(index)
        if homes is None:
            return message
        return _part(message, homes, index)

    def _match(
        self,
        index: int,
        message: ChatMessage,
        calls_by_id: dict[str, tuple[int, deque[ContentBlock]]],
    ) -> None:
        homes: list[int | None] = []
        # Media of a tool result follow the result. Other turns keep their own blocks.
        home: int | None = None if message.role == "tool" else index
        for block in message.content:
            if block.type == "tool_result":
                caller, calls = calls_by_id.get(id_of(block), (None, deque()))
                if message.role == "assistant" and caller != index:
                    caller, calls = None, deque()
                call = calls.popleft() if calls else None
                if caller is not None and call is not None:
                    self.open[caller] = [
                        open_call for open_call in self.open[caller] if open_call is not call
                    ]
                homes.append(caller if call is not None else None)
                home = homes[-1] if message.role == "tool" else index
            else:
                homes.append(home)
        self.homes[index] = homes
        for caller in dict.fromkeys(homes):
            if caller is not None and caller != index:
                part = _part(message, homes, caller)
                self.moved[caller] += [] if part is None else [part]


def _part(
    message: ChatMessage, homes: Sequence[int | None], home: int | None
) -> ChatMessage | None:
    blocks = [
        block
        for block, block_home in zip(message.content, homes, strict=True)
        if block_home == home
    ]
    if len(blocks) == len(message.content):
        return message
    return with_content(message, blocks) if blocks else None
