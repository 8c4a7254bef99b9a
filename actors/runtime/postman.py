"""The postman: brings posts to the followers in this host's shards, some thousand in a commit.

A post enters with the commit that publishes it, as one row for each shard that has followers. Here
those rows become mail, in the order of the posts. Nothing is remembered: after a crash the shard's next
owner goes on where the store says.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from actors.errors import ActorsError
from actors.kernel.runtime.commit import LeaseLost

if TYPE_CHECKING:
    from actors.kernel.runtime.fanout import Expanded, Fanout, PostStore
    from actors.kernel.runtime.ids import ShardId
    from actors.runtime.worker import Worker

_log = logging.getLogger(__name__)

SCAN_S: Final = 5.0
"""How often the store is asked for posts that no nudge told of."""
SWEEP_S: Final = 60.0
PAGE: Final = 1000
MAX_READY: Final = 10_000
"""Agents that are ready and do not execute yet, at which followers are left in the store."""
BACK_OFF_S: Final = 0.05
AGAIN_S: Final = 1.0
"""Pause before the store is asked again that could not answer."""


class Postman:
    """Brings posts to followers.

    Args:
        posts: Has them.
        worker: Says which shards are ours, and is told who has mail.
    """

    def __init__(self, posts: PostStore, worker: Worker) -> None:
        self._posts, self._worker = posts, worker
        self._told: set[ShardId] = set()
        self._known: set[tuple[ShardId, int]] = set()
        """Shards, with their epochs, of which is known whether they have lazy mail."""
        self._news = asyncio.Event()
        self._left: dict[ShardId, deque[Fanout]] = {}

    def look(self, shard: ShardId) -> None:
        """A shard has posts for its followers."""
        self._told.add(shard)
        self._news.set()

    def look_again(self) -> None:
        """Any shard may have some; also called when shards are new here."""
        self._told.update(lease.shard for lease in self._worker.loaded_shards)
        self._news.set()

    def begin_anew(self) -> None:
        """The store may be behind: nothing that was read of it counts."""
        self._known.clear()
        self._left.clear()
        self.look_again()

    async def run(self) -> None:
        """Bring posts for ever; to be run as a task until it is cancelled."""
        loop = asyncio.get_running_loop()
        sweep_at = loop.time() + SWEEP_S
        while True:
            try:
                async with asyncio.timeout(SCAN_S):
                    await self._news.wait()
            except TimeoutError:
                self.look_again()
            self._news.clear()
            try:
                await self._learn_lazy()
                await self._bring_all()
                if loop.time() >= sweep_at:
                    sweep_at = loop.time() + SWEEP_S
                    self._known.clear()
                    await self._posts.sweep()
            except ActorsError as exc:
                _log.warning("posts wait for the store", exc_info=exc)
                await asyncio.sleep(AGAIN_S)
                self.look_again()

    async def _learn_lazy(self) -> None:
        """Ask which of our shards have lazy mail; nobody but this task makes more of it."""
        leases = {(lease.shard, lease.epoch): lease for lease in self._worker.loaded_shards}
        self._known &= leases.keys()
        new = leases.keys() - self._known
        if new:
            lazy = await self._posts.lazy(sorted({shard for shard, _ in new}))
            self._worker.lazy_mail_is_only_in(lazy, among=[leases[key] for key in new])
            self._known |= new

    # --- bringing -------------------------------------------------------------------------------

    async def _bring_all(self) -> None:
        """Bring what is left; one chunk of each shard in turn, so that none waits for a large one."""
        while self._told or self._left:
            await self._read()
            for shard in list(self._left):
                await self._bring(shard)

    async def _read(self) -> None:
        """Read what is left to do in the shards that were told."""
        told, self._told = self._told, set()
        shards = sorted(told & {lease.shard for lease in self._worker.loaded_shards})
        if not shards:
            return
        try:
            found = await self._posts.fanouts(shards, limit=PAGE)
        except ActorsError:
            self._told |= told
            raise
        if len(found) == PAGE:
            self._told |= told
        for fanout in found:
            queue = self._left.setdefault(fanout.shard, deque())
            if not queue or fanout.seq > queue[-1].seq:
                queue.append(fanout)
            elif fanout not in queue:  # its number was drawn before those that came first
                self._left[fanout.shard] = deque(sorted((*queue, fanout), key=lambda one: one.seq))

    async def _bring(self, shard: ShardId) -> None:
        """Bring the oldest post of a shard to its next followers."""
        while self._worker.backlog > MAX_READY:  # noqa: ASYNC110 - nobody says when it is not
            await asyncio.sleep(BACK_OFF_S)
        queue, lease = self._left.get(shard), self._worker.held.get(shard)
        if queue is None or lease is None:
            self._left.pop(shard, None)
            return
        brought = await self._posts.expand(lease, queue[0])
        if isinstance(brought, LeaseLost):
            self._left.pop(shard, None)
            self._worker.lose(shard, epoch=lease.epoch)
            return
        self._tell(shard, brought)
        if brought.is_done and self._left.get(shard) is queue:
            queue.popleft()
            if not queue:
                del self._left[shard]

    def _tell(self, shard: ShardId, brought: Expanded) -> None:
        if brought.lazy:
            # First, so that nobody in the shard is given what comes after such a post before it.
            self._worker.lazy_mail_waits(shard)
        for arrived in brought.woken:
            self._worker.offer(arrived)
