"""Cuts that make any window fit: the oldest groups are left out, and large turns are shortened with a mark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from actors.context.compaction.steps import Assembled, step_of
from actors.context.groups import TurnGroup, groups_of
from actors.context.tokens import Tally
from actors.context.turns import is_derived, is_new, is_pinned, with_content
from actors.kernel.agent.message import ChatMessage, ContentBlock

LARGE: Final = 4
"""Divisor of a window's limit: a turn above this part of it is shortened before any turn is left out."""
SHORTEST_TOKENS: Final = 16
"""Size below which no turn is shortened."""


def fitted(assembled: Assembled, max_tokens: int, tally: Tally, *, name: str) -> Assembled:
    """Return the window with at most so many tokens, and a receipt of the cut.

    Only pinned turns may stay above the limit. See `cut_to`.

    Args:
        assembled: The window that strategies made.
        max_tokens: Maximum size of the window.
        tally: The counter of sizes.
        name: The name of the cut in the receipt.
    """
    window = cut_to(assembled.window, max_tokens, tally)
    if window is assembled.window:
        return assembled
    step = step_of(name, assembled.window, window, tokens=assembled.tokens, tally=tally)
    return replace(
        assembled, window=window, steps=(*assembled.steps, step), tokens=step.tokens_after
    )


def cut_to(view: list[ChatMessage], max_tokens: int, tally: Tally) -> list[ChatMessage]:
    """Return a window of at most so many tokens.

    Turns above a quarter of the limit are shortened first. Then the oldest groups are left out. The newest user
    turn and the newest group are shortened further before they are left out, the larger one first. Pinned turns
    stay as they are, except new results of tools, which are shortened if nothing else makes the window fit.
    """
    if tally.total(view) <= max_tokens:
        return view
    limit = max(max_tokens // LARGE, SHORTEST_TOKENS)
    turns, window = view, _shorter(view, limit, tally, stays=is_pinned)
    groups = groups_of(window)
    last = _last_groups(window, groups)
    early = [group for group in groups if group not in last]
    remaining = _remaining(window, early, max_tokens, tally)
    turns, window = [turns[index] for index in remaining], [window[index] for index in remaining]
    while limit > SHORTEST_TOKENS and tally.total(window) > max_tokens:
        limit = max(limit // 2, SHORTEST_TOKENS)
        # Made of the whole turns each time: a text that is cut twice would have two marks.
        window = _shorter(turns, limit, tally, stays=_stays)
    groups = groups_of(window)
    groups.sort(key=lambda group: tally.total(group.turns(window)), reverse=True)
    return [window[index] for index in _remaining(window, groups, max_tokens, tally)]


def _shorter(
    turns: Sequence[ChatMessage], limit: int, tally: Tally, *, stays: Callable[[ChatMessage], bool]
) -> list[ChatMessage]:
    return [turn if stays(turn) else shortened(turn, limit, tally) for turn in turns]


def _last_groups(window: Sequence[ChatMessage], groups: list[TurnGroup]) -> list[TurnGroup]:
    """Return the groups that are left out last: the newest one, and that of the newest user turn."""
    users = [
        index for index, turn in enumerate(window) if turn.role == "user" and not is_derived(turn)
    ]
    return [group for group in groups if group is groups[-1] or users[-1:] == [*group.indices]]


def _remaining(
    window: Sequence[ChatMessage], groups: Sequence[TurnGroup], max_tokens: int, tally: Tally
) -> list[int]:
    """Return the indexes of a window without as many of the groups, in order, as make it fit."""
    tokens, left_out = tally.total(window), set[int]()
    for group in _in_order(groups):
        if tokens <= max_tokens:
            break
        tokens -= tally.total(group.turns(window))
        left_out.update(group.indices)
    return [index for index in range(len(window)) if index not in left_out]


def _in_order(groups: Sequence[TurnGroup]) -> Iterator[TurnGroup]:
    """Yield the groups that may be left out, those that a strategy made last."""
    yield from (group for group in groups if group.is_plain)
    yield from (group for group in groups if group.is_derived and not group.is_pinned)


def _stays(turn: ChatMessage) -> bool:
    return is_pinned(turn) and not (is_new(turn) and turn.role == "tool")


def shortened(turn: ChatMessage, max_tokens: int, tally: Tally) -> ChatMessage:
    """Return the turn with about so many tokens: the middle of its long texts is a mark.

    Texts, results of tools and texts among the arguments of calls are shortened. Other blocks stay as they are.
    A turn within the limit is returned as it is.
    """
    tokens = tally.total([turn])
    if tokens <= max_tokens:
        return turn
    lengths = sorted(length for block in turn.content for length in _lengths(block))
    # One character more or less counts little beside the tokens of the rest.
    chars = _ceiling(lengths, int(sum(lengths) * max_tokens / tokens))
    content = [_cut_block(block, chars) for block in turn.content]
    if all(new is old for new, old in zip(content, turn.content, strict=True)):
        return turn
    return with_content(turn, content)


def _ceiling(lengths: Sequence[int], total: int) -> int:
    """Return the length to which the longest texts are cut so that all have about `total` characters.

    Args:
        lengths: The lengths, ascending.
        total: The characters of all texts together.
    """
    for index, length in enumerate(lengths):
        share = total // (len(lengths) - index)
        if length > share:
            return share
        total -= length
    return lengths[-1] if lengths else 0


def _lengths(block: ContentBlock) -> Iterator[int]:
    match block.type:
        case "text" | "tool_result":
            yield len(block.text or "")
        case "tool_call":
            extra: dict[str, Any] = block.model_extra or {}
            yield from map(len, _texts_in([extra.get("arguments"), extra.get("invalid_arguments")]))
        case _:
            pass


def _texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(inner)


def _cut_block(block: ContentBlock, chars: int) -> ContentBlock:
    if block.type in {"text", "tool_result"}:
        text = _cut_text(block.text or "", chars)
        return block if text == block.text else block.model_copy(update={"text": text})
    extra: dict[str, Any] = block.model_extra or {}
    if block.type != "tool_call" or max(_lengths(block), default=0) <= chars:
        return block
    names = [name for name in ("arguments", "invalid_arguments") if name in extra]
    cut = {name: _cut_value(extra[name], chars) for name in names}
    return ContentBlock.model_validate(block.model_dump() | cut)


def _cut_value(value: Any, chars: int) -> Any:
    if isinstance(value, str):
        return _cut_text(value, chars)
    if isinstance(value, dict):
        return {key: _cut_value(inner, chars) for key, inner in value.items()}
    return [_cut_value(inner, chars) for inner in value] if isinstance(value, list) else value


def _cut_text(text: str, chars: int) -> str:
    """Return the first two thirds and the end of a text, with the number of characters between them."""
    if len(text) <= chars:
        return text
    head = chars * 2 // 3
    tail = chars - head
    end = text[len(text) - tail :]
    return f"{text[:head]}[{len(text) - chars} chars truncated]{end}"
