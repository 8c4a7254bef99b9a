"""The delivery of posts to followers in this host's shards, up to 500 followers in a commit.

A post enters with the commit that publishes it, as one row for each shard that has followers. This
module turns those rows into inbox rows, in the order of the posts. The worker gets the new rows directly and
does not read them from the store. After a crash the shard's next owner continues from the store's state.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import ShardId
from actors._kernel.stores.topics import Expanded
from actors._runtime.loop.notifications import Notifications
from actors._runtime.loop.tasks import happens
from actors._runtime.worker.worker import Worker
from actors.errors import ActorsError

_log = logging.getLogger("callboard.delivery")

SCAN_S: Final = 5.0
"""Interval at which the store is asked for posts without a nudge."""
SWEEP_S: Final = 60.0
PAGE: Final = 1000
CHUNK: Final = 500
"""Followers in a commit."""
BACKLOG_LIMIT: Final = 250
"""If more agents than this are ready, the next chunk waits, so that other messages do not."""
MAX_BACKLOG: Final = 10_000
"""While more agents than this are ready, no post is delivered, however long it has waited."""
MAX_PAUSE_S: Final = 1.0
"""Longest pause between two chunks while more than `BACKLOG_LIMIT` agents are ready."""
BACK_OFF_S: Final = 0.01
AGAIN_S: Final = 1.0
"""Pause before a retry after the store could not answer."""


class PostDelivery:
    """The task that delivers posts to followers.

    Args:
        worker: The worker, which has the shards of this host and is notified of agents with new messages.
        notifications: Hints that name shards with posts.
    """

    def __init__(self, worker: Worker, notifications: Notifications) -> None:
        self._posts, self._worker = worker.env.store.posts, worker
        self._pending: set[ShardId] = set()
        self._may_be_more = False
        """True if there may be posts without a notification."""
        self._read_shards: set[tuple[ShardId, int]] = set()
        """Shards, with their epochs, whose agents with lazy messages are known."""
        self._news = asyncio.Event()
        notifications.subscribe(self.follow, "fanout", "held", "incarnation")

    def follow(self, nudge: Nudge) -> None:
        """Note that a shard has posts for its followers. If shards are new here, any of them may have some."""
        # The database may have lost commits: discard everything that was read before.
        if nudge.kind == "incarnation":
            self._read_shards.clear()
        if nudge.shard is not None:
            self._pending.add(nudge.shard)
            self._news.set()
        elif nudge.kind != "fanout":
            self._request_scan()

    def _request_scan(self) -> None:
        self._may_be_more = True
        self._news.set()

    async def run(self) -> None:
        """Deliver posts until the task is cancelled."""
        loop = asyncio.get_running_loop()
        sweep_at = loop.time() + SWEEP_S
        while True:
            if not await happens(self._news, within_s=SCAN_S):
                self._request_scan()
            self._news.clear()
            try:
                await self._learn_lazy()
                await self._deliver_all()
                if loop.time() >= sweep_at:
                    sweep_at = loop.time() + SWEEP_S
                    self._read_shards.clear()
                    while await self._posts.sweep(limit=PAGE) >= PAGE:
                        pass  # more of them are old
            except ActorsError as exc:
                _log.warning("posts could not be delivered and are retried", exc_info=exc)
                await asyncio.sleep(AGAIN_S)
                self._request_scan()

    async def _learn_lazy(self) -> None:
        """Read which agents of our shards have lazy messages. Only this task makes more of them."""
        leases_by_key = {(lease.shard, lease.epoch): lease for lease in self._worker.held.loaded}
        # A shard that was lost and claimed again has another epoch, and is read again.
        self._read_shards &= leases_by_key.keys()
        new_keys = leases_by_key.keys() - self._read_shards
        if new_keys:
            lazy_agents = await self._posts.lazy(sorted({shard for shard, _ in new_keys}))
            held_shards = self._worker.held
            for shard, epoch in new_keys:
                # The shard may have been lost, and claimed again, while it was read.
                if held_shards.holds(leases_by_key[shard, epoch]):
                    agents = lazy_agents.get(shard, ())
                    held_shards.lazy[shard] = None if agents is None else set(agents)
            self._read_shards |= new_keys

    async def _deliver_all(self) -> None:
        """Deliver posts to their followers in this host's shards until no post is left."""
        while self._pending or self._may_be_more:
            if self._may_be_more:
                self._may_be_more = False
                shards = [lease.shard for lease in self._worker.held.loaded]
                self._pending |= await self._posts.behind(shards)
            await self._wait_for_starts()
            # Taken out before the statement: a hint that comes during it names the shard again.
            pending, self._pending = self._pending, set()
            leases = [lease for lease in self._worker.held.loaded if lease.shard in pending]
            expanded = await self._posts.expand(leases, limit=CHUNK)
            for lease in leases:
                if lease.shard in expanded.lost:
                    self._worker.adoption.lose(lease.shard, epoch=lease.epoch)
            self._pending |= expanded.more
            self._deliver(expanded)

    async def _wait_for_starts(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + MAX_PAUSE_S
        while (backlog := self._worker.dispatcher.backlog) > BACKLOG_LIMIT:
            # A host whose agents are always ready would otherwise deliver no post.
            if backlog <= MAX_BACKLOG and loop.time() >= until:
                return
            await asyncio.sleep(BACK_OFF_S)  # there is no notification when one begins

    def _deliver(self, expanded: Expanded) -> None:
        intake = self._worker.intake
        for shard, lazy in expanded.lazy.items():
            # First, so that no follower gets a later post before this one.
            intake.lazy_mail_waits(shard, lazy)
        for shard, woken in expanded.woken.items():
            for arrived in woken:
                intake.offer(arrived, shard=shard)
