"""Groups of turns that are kept or dropped together: tool calls and the turns with their results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from actors.context.turns import has_no_marks, is_derived, is_pinned
from actors.kernel.agent.message import ChatMessage, ContentBlock

_TOOL_BLOCKS: Final = frozenset({"tool_call", "tool_result"})


class TurnGroup(NamedTuple):
    """The smallest part of a view that a strategy keeps or drops: one turn, or tool calls with their results.

    Attributes:
        indices: The indexes of its turns in the view, ascending.
        has_calls: True if a turn calls a tool.
        is_pinned: True if a turn is pinned. Then all turns of the group stay.
        is_derived: True if it is a summary or recalled text, which a strategy made.
    """

    indices: tuple[int, ...]
    has_calls: bool
    is_pinned: bool
    is_derived: bool

    @property
    def is_plain(self) -> bool:
        """True if the group is neither pinned nor derived, so that any strategy may drop it."""
        return not (self.is_pinned or self.is_derived)

    def turns(self, view: Sequence[ChatMessage]) -> list[ChatMessage]:
        """Return the turns of the group."""
        return [view[index] for index in self.indices]


def id_of(block: ContentBlock) -> str:
    """Return the id that connects a call with its result. Empty: the model gave none."""
    return str((block.model_extra or {}).get("id") or "")


def call_ids(message: ChatMessage) -> list[str]:
    """Return the ids of the tool calls in a turn, in order."""
    return [id_of(block) for block in message.content if block.type == "tool_call"]


def result_ids(message: ChatMessage) -> list[str]:
    """Return the ids of the calls whose results are in a turn, in order."""
    return [id_of(block) for block in message.content if block.type == "tool_result"]


def groups_of(view: Sequence[ChatMessage]) -> list[TurnGroup]:
    """Return the groups of a view, ordered by their first turns. Each turn is in exactly one group.

    A result belongs to the last call before it with the same id. A turn with results of calls in several turns
    joins the groups of these turns. A result without a call is a group of its own.
    """
    if not any(map(has_tool_blocks, view)):
        return [
            _plain(index) if has_no_marks(message) else _group(view, [index])
            for index, message in enumerate(view)
        ]
    roots = list(range(len(view)))
    caller: dict[str, int] = {}
    for index, message in enumerate(view):
        if not has_tool_blocks(message):
            continue
        callers = [index, *(caller[id_] for id_ in result_ids(message) if id_ in caller)]
        first = min(_root(roots, one) for one in callers)
        for one in callers:
            roots[_root(roots, one)] = first
        caller.update(dict.fromkeys(call_ids(message), index))
    members: dict[int, list[int]] = {}
    for index, root in enumerate(roots):
        members.setdefault(root if root == index else _root(roots, index), []).append(index)
    return [_group(view, indices) for indices in members.values()]


def has_tool_blocks(message: ChatMessage) -> bool:
    """Return True if a turn has a tool call or the result of one."""
    for block in message.content:  # noqa: SIM110 - half the time of `any`, for each turn of a window
        if block.type in _TOOL_BLOCKS:
            return True
    return False


def are_plain_turns(view: Sequence[ChatMessage]) -> bool:
    """Return whether each turn is a plain group of its own. Groups need not be made then."""
    for message in view:
        if not has_no_marks(message):
            return False
        for block in message.content:  # half the time of a call of `has_tool_blocks`
            if block.type in _TOOL_BLOCKS:
                return False
    return True


def turns_of(view: Sequence[ChatMessage], groups: Iterable[TurnGroup]) -> list[ChatMessage]:
    """Return the turns of groups, in the view's order."""
    return [view[index] for index in sorted(index for group in groups for index in group.indices)]


def _root(roots: list[int], index: int) -> int:
    while roots[index] != index:
        roots[index] = roots[roots[index]]
        index = roots[index]
    return index


@lru_cache(maxsize=8_192)
def _plain(index: int) -> TurnGroup:
    return TurnGroup((index,), False, False, False)


def _group(view: Sequence[ChatMessage], indices: Sequence[int]) -> TurnGroup:
    has_calls = pinned = derived = False
    for index in indices:
        turn = view[index]
        for block in turn.content:
            has_calls = has_calls or block.type == "tool_call"
        pinned = pinned or is_pinned(turn)
        derived = derived or is_derived(turn)
    return TurnGroup(tuple(indices), has_calls, pinned, derived)
