"""Posts on their way to a host's followers: which shards are asked for, how many at once, who is told when."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from actors._kernel.agent.message import Message
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId, HostIncarnation, ShardId
from actors._kernel.runtime.rows import Arrived
from actors._kernel.runtime.scheduler import ShardLease
from actors._kernel.stores.topics import Expanded
from actors._runtime.delivery.fanout import (
    AGAIN_S,
    BACKLOG_LIMIT,
    CHUNK,
    MAX_BACKLOG,
    SCAN_S,
    PostDelivery,
)
from actors._runtime.loop.notifications import Notifications
from actors._runtime.loop.tasks import TaskScope
from actors.errors import PersistenceError
from tests.harness.simloop import SimLoop, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from actors._kernel.stores.topics import LazyAgents
    from actors._runtime.worker.worker import Worker

ONE, TWO, AWAY = ShardId("one"), ShardId("two"), ShardId("away")
LEASES = [
    ShardLease(shard, HostIncarnation("h"), 3, datetime(2030, 1, 1, tzinfo=UTC))
    for shard in (ONE, TWO)
]


def rows(shard: ShardId, count: int) -> list[Arrived]:
    """So many rows of followers in a shard."""
    agents = [AgentId(shard, f"{n}") for n in range(count)]
    return [Arrived(Message.of(a, None, id="m"), "topic:t/x", a, n) for n, a in enumerate(agents)]


class Place:
    """A store that answers as it is told, and a worker: what they are asked, with the time."""

    def __init__(self, *chunks: Expanded | Exception, behind: Sequence[ShardId] = ()) -> None:
        self.done: list[tuple[float, str]] = []
        self.chunks, self._behind = list(chunks), set(behind)
        self.waiting: LazyAgents = {}
        self.backlog = 0
        self.env = SimpleNamespace(store=SimpleNamespace(posts=self))
        self.dispatcher = self.intake = self.adoption = self
        self.held = SimpleNamespace(loaded=LEASES, holds=lambda _: True, lazy={})

    def _note(self, what: str) -> None:
        self.done.append((asyncio.get_running_loop().time(), what))

    async def lazy(self, shards: Sequence[ShardId]) -> LazyAgents:
        """As it was said, once."""
        del shards
        lazy_agents, self.waiting = self.waiting, {}
        return lazy_agents

    async def sweep(self, *, limit: int) -> int:
        """There is nothing old."""
        del limit
        return 0

    async def behind(self, shards: Sequence[ShardId]) -> set[ShardId]:
        """As it was said, once."""
        self._note(f"behind {' '.join(shards)}")
        shards_behind, self._behind = self._behind, set()
        return shards_behind

    async def expand(self, leases: Sequence[ShardLease], *, limit: int) -> Expanded:
        """The next answer; without one there is nothing to bring."""
        self._note(f"expand {' '.join(lease.shard for lease in leases)} {limit}")
        await asyncio.sleep(0.01)
        chunk = self.chunks.pop(0) if self.chunks else Expanded({})
        if isinstance(chunk, Exception):
            raise chunk
        return chunk

    def lazy_mail_waits(self, shard: ShardId, agents: Collection[str] | None) -> None:
        """Nobody is told of it."""
        self._note(f"lazy {shard} {agents}")

    def offer(self, arrived: Arrived, *, shard: ShardId) -> None:
        """It is ready, or executes."""
        assert shard == arrived.agent_id.type
        self._note(f"offer {shard}")

    def lose(self, shard: ShardId, *, epoch: int) -> None:
        """Somebody else has the shard."""
        self._note(f"lose {shard} {epoch}")


def played(worker: Place, act: Callable[[Notifications], None], *, for_s: float = 1.0) -> list[str]:
    """What happened in so many seconds after `act`."""

    async def main(_: SimLoop) -> None:
        notifications = Notifications()
        notifications.is_open = True
        delivery = PostDelivery(cast("Worker", worker), notifications)
        async with TaskScope() as tasks:
            tasks.start(delivery.run(), name="posts")
            await asyncio.sleep(0.1)
            act(notifications)
            await asyncio.sleep(for_s)
            tasks.cancel()

    simulate(main, seed=1)
    return [what for _, what in worker.done]


def tell(*shards: ShardId) -> Callable[[Notifications], None]:
    """Hints that posts are in these shards."""
    return lambda to: to.publish_all([Nudge("fanout", shard=shard) for shard in shards])


def test_posts_of_notified_shards_are_delivered_at_once() -> None:
    """In one call; a shard of another host is left out; lazy ones are noted before anybody is told."""
    worker = Place(Expanded({ONE: rows(ONE, 2), TWO: rows(TWO, 1)}, lazy={TWO: ["two/9"]}))

    done = played(worker, tell(ONE, AWAY, TWO))

    assert done == [
        f"expand one two {CHUNK}",
        "lazy two ['two/9']",
        "offer one",
        "offer one",
        "offer two",
    ]


def test_what_is_left_is_brought_next() -> None:
    """At once while nobody has to wait, and nobody is asked what is left."""
    worker = Place(Expanded({ONE: rows(ONE, 1)}, more={ONE}), Expanded({}, more={ONE}))

    done = played(worker, tell(ONE, TWO))

    assert done == [
        f"expand one two {CHUNK}",
        "offer one",
        f"expand one {CHUNK}",
        f"expand one {CHUNK}",
    ]


@pytest.mark.parametrize(
    ("ready", "at"),
    [
        (BACKLOG_LIMIT, 0.1),
        (BACKLOG_LIMIT + 1, 0.6),
        (BACKLOG_LIMIT + 2, 1.1),
        (MAX_BACKLOG + 1, 0.6),
        (MAX_BACKLOG + 2, None),
    ],
)
def test_followers_are_left_in_the_store_while_others_wait_to_begin(
    ready: int, at: float | None
) -> None:
    """So that nobody waits behind all of them; a host that is always busy brings some, up to a limit."""
    worker = Place()
    worker.backlog = ready

    def act(to: Notifications) -> None:
        tell(ONE)(to)
        fewer = ready - 1 if ready in (BACKLOG_LIMIT + 2, MAX_BACKLOG + 2) else BACKLOG_LIMIT
        asyncio.get_running_loop().call_later(0.5, setattr, worker, "backlog", fewer)

    done = played(worker, act, for_s=2.0)

    assert done == ([] if at is None else [f"expand one {CHUNK}"])
    assert at is None or worker.done[0][0] == pytest.approx(at, abs=0.02)


def test_a_shard_that_is_lost_is_given_up() -> None:
    """And nothing more is asked of it; the others go on."""
    worker = Place(Expanded({TWO: rows(TWO, 1)}, more={TWO}, lost={ONE}))

    done = played(worker, tell(ONE, TWO))

    assert done == [f"expand one two {CHUNK}", "lose one 3", "offer two", f"expand two {CHUNK}"]


def test_what_failed_is_looked_for_in_all_shards() -> None:
    """Whom the call was for is in the store."""
    worker = Place(PersistenceError("away"), behind=[ONE])

    done = played(worker, tell(ONE), for_s=AGAIN_S + 0.5)

    assert done == [f"expand one {CHUNK}", "behind one two", f"expand one {CHUNK}"]


def test_a_scan_finds_rows_without_a_hint() -> None:
    """By a read; only shards that have something are asked to bring it."""
    worker = Place(behind=[TWO])

    done = played(worker, lambda _: None, for_s=SCAN_S)

    assert done == ["behind one two", f"expand two {CHUNK}"]


def test_new_shards_are_looked_at_when_they_are_loaded() -> None:
    """Their last owner may have died between two chunks."""
    worker = Place(behind=[ONE])

    done = played(worker, lambda to: to.publish(Nudge("held")))

    assert done == ["behind one two", f"expand one {CHUNK}"]
