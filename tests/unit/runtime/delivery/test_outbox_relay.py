"""What goes out of the outbox, in which order, and what goes out again: in virtual time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from actors._kernel.agent.message import Message
from actors._kernel.runtime.ids import AgentId, HostIncarnation, ShardId, TopicId
from actors._kernel.runtime.scheduler import ShardLease
from actors._kernel.stores.transport import OutboxRow
from actors._runtime.delivery.outbox_relay import AGAIN_S, PAGE, TROUBLE_AFTER, OutboxRelay
from actors._runtime.loop.tasks import TaskScope
from actors.errors import BrokerError, ContractError, PersistenceError
from tests.harness.simloop import SimLoop, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from actors._kernel.stores.transport import MailConnection, OutboxStore

LEASES = [ShardLease(ShardId("s"), HostIncarnation("h"), 1, datetime(2030, 1, 1, tzinfo=UTC))]


def row(n: int, target: str = "a", *, read: int = 0, dead: str | None = None) -> OutboxRow:
    """A message of one sender."""
    message = Message.of(AgentId("desk", target), n, id=f"m{n}").sent_by("agent:x")
    return OutboxRow(n, message, dead, read)


def post(n: int) -> OutboxRow:
    """What only onlookers receive."""
    return OutboxRow(n, Message.of(TopicId("news", "t"), n, id=f"p{n}").sent_by("agent:x"))


class Outbox:
    """The rows of a store, and what it was told of them."""

    def __init__(self, *rows: OutboxRow) -> None:
        self.rows = list(rows)
        self.buried: list[int] = []
        self.forgotten: list[list[int]] = []
        self.wait_s = 0.0
        self.errors = 0

    async def page(
        self, leases: Sequence[ShardLease], *, after: int, limit: int
    ) -> list[OutboxRow]:
        """A page."""
        del leases
        rows = [row for row in self.rows if row.n > after][:limit]
        await asyncio.sleep(self.wait_s)
        return rows

    async def bury(self, row: OutboxRow, problem: str) -> None:
        """It cannot be published."""
        del problem
        self._may_fail()
        self.buried.append(row.n)

    async def forget(self, rows: Sequence[OutboxRow]) -> None:
        """They leave the outbox."""
        await asyncio.sleep(1)
        self._may_fail()
        self.forgotten.append([row.n for row in rows])

    def _may_fail(self) -> None:
        if self.errors:
            self.errors -= 1
            raise PersistenceError("away")


class Line:
    """A connection: each row takes a second; it gives what `fails` has for a row, once each."""

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.fails: dict[int, list[Exception]] = {}
        self.under_way: list[object] = []

    async def send(self, row: OutboxRow) -> int:
        """Publish."""
        target = row.message.target
        assert target not in self.under_way, "two rows of one pair at once"
        self.under_way.append(target)
        await asyncio.sleep(1)
        self.under_way.remove(target)
        if errors := self.fails.get(row.n):
            raise errors.pop(0)
        self.sent.append(row.n)
        return 100 + row.n


def relayed(
    act: Callable[[OutboxRelay, Outbox, Line], Coroutine[Any, Any, None]],
    outbox: Outbox,
    seed: int = 1,
) -> Line:
    """The line, when `act` was done and all that it began."""

    async def main(_: SimLoop) -> Line:
        line = Line()
        async with TaskScope() as tasks:
            relay = OutboxRelay(cast("OutboxStore", outbox), may_act=lambda: True)
            relay.open(cast("MailConnection", line), tasks)
            await act(relay, outbox, line)
            await asyncio.sleep(60)
        return line

    return simulate(main, seed=seed)[0]


def test_rows_of_a_pair_go_out_one_after_the_other_and_pairs_at_once() -> None:
    """Three of one pair take three seconds, and the other pair is done meanwhile."""

    async def act(relay: OutboxRelay, _: Outbox, line: Line) -> None:
        relay.add([row(1), row(2), row(3), row(4, "b")])
        await asyncio.sleep(1.5)
        assert sorted(line.sent) == [1, 4]

    assert [n for n in relayed(act, Outbox()).sent if n != 4] == [1, 2, 3]


def test_what_a_commit_wrote_does_not_overtake_what_is_still_being_read() -> None:
    """Rows that come during a load go out behind it, whatever takes longer."""
    outbox = Outbox(row(1), row(2))
    outbox.wait_s = 5

    async def act(relay: OutboxRelay, outbox: Outbox, line: Line) -> None:
        async with TaskScope() as tasks:
            tasks.start(_loaded(relay), name="load")
            await asyncio.sleep(1)
            outbox.rows.append(row(3))
            relay.add([row(3)])
            await asyncio.sleep(3)
            assert line.sent == []
            await tasks.settle(limit_s=30)

    assert relayed(act, outbox).sent == [1, 2, 3]


async def _loaded(relay: OutboxRelay) -> None:
    await relay.load(LEASES)


def test_a_row_that_the_broker_refused_goes_out_again_before_the_next() -> None:
    """Nothing of its pair overtakes it; other pairs do not wait."""

    async def act(relay: OutboxRelay, _: Outbox, line: Line) -> None:
        line.fails[1] = [BrokerError("busy") for _ in range(TROUBLE_AFTER)]
        relay.add([row(1), row(2), row(3, "b")])
        await asyncio.sleep(TROUBLE_AFTER * (1 + AGAIN_S) + 0.5)
        assert line.sent == [3]
        assert str(relay.trouble) == "busy"

        await asyncio.sleep(10)
        assert relay.trouble is None

    assert relayed(act, Outbox()).sent == [3, 1, 2]


def test_what_the_broker_has_goes_out_again_only_if_its_receiver_has_read_past_it() -> None:
    """Then it was lost there; until then it is on its way."""

    async def act(relay: OutboxRelay, outbox: Outbox, line: Line) -> None:
        await relay.load(LEASES)
        await asyncio.sleep(5)
        await relay.reload(LEASES)
        await asyncio.sleep(5)
        assert line.sent == [1], "it is under sequence 101"
        outbox.rows = [row(1, read=100)]
        await relay.reload(LEASES)
        await asyncio.sleep(5)
        assert line.sent == [1]

        outbox.rows = [row(1, read=101)]
        await relay.reload(LEASES)

    assert relayed(act, Outbox(row(1))).sent == [1, 1]


def test_what_left_the_outbox_is_waited_for_no_more() -> None:
    """Its receiver has it."""

    async def act(relay: OutboxRelay, outbox: Outbox, _: Line) -> None:
        relay.add([row(1)])
        await asyncio.sleep(5)
        assert relay.is_waiting
        outbox.rows = []
        await relay.reload(LEASES)
        assert not relay.is_waiting

    relayed(act, Outbox())


def test_over_a_new_connection_everything_counts_as_not_sent() -> None:
    """What the old one had accepted may be lost; what comes in between is read from the outbox."""

    async def act(relay: OutboxRelay, outbox: Outbox, line: Line) -> None:
        relay.add([row(1)])
        await asyncio.sleep(5)
        relay.close()
        relay.add([row(2)])
        await asyncio.sleep(5)
        assert line.sent == [1]
        outbox.rows = [row(1), row(2)]
        async with TaskScope() as tasks:
            relay.open(cast("MailConnection", line), tasks)
            await relay.load(LEASES)
            await tasks.settle(limit_s=30)

    assert relayed(act, Outbox()).sent == [1, 1, 2]


def test_more_rows_than_a_page_are_all_read() -> None:
    """In order, and the answer names them all."""
    many = [row(n, f"{n % 50}") for n in range(PAGE + 5)]

    async def act(relay: OutboxRelay, _: Outbox, __: Line) -> None:
        assert await relay.load(LEASES) == set(range(PAGE + 5))

    line = relayed(act, Outbox(*many))
    assert [n for n in line.sent if n % 50 == 3] == list(range(3, PAGE + 5, 50))


def test_what_can_never_be_published_is_buried_and_the_next_goes_out() -> None:
    """It stays in front while the store is away: a dead letter that is lost is a lost message."""
    outbox = Outbox()
    outbox.errors = 2

    async def act(relay: OutboxRelay, _: Outbox, line: Line) -> None:
        line.fails[1] = [ContractError("too large") for _ in range(3)]
        relay.add([row(1), row(2)])

    assert relayed(act, outbox).sent == [2]
    assert outbox.buried == [1]


def test_what_only_onlookers_receive_leaves_the_outbox_once_the_broker_has_it() -> None:
    """Several of them together; one that can never be published leaves it, too, without a dead letter."""
    outbox = Outbox()

    async def act(relay: OutboxRelay, _: Outbox, line: Line) -> None:
        line.fails[3] = [ContractError("too large")]
        relay.add([post(1), row(2, dead="why"), post(3), row(4, "b")])

    relayed(act, outbox)
    assert sorted(n for batch in outbox.forgotten for n in batch) == [1, 2, 3]
    assert outbox.buried == []


def test_what_could_not_be_forgotten_goes_out_once_more() -> None:
    """With the next look: the store still has it."""
    outbox = Outbox(post(1))
    outbox.errors = 1

    async def act(relay: OutboxRelay, outbox: Outbox, _: Line) -> None:
        await relay.load(LEASES)
        await asyncio.sleep(5)
        assert outbox.forgotten == []
        await relay.reload(LEASES)

    assert relayed(act, outbox).sent == [1, 1]
    assert outbox.forgotten == [[1]]
