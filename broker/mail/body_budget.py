"""A limit on the dead letters that a sender of malformed bodies can make. Pure.

The store keeps one dead letter for each agent, sender and reason, and counts the others. That alone
bounds nothing: the sender of garbage chooses its reasons, for they name the position in the body, or the
media type. So of each sender some dead letters in a period have a reason of their own. What is garbage for
yet another reason has the same one, `TOO_MANY`, and is counted there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from actors.kernel.runtime.ids import AgentId
from actors.kernel.stores.transport import Received, Undecodable

REASONS_OF_ONE: Final = 16
"""Number of different reasons that are kept of one sender's bad messages to the shard, in a period."""
PERIOD_S: Final = 60.0
MAX_SENDERS: Final = 1000
"""A period ends when there are more, so that their number costs no memory."""
TOO_MANY: Final = (
    f"is no message; its reason is not kept, because {REASONS_OF_ONE} different reasons of this sender "
    f"were kept within {PERIOD_S:g} s"
)


class BodyBudget:
    """Of one shard. A dead letter has the bytes of the first body that it stands for.

    Args:
        now: Seconds since an arbitrary start.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now, self._until = now, now()
        self._reported: defaultdict[str, set[tuple[AgentId, str]]] = defaultdict(set)
        """The dead letters of each sender."""

    def spare(self, received: Received) -> Received:
        """Return what was received; of what is no message only what its dead letter needs."""
        content = received.content
        if not isinstance(content, Undecodable):
            return received
        if self._now() >= self._until or len(self._reported) > MAX_SENDERS:
            self._until = self._now() + PERIOD_S
            self._reported.clear()
        reported, letter = self._reported[received.sender], (received.agent_id, content.problem)
        if letter in reported:
            return replace(received, content=Undecodable(content.problem, b""))
        if len(reported) < REASONS_OF_ONE:
            reported.add(letter)
            return received
        return replace(received, content=Undecodable(TOO_MANY, b""))
