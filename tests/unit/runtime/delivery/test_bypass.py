"""When mail goes round the broker, and when it does no more: in virtual time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from actors._runtime.delivery.mail_service import AFTER_S, POLL_AGAIN_S, POLL_S, Bypass, Suspicion
from actors._runtime.delivery.outbox_relay import SLOW_S, OutboxRelay
from actors._runtime.loop.tasks import TaskScope
from actors.errors import BrokerError, PersistenceError
from tests.harness.simloop import SimLoop, simulate
from tests.unit.runtime.delivery.test_outbox_relay import LEASES, Line, post, row

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from actors._kernel.runtime.scheduler import ShardLease
    from actors._kernel.stores.transport import OutboxRow, OutboxStore
    from actors._runtime.worker.held_shards import HeldShards


class Rows:
    """An outbox from which rows are handed over; a row whose number is in `waits` cannot be, once."""

    def __init__(self, *rows: OutboxRow) -> None:
        self.rows, self.handed = list(rows), list[int]()
        self.waits: dict[int, list[bool | Exception]] = {}
        self.looks = 0
        self.errors = 0

    async def page(
        self, leases: Sequence[ShardLease], *, after: int, limit: int
    ) -> list[OutboxRow]:
        """All of it."""
        del leases, after, limit
        self.looks += 1
        if self.errors:
            self.errors -= 1
            raise PersistenceError("away")
        return list(self.rows)

    async def hand_over(self, row: OutboxRow) -> bool:
        """It is gone."""
        if outcomes := self.waits.get(row.n):
            outcome = outcomes.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome
        self.handed.append(row.n)
        self.rows = [r for r in self.rows if r.n != row.n]
        return True


def gone_round(
    act: Callable[[Bypass, OutboxRelay], Coroutine[None, None, None]], rows: Rows, doubts: list[str]
) -> Rows:
    """The rows, when `act` was done."""

    async def main(_: SimLoop) -> None:
        store = cast("OutboxStore", rows)
        relay = OutboxRelay(store, may_act=lambda: True, on_suspect=lambda: doubts.append("doubt"))
        held_shards = cast("HeldShards", SimpleNamespace(loaded=LEASES))
        bypass = Bypass(relay, store, held_shards)
        async with TaskScope() as tasks:
            tasks.start(bypass.run(), name="bypass")
            await act(bypass, relay)

    simulate(main, seed=1)
    return rows


def test_a_suspicion_is_waited_for_from_its_start() -> None:
    """Those that come later change nothing, and what ends it ends all of them."""
    doubt = Suspicion()
    assert doubt.left_s(5) is None
    doubt.begin(10)
    doubt.begin(10 + AFTER_S / 2)

    assert doubt.left_s(10) == AFTER_S
    assert doubt.left_s(10 + AFTER_S) == doubt.left_s(100) == 0
    doubt.end()
    assert doubt.left_s(100) is None


def test_while_the_broker_is_well_the_store_is_asked_nothing() -> None:
    """Nor for a doubt that is shorter than a second."""

    async def act(bypass: Bypass, _: OutboxRelay) -> None:
        await asyncio.sleep(3600)
        bypass.begin()
        bypass.refresh()
        await asyncio.sleep(AFTER_S * 0.9)
        bypass.end()
        await asyncio.sleep(3600)

    rows = gone_round(act, Rows(row(1)), [])
    assert (rows.looks, rows.handed) == (0, [])


def test_what_waits_and_what_comes_goes_round_in_order() -> None:
    """What is only for onlookers at the broker stays."""

    async def act(bypass: Bypass, relay: OutboxRelay) -> None:
        bypass.begin()
        await asyncio.sleep(AFTER_S + 0.1)
        assert bypass.is_open
        assert rows.handed == [1, 2]
        rows.rows += [row(5), post(6)]
        relay.add([row(5), post(6)])
        await asyncio.sleep(0.1)
        assert rows.handed == [1, 2, 5]

    rows = Rows(row(1), row(2), row(3, dead="exhausted"), post(4))
    doubts: list[str] = []
    gone_round(act, rows, doubts)
    assert [r.n for r in rows.rows] == [3, 4, 6]
    assert doubts == []


def test_nothing_to_hand_over_is_asked_for_now_and_then() -> None:
    """Less than once a second, however long it lasts; at once when shards are new."""

    async def act(bypass: Bypass, _: OutboxRelay) -> None:
        bypass.begin()
        await asyncio.sleep(AFTER_S + 60 * POLL_S + 1)
        assert rows.looks == 61
        rows.rows = [row(7)]
        bypass.refresh()
        await asyncio.sleep(0.1)
        assert rows.handed == [7]

    rows = Rows()
    gone_round(act, rows, [])


def test_what_has_to_wait_is_handed_over_again() -> None:
    """Its turn has not come, or the store is away; what its sender sent behind it waits for it."""

    async def act(bypass: Bypass, _: OutboxRelay) -> None:
        bypass.begin()
        await asyncio.sleep(AFTER_S + POLL_AGAIN_S + 5)

    rows = Rows(row(1), row(2), row(3, "b"))
    rows.errors = 1
    rows.waits = {1: [False, PersistenceError("away")]}
    assert gone_round(act, rows, []).handed == [3, 1, 2]


def test_when_the_broker_is_back_rows_go_there() -> None:
    """The way that ends closes no connection that was opened before."""
    line = Line()

    async def act(bypass: Bypass, relay: OutboxRelay) -> None:
        bypass.begin()
        await asyncio.sleep(AFTER_S + 0.1)
        async with TaskScope() as tasks:
            relay.open(line, tasks)
            bypass.end()
            await asyncio.sleep(0.1)
            assert not bypass.is_open
            relay.add([row(2)])
            await asyncio.sleep(5)

    assert gone_round(act, Rows(row(1)), []).handed == [1]
    assert line.sent == [2]


def test_a_connection_that_is_opened_once_more_is_not_used_twice_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What it had under way when mail went round it ends there, whenever that is."""
    line = Line()
    line.fails = {1: [BrokerError("no leader")]}

    async def act(bypass: Bypass, relay: OutboxRelay) -> None:
        async with TaskScope() as tasks:
            relay.open(line, tasks)
            relay.add([row(1), row(2)])
            await asyncio.sleep(0.5)
            relay.open(bypass, tasks, mail_only=True)
            relay.open(line, tasks)
            await asyncio.sleep(0.6)  # the first send has failed, and would be made again
            relay.add([row(3)])
            await asyncio.sleep(5)
            assert not relay.trouble
            assert line.sent == [3]
            assert (await relay.load(LEASES)) == set()
            relay.add([row(4)])
            await asyncio.sleep(5)

    gone_round(act, Rows(), [])
    assert line.sent == [3, 4]
    assert caplog.records == []


class Late:
    """A connection that takes so long, and then refuses so often."""

    def __init__(self, wait_s: float, refusals: int) -> None:
        self._wait_s, self._refusals = wait_s, refusals

    async def send(self, _: OutboxRow) -> int:
        """Publish."""
        await asyncio.sleep(self._wait_s)
        if self._refusals:
            self._refusals -= 1
            raise BrokerError("no room")
        return 1


@pytest.mark.parametrize(
    ("line", "count"), [(Late(SLOW_S * 0.9, 0), 0), (Late(SLOW_S * 1.1, 0), 1), (Late(0.1, 2), 2)]
)
def test_a_row_that_is_refused_or_not_taken_soon_is_a_suspicion(line: Late, count: int) -> None:
    """One that is taken is none."""

    async def act(_: Bypass, relay: OutboxRelay) -> None:
        async with TaskScope() as tasks:
            relay.open(line, tasks)
            relay.add([row(1)])
            await asyncio.sleep(5)

    doubts: list[str] = []
    gone_round(act, Rows(), doubts)
    assert len(doubts) == count
