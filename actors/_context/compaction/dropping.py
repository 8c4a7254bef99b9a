"""Strategies that drop or shorten turns by a fixed rule, without a model.

One keeps the newest turns, one has a hard ceiling, one shortens results of tools, and one drops old tool calls.
"""

from __future__ import annotations

import re
from typing import Any, Final

from actors._context.tokens import characters
from actors._context.turns import (
    are_plain_turns,
    groups_of,
    in_order_of_dropping,
    is_pinned,
    turns_of,
    with_content,
)
from actors._kernel.agent.message import ChatMessage, ContentBlock
from actors.errors import ContractError


class SlidingWindowCompaction:
    """Strategy that keeps the newest turns, in whole groups, and drops the oldest.

    Pinned turns, a summary and recalled texts also stay, and are not counted. The newest group stays even if it
    alone has more turns.

    Args:
        max_messages: Maximum number of turns that are kept.
        slack: The number of turns by which the cut moves at once. With 0 it moves with each turn. With more, a
            provider's cache of the window's start stays valid between two moves, and from `max_messages - slack
            + 1` to `max_messages` turns are kept.

    Raises:
        ContractError: `max_messages` is below 1, or `slack` is not from 0 to `max_messages - 1`.
    """

    max_messages: int
    slack: int

    def __init__(self, max_messages: int = 100, *, slack: int = 0) -> None:
        if max_messages < 1 or not 0 <= slack < max_messages:
            msg = f"a sliding window needs 0 <= slack < max_messages: {slack=}, {max_messages=}"
            raise ContractError(msg)
        self.max_messages, self.slack = max_messages, slack

    async def compact(self, raw_history: list[ChatMessage]) -> list[ChatMessage]:
        """Return the newest turns, in whole groups."""
        if len(raw_history) <= self.max_messages:
            return raw_history
        if are_plain_turns(raw_history):
            to_drop = self._to_drop(len(raw_history) - self.max_messages)
            return raw_history[min(to_drop, len(raw_history) - 1) :]
        groups = groups_of(raw_history)
        plain = [group for group in groups if group.is_plain]
        excess = sum(len(group.indices) for group in plain) - self.max_messages
        if excess <= 0:
            return raw_history
        to_drop = self._to_drop(excess)
        dropped_indexes = set[int]()
        for group in plain[:-1]:
            if len(dropped_indexes) >= to_drop:
                break
            dropped_indexes.update(group.indices)
        return turns_of(raw_history, [g for g in groups if g.indices[0] not in dropped_indexes])

    def _to_drop(self, excess: int) -> int:
        """Return the number of turns to drop, in whole steps of `slack`."""
        step = self.slack or 1
        return -(-excess // step) * step


class TruncationStrategy:
    """Strategy that drops the oldest groups until the window is under its ceilings. Put it last in a pipeline.

    Only pinned turns stay above a ceiling. Summaries and recalled texts are dropped last. The newest group is
    dropped if it does not fit.

    Args:
        max_messages: Maximum number of turns.
        max_chars: Maximum number of characters that the model reads, media not counted.

    Raises:
        ContractError: Neither ceiling is given, or one is below 1.
    """

    max_messages: int | None
    max_chars: int | None

    def __init__(self, max_messages: int | None = None, max_chars: int | None = None) -> None:
        ceilings = [limit for limit in (max_messages, max_chars) if limit is not None]
        if not ceilings or min(ceilings) < 1:
            msg = (
                f"truncation needs max_messages or max_chars, from 1: {max_messages=}, {max_chars=}"
            )
            raise ContractError(msg)
        self.max_messages, self.max_chars = max_messages, max_chars

    async def compact(self, raw_history: list[ChatMessage]) -> list[ChatMessage]:
        """Return the turns without the oldest groups that are above a ceiling."""
        groups = groups_of(raw_history)
        messages = len(raw_history)
        chars = sum(map(characters, raw_history))
        dropped_indexes = set[int]()
        for group in in_order_of_dropping(groups):
            has_few_turns = self.max_messages is None or messages <= self.max_messages
            if has_few_turns and (self.max_chars is None or chars <= self.max_chars):
                break
            messages -= len(group.indices)
            chars -= sum(map(characters, group.turns(raw_history)))
            dropped_indexes.update(group.indices)
        if not dropped_indexes:
            return raw_history
        return turns_of(raw_history, [g for g in groups if g.indices[0] not in dropped_indexes])


_MARK: Final = re.compile(r"\[(\d{1,12}) chars truncated\]\Z")


class ToolResultCompactionStrategy:
    """Strategy that cuts long results of tools and adds the number of missing characters.

    Errors, media and short results stay as they are. The cut of a result depends on that result only and not on
    a budget, so it is the same in every window.

    Args:
        max_chars: Maximum length of a result's text; ``[N chars truncated]`` follows it.

    Raises:
        ContractError: `max_chars` is negative.
    """

    def __init__(self, max_chars: int = 500) -> None:
        if max_chars < 0:
            msg = f"results of tools cannot be cut to a negative length: {max_chars=}"
            raise ContractError(msg)
        self.max_chars = max_chars

    async def compact(self, raw_history: list[ChatMessage]) -> list[ChatMessage]:
        """Return the turns with shortened results of tools."""
        window = [self._shorten(message) for message in raw_history]
        is_changed = any(new is not old for new, old in zip(window, raw_history, strict=True))
        return window if is_changed else raw_history

    def _shorten(self, message: ChatMessage) -> ChatMessage:
        if is_pinned(message):
            return message
        blocks = [self._cut(block) for block in message.content]
        if all(new is old for new, old in zip(blocks, message.content, strict=True)):
            return message
        return with_content(message, blocks)

    def _cut(self, block: ContentBlock) -> ContentBlock:
        extra: dict[str, Any] = block.model_extra or {}
        if block.type != "tool_result" or block.text is None or extra.get("is_error"):
            return block
        mark = _MARK.search(block.text)
        body = block.text[: mark.start()] if mark else block.text
        excess = len(body) - self.max_chars
        if excess <= 0:
            return block
        missing_chars = excess + (int(mark[1]) if mark else 0)
        text = f"{body[: self.max_chars]}[{missing_chars} chars truncated]"
        return block.model_copy(update={"text": text})


class SelectiveToolCallCompactionStrategy:
    """Strategy that drops all but the newest groups of tool calls with their results. Other turns stay.

    Args:
        keep_recent_groups: Number of groups that stay, in addition to pinned ones.

    Raises:
        ContractError: `keep_recent_groups` is negative.
    """

    def __init__(self, keep_recent_groups: int = 5) -> None:
        if keep_recent_groups < 0:
            msg = f"a window cannot keep a negative number of groups: {keep_recent_groups=}"
            raise ContractError(msg)
        self.keep_recent_groups = keep_recent_groups

    async def compact(self, raw_history: list[ChatMessage]) -> list[ChatMessage]:
        """Return the turns without the older groups of tool calls."""
        groups = groups_of(raw_history)
        call_groups = [group for group in groups if group.has_calls and group.is_plain]
        stale_groups = call_groups[: max(0, len(call_groups) - self.keep_recent_groups)]
        if not stale_groups:
            return raw_history
        dropped_indexes = {group.indices[0] for group in stale_groups}
        return turns_of(raw_history, [g for g in groups if g.indices[0] not in dropped_indexes])
