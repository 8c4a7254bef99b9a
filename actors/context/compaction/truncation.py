"""The strategy with a hard ceiling."""

from __future__ import annotations

from collections.abc import Iterator

from actors.context.groups import TurnGroup, groups_of, turns_of
from actors.context.tokens import characters
from actors.errors import ContractError
from actors.kernel.agent.message import ChatMessage


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

    def __init__(self, max_messages: int | None = None, max_chars: int | None = None) -> None:
        given = [limit for limit in (max_messages, max_chars) if limit is not None]
        if not given or min(given) < 1:
            msg = (
                f"truncation needs max_messages or max_chars, from 1: {max_messages=}, {max_chars=}"
            )
            raise ContractError(msg)
        self.max_messages, self.max_chars = max_messages, max_chars

    async def compact(self, raw_history: list[ChatMessage]) -> list[ChatMessage]:
        """See `CompactionStrategy.compact`."""
        groups = groups_of(raw_history)
        messages = len(raw_history)
        chars = sum(map(characters, raw_history))
        dropped = set[int]()
        for group in _in_order_of_dropping(groups):
            if self._fits(messages, chars):
                break
            messages -= len(group.indices)
            chars -= sum(map(characters, group.turns(raw_history)))
            dropped.update(group.indices)
        if not dropped:
            return raw_history
        return turns_of(raw_history, [one for one in groups if one.indices[0] not in dropped])

    def _fits(self, messages: int, chars: int) -> bool:
        return (self.max_messages is None or messages <= self.max_messages) and (
            self.max_chars is None or chars <= self.max_chars
        )


def _in_order_of_dropping(groups: list[TurnGroup]) -> Iterator[TurnGroup]:
    yield from (group for group in groups if group.is_plain)
    yield from (group for group in groups if group.is_derived and not group.is_pinned)
