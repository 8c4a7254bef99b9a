"""The strategy that drops old tool calls."""

from __future__ import annotations

from actors.context.groups import groups_of, turns_of
from actors.errors import ContractError
from actors.kernel.agent.message import ChatMessage


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
        """See `CompactionStrategy.compact`."""
        groups = groups_of(raw_history)
        calls = [group for group in groups if group.has_calls and group.is_plain]
        stale = calls[: max(0, len(calls) - self.keep_recent_groups)]
        if not stale:
            return raw_history
        dropped = {group.indices[0] for group in stale}
        return turns_of(raw_history, [one for one in groups if one.indices[0] not in dropped])
