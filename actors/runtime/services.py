"""What runs beside the worker: schedules, limits, posts, mail; each hears of its own hints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.runtime.firing import ScheduleService
from actors.runtime.limiting import Limiting, Limits
from actors.runtime.postman import Postman

if TYPE_CHECKING:
    from actors.kernel.clock import Clock
    from actors.kernel.runtime.ids import ShardId
    from actors.kernel.runtime.store import RunStore
    from actors.runtime.mail import MailService
    from actors.runtime.ownership import Ownership
    from actors.runtime.tasks import TaskScope
    from actors.runtime.worker import Worker


class Services:
    """Made with a runtime, started with its first shards, and stopped after its worker.

    Attributes:
        firing: Sends what schedules say.
        limits: How many runs execute at once, as operators set it.
    """

    def __init__(
        self,
        store: RunStore,
        worker: Worker,
        ownership: Ownership,
        *,
        clock: Clock,
        mail: MailService | None,
    ) -> None:
        self._ownership, self._mail = ownership, mail
        self.firing = ScheduleService(store, worker, clock)
        ownership.on_schedule = self.firing.poke
        ownership.on_shards = self._on_shards
        ownership.on_life = self._on_life
        self._limiting = Limiting(
            store.limits, ownership.owner, worker.admission, on_admitted=worker.start_ready
        )
        ownership.on_limits = self._limiting.follow
        self.limits = Limits(store.limits, on_change=self._limiting.read_now)
        self._postman = Postman(store.posts, worker)
        ownership.on_fanout = self._on_fanout

    async def start(self, tasks: TaskScope) -> None:
        """Claim shards, and begin what runs in the background, in `tasks`."""
        await self._limiting.start()
        await self._ownership.start(tasks)
        tasks.keep(self._limiting.run, name="limits")
        tasks.keep(self.firing.run, name="schedules")
        tasks.keep(self._postman.run, name="posts")
        if self._mail is not None:
            tasks.keep(self._mail.run, name="mail")

    async def settle(self) -> None:
        """Claim nothing any more: what is under way comes to its end, before its task is ended."""
        await self._ownership.claim_no_more()
        await self._limiting.ask_no_more()

    async def stop(self) -> None:
        """Give back limits and shards; the tasks have ended."""
        await self._limiting.stop()
        await self._ownership.stop()

    def _on_shards(self) -> None:
        self.firing.poke()
        self._postman.look_again()
        if self._mail is not None:
            self._mail.follow_shards()

    def _on_life(self) -> None:
        """What is remembered of rows may not be so any more: ask for all of it."""
        self.firing.begin_anew()
        self._limiting.begin_anew()
        self._postman.begin_anew()
        if self._mail is not None:
            self._mail.begin_anew()

    def _on_fanout(self, shard: ShardId) -> None:
        self._postman.look(shard)
        if self._mail is not None:
            self._mail.look_for_posts()
