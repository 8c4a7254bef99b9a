"""PushAllFanout: one delivery per follower, one after the other."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from actors.errors import ActorsError
from actors.kernel.agent.message import sender_of
from actors.kernel.runtime.fanout import FanoutReport

if TYPE_CHECKING:
    from actors.kernel.agent.message import Message
    from actors.kernel.runtime.follow_graph import FollowGraph
    from actors.kernel.runtime.ids import AgentId, TopicId
    from actors.kernel.runtime.inbox import Inbox

_log = logging.getLogger(__name__)


class PushAllFanout:
    """See `FanoutStrategy`. Costs the publisher one delivery per follower."""

    async def publish(
        self, topic: TopicId, msg: Message, *, graph: FollowGraph, inbox: Inbox
    ) -> FanoutReport:
        """See `FanoutStrategy.publish`. Lazy followers get the post without being woken."""
        delivered = known = 0
        failed: list[tuple[AgentId, str]] = []
        sender = sender_of("topic", topic)
        async for subscription in graph.followers_of(topic):
            follower = subscription.follower
            post = replace(msg, target=follower, sender=sender)
            try:
                is_new = await inbox.deliver(follower, post, notify=subscription.mode == "eager")
            except (ActorsError, OSError) as exc:
                # Publishing the same post again reaches those that are left out now.
                _log.warning("post not delivered", extra={"follower": str(follower)}, exc_info=exc)
                failed.append((follower, str(exc)))
                continue
            delivered += is_new
            known += not is_new
        return FanoutReport(delivered, known, tuple(failed))
