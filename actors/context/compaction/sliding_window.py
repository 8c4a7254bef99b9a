"""The strategy that keeps the newest turns."""

from __future__ import annotations

from actors.context.groups import are_plain_turns, groups_of, turns_of
from actors.errors import ContractError
from actors.kernel.agent.message import ChatMessage


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

    def __init__(self, max_messages: int = 100, *, slack: int = 0) -> None:
        if max_messages < 1 or not 0 <= slack < max_messages:
            msg = f"a sliding window needs 0 <= slack < max_messages: {slack=}, {max_messages=}"
            raise ContractError(msg)
        self.max_messages, self.slack = max_messages, slack

    async def compact(self, raw_history: list[ChatMessage]) -> list[ChatMessage]:
        """See `CompactionStrategy.compact`."""
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
        dropped = set[int]()
        for group in plain[:-1]:
            if len(dropped) >= to_drop:
                break
            dropped.update(group.indices)
        return turns_of(raw_history, [one for one in groups if one.indices[0] not in dropped])

    def _to_drop(self, excess: int) -> int:
        """Return the number of turns to drop, in whole steps of `slack`."""
        step = self.slack or 1
        return -(-excess // step) * step
