"""Brings posts to the followers in this host's shards, some hundred in a commit.

A post enters with the commit that publishes it, as one row for each shard that has followers. Here
those rows become mail, in the order of the posts. What was written is handed to the worker, so nobody reads
it. Nothing is remembered: after a crash the shard's next owner goes on where the store says.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from actors.errors import ActorsError
from actors.kernel.runtime.hints import Nudge
from actors.kernel.runtime.ids import ShardId
from actors.kernel.store.fanout import Expanded
from actors.runtime.loop.notifications import Notifications
from actors.runtime.loop.tasks import happens
from actors.runtime.worker.worker import Worker

_log = logging.getLogger("callboard.delivery")

SCAN_S: Final = 5.0
"""How often the store is asked for posts that no nudge told of."""
SWEEP_S: Final = 60.0
PAGE: Final = 1000
CHUNK: Final = 500
"""Followers in a commit."""
READY: Final = 250
"""Agents that are ready and do not execute yet, at which the next are brought: other mail waits behind them."""
MAX_READY: Final = 10_000
"""So many of them at which followers are left in the store, however long."""
PATIENCE_S: Final = 1.0
"""So long posts wait, from one chunk to the next, for a host that has too much to do anyway."""
BACK_OFF_S: Final = 0.01
AGAIN_S: Final = 1.0
"""Pause before the store is asked again that could not answer."""


class PostDelivery:
    """Brings posts to followers.

    Args:
        worker: Says which shards are ours, and is told who has mail.
        notifications: Hints say where posts are.
    """

    def __init__(self, worker: Worker, notifications: Notifications) -> None:
        self._posts, self._worker = worker.env.store.posts, worker
        self._told: set[ShardId] = set()
        self._may_be_more = False
        """There may be posts of which nobody was told."""
        self._known: set[tuple[ShardId, int]] = set()
        """Shards, with their epochs, of which is known who has lazy mail."""
        self._news = asyncio.Event()
        notifications.subscribe(self.follow, "fanout", "held", "life")

    def follow(self, nudge: Nudge) -> None:
        """A shard has posts for its followers; any may have some when shards are new here."""
        if nudge.kind == "life":  # the store may be behind: nothing that was read of it counts
            self._known.clear()
        if nudge.shard is not None:
            self._told.add(nudge.shard)
            self._news.set()
        elif nudge.kind != "fanout":
            self._look_again()

    def _look_again(self) -> None:
        self._may_be_more = True
        self._news.set()

    async def run(self) -> None:
        """Bring posts for ever; to be run as a task until it is cancelled."""
        loop = asyncio.get_running_loop()
        sweep_at = loop.time() + SWEEP_S
        while True:
            if not await happens(self._news, within_s=SCAN_S):
                self._look_again()
            self._news.clear()
            try:
                await self._learn_lazy()
                await self._bring_all()
                if loop.time() >= sweep_at:
                    sweep_at = loop.time() + SWEEP_S
                    self._known.clear()
                    while await self._posts.sweep(limit=PAGE) >= PAGE:
                        pass  # more of them are old
            except ActorsError as exc:
                _log.warning("posts wait for the store", exc_info=exc)
                await asyncio.sleep(AGAIN_S)
                self._look_again()

    async def _learn_lazy(self) -> None:
        """Ask who has lazy mail in our shards; nobody but this task makes more of it."""
        leases = {(lease.shard, lease.epoch): lease for lease in self._worker.held.loaded}
        self._known &= leases.keys()
        new = leases.keys() - self._known
        if new:
            lazy = await self._posts.lazy(sorted({shard for shard, _ in new}))
            held = self._worker.held
            for shard, epoch in new:
                if held.holds(leases[shard, epoch]):
                    agents = lazy.get(shard, ())
                    held.lazy[shard] = None if agents is None else set(agents)
            self._known |= new

    async def _bring_all(self) -> None:
        """Bring posts to their followers here until all have them."""
        while self._told or self._may_be_more:
            if self._may_be_more:
                self._may_be_more = False
                shards = [lease.shard for lease in self._worker.held.loaded]
                self._told |= await self._posts.behind(shards)
            await self._some_have_begun()
            told, self._told = self._told, set()
            leases = [lease for lease in self._worker.held.loaded if lease.shard in told]
            brought = await self._posts.expand(leases, limit=CHUNK)
            for lease in leases:
                if lease.shard in brought.lost:
                    self._worker.adoption.lose(lease.shard, epoch=lease.epoch)
            self._told |= brought.more
            self._tell(brought)

    async def _some_have_begun(self) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + PATIENCE_S
        while (ready := self._worker.dispatcher.backlog) > READY:
            if ready <= MAX_READY and loop.time() >= until:
                return
            await asyncio.sleep(BACK_OFF_S)  # nobody says when one begins

    def _tell(self, brought: Expanded) -> None:
        intake = self._worker.intake
        for shard, lazy in brought.lazy.items():
            # First, so that nobody is given what comes after such a post before it.
            intake.lazy_mail_waits(shard, lazy)
        for shard, woken in brought.woken.items():
            for arrived in woken:
                intake.offer(arrived, shard=shard)
