"""The strategy that shortens results of tools."""

from __future__ import annotations

import re
from typing import Any, Final

from actors.context.turns import is_pinned, with_content
from actors.errors import ContractError
from actors.kernel.agent.message import ChatMessage, ContentBlock

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
        """See `CompactionStrategy.compact`."""
        window = [self._shortened(message) for message in raw_history]
        is_changed = any(new is not old for new, old in zip(window, raw_history, strict=True))
        return window if is_changed else raw_history

    def _shortened(self, message: ChatMessage) -> ChatMessage:
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
        missing = excess + (int(mark[1]) if mark else 0)
        text = f"{body[: self.max_chars]}[{missing} chars truncated]"
        return block.model_copy(update={"text": text})
