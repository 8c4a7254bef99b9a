"""How one post reaches all followers of a topic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from actors.kernel.agent.message import Message
    from actors.kernel.runtime.follow_graph import FollowGraph
    from actors.kernel.runtime.ids import AgentId, TopicId
    from actors.kernel.runtime.inbox import Inbox


@dataclass(frozen=True, slots=True)
class FanoutReport:
    """What a publish did. `failed` followers can be reached by publishing the same post again.

    Attributes:
        delivered: Followers that got it now.
        known: Followers that had it before.
        failed: Followers whose inbox refused, with the error's text.
    """

    delivered: int
    known: int = 0
    failed: tuple[tuple[AgentId, str], ...] = ()


class FanoutStrategy(Protocol):
    """One way to bring posts to followers."""

    async def publish(
        self, topic: TopicId, msg: Message, *, graph: FollowGraph, inbox: Inbox
    ) -> FanoutReport:
        """Bring `msg` to every follower once, however often it is published (by message id).

        One follower that cannot be reached does not keep the post from the others.
        """
        ...
