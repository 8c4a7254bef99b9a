"""Limits over hosts: slots never exceed the limit, shares are fair, buckets fill by the clock."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from actors._kernel.stores.limits import Claim, Limit, LimitScope
from tests.conformance.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors._kernel.stores.limits import Grant
    from tests.conformance.bed import Bed

DESK, CLERK = LimitScope.parse("type:desk"), LimitScope.parse("type:clerk")


@dataclass(frozen=True)
class Host:
    """One live host."""

    bed: Bed

    @classmethod
    async def of(cls, bed: Bed) -> Host:
        """Return a host whose lease has just started."""
        await bed.store.shards.heartbeat(bed.owner, ())
        return cls(bed)

    async def claim(
        self, held_count: int, wanted_count: int, starts: int = 0, scope: LimitScope = DESK
    ) -> Grant:
        """Return the answer to one claim."""
        claim = Claim(scope=scope, held=held_count, wanted=wanted_count, starts=starts)
        [grant] = await self.bed.store.limits.exchange(self.bed.owner, [claim])
        return grant


@asynccontextmanager
async def two_hosts(bed: Bed) -> AsyncIterator[tuple[Host, Host]]:
    """Return the bed's host and another one, both alive."""
    async with bed.rival() as rival:
        yield await Host.of(bed), await Host.of(rival)


async def pass_time(bed: Bed, seconds: float) -> None:
    """Advance the store's time by this much."""
    if isinstance(bed.clock, ManualClock):
        bed.clock.advance(seconds)
    else:
        await asyncio.sleep(seconds)


@pytest.mark.item(218)
async def test_a_limit_is_kept_as_it_was_set_until_it_is_replaced_or_deleted(bed: Bed) -> None:
    """Setting it again replaces all its values. A scope without a limit gets no answer."""
    limits = bed.store.limits
    first = Limit(scope=DESK, max_concurrent=5, rate_per_s=2.5, burst=7)
    await limits.set(first)
    await limits.set(Limit(scope=CLERK, max_concurrent=0))
    assert [use.limit for use in await limits.list()] == [
        Limit(scope=CLERK, max_concurrent=0),
        first,
    ]
    second = Limit(scope=DESK, rate_per_s=3)
    await limits.set(second)
    assert await limits.delete(CLERK)
    assert not await limits.delete(CLERK)

    [use] = await limits.list()
    assert (use.limit.scope, use.limit.max_concurrent, use.limit.most_starts) == (DESK, None, 3)
    assert await limits.exchange(bed.owner, [Claim(scope=CLERK, wanted=1)]) == []


@pytest.mark.item(218)
async def test_slots_are_never_more_than_the_limit_and_free_ones_go_to_hosts_that_want_them(
    bed: Bed,
) -> None:
    """One host has all six slots. The other host gets exactly those that it releases."""
    await bed.store.limits.set(Limit(scope=DESK, max_concurrent=6))
    async with two_hosts(bed) as (first, second):
        assert (await first.claim(0, 6)).held == 6
        refused = await second.claim(0, 4)
        assert (refused.held, refused.contended) == (0, False)
        grant = await first.claim(6, 6)
        assert (grant.held, grant.share, grant.contended) == (6, 3, True)
        assert (await first.claim(3, 3)).held == 3
        assert (await second.claim(0, 4)).held == 3

        [use] = await bed.store.limits.list()
        assert (use.held, use.wanting, use.hosts) == (6, 1, 2)


async def test_saying_the_same_again_changes_nothing(bed: Bed) -> None:
    """After a lost answer the host repeats its claim and gets the same slots."""
    await bed.store.limits.set(Limit(scope=DESK, max_concurrent=5))
    host = await Host.of(bed)
    assert (await host.claim(0, 3)).held == 3
    assert (await host.claim(0, 3)).held == 3

    assert (await bed.store.limits.list())[0].held == 3


@pytest.mark.item(218)
async def test_where_hosts_want_more_than_there_is_each_has_its_share(bed: Bed) -> None:
    """Of ten slots: wants of 2 and 100 get 2 and 8; two wants of 100 get 5 and 5."""
    await bed.store.limits.set(Limit(scope=DESK, max_concurrent=10))
    async with two_hosts(bed) as (first, second):
        await second.claim(0, 2)
        assert (await first.claim(0, 100)).held == 8
        assert (await second.claim(2, 100)).share == 5
        assert (await first.claim(8, 100)).share == 5
        assert (await first.claim(5, 100)).held == 5, "what is free is not taken back by who had it"
        assert (await second.claim(2, 100)).held == 5


@pytest.mark.item(218)
async def test_a_single_slot_goes_from_host_to_host(bed: Bed) -> None:
    """The other host gets it after 100 ms."""
    await bed.store.limits.set(Limit(scope=DESK, max_concurrent=1))
    async with two_hosts(bed) as hosts:
        holders = []
        holder, waiter = hosts
        for _ in range(4):
            begun = time.monotonic()
            assert (await holder.claim(0, 9)).held == 1
            share = (await holder.claim(1, 9)).share
            assert share == 1 or time.monotonic() - begun > 0.1, "its turn has just begun"
            assert (await waiter.claim(0, 9)).held == 0
            await pass_time(bed, 0.15)
            assert (await holder.claim(1, 9)).share == 0
            assert (await holder.claim(0, 9)).held == 0, "it is the other's turn"
            holders.append(holder.bed.owner)
            holder, waiter = waiter, holder

    assert len(set(holders)) == 2


@pytest.mark.item(218)
async def test_slots_of_a_dead_host_are_free(bed: Bed) -> None:
    """Once its lease has expired, and not before. A host without a lease gets none."""
    await bed.store.limits.set(Limit(scope=DESK, max_concurrent=2))
    async with two_hosts(bed) as (first, second):
        await first.claim(0, 2)
        assert (await second.claim(0, 2)).held == 0
        await bed.lapse()
        await second.bed.store.shards.heartbeat(second.bed.owner, ())

        assert (await second.claim(0, 2)).held == 2


async def test_what_is_above_a_lowered_limit_stays_until_it_is_given_back(bed: Bed) -> None:
    """No host gets a slot until fewer are held than the limit."""
    await bed.store.limits.set(Limit(scope=DESK, max_concurrent=4))
    async with two_hosts(bed) as (first, second):
        await first.claim(0, 4)
        await bed.store.limits.set(Limit(scope=DESK, max_concurrent=2))
        lowered = await first.claim(4, 4)
        assert (lowered.held, lowered.share) == (4, 2)
        assert (await second.claim(0, 1)).held == 0
        await first.claim(2, 2)
        assert (await second.claim(0, 1)).held == 0
        await first.claim(1, 1)

        assert (await second.claim(0, 1)).held == 1


@pytest.mark.item(218)
async def test_a_bucket_is_full_at_first_and_fills_by_the_clock(bed: Bed) -> None:
    """It has the burst, then fills by the rate up to the burst. Unused starts are returned."""
    await bed.store.limits.set(Limit(scope=DESK, rate_per_s=20, burst=5))
    host = await Host.of(bed)
    first = await host.claim(0, 0, starts=9)
    assert first.starts == 5
    assert 0 < first.next_start_s <= 1 / 20
    await host.claim(0, 0, starts=-2)
    again = await host.claim(0, 0, starts=2)
    assert again.starts == 2, "two were given back"
    await pass_time(bed, 0.21)
    later = await host.claim(0, 0, starts=100)

    assert 4 <= later.starts <= 5
    await pass_time(bed, 1.0)
    assert (await host.claim(0, 0, starts=100)).starts == 5, "a bucket holds its burst"


async def test_starts_are_divided_between_hosts_that_want_some(bed: Bed) -> None:
    """Of four new starts each of two hosts gets two, and then one: neither gets all."""
    await bed.store.limits.set(Limit(scope=DESK, rate_per_s=0.001, burst=10))
    async with two_hosts(bed) as (first, second):
        assert (await second.claim(0, 0, starts=4)).starts == 4
        assert (await second.claim(0, 0, starts=40)).starts == 6
        assert (await first.claim(0, 0, starts=40)).starts == 0
        await second.claim(0, 0, starts=-4)

        assert (await second.claim(0, 0, starts=4)).starts == 2
        await pass_time(bed, 0.01)
        assert (await first.claim(0, 0, starts=40)).starts == 1
        assert (await first.claim(0, 0, starts=40)).starts == 0, "the other one has waited longer"
        assert (await second.claim(0, 0, starts=1)).starts == 1


@pytest.mark.item(218)
async def test_others_are_notified_of_limits_and_of_slots(bed: Bed) -> None:
    """Of a changed limit, of a host that wants slots which others hold, and of slots released to it."""
    bed.needs("nudges")
    kinds: asyncio.Queue[str] = asyncio.Queue()
    other_kinds: asyncio.Queue[str] = asyncio.Queue()

    async def next_kind(queue: asyncio.Queue[str]) -> str:
        async with asyncio.timeout(10):
            while (kind := await queue.get()) not in ("limits", "slots"):
                pass
        return kind

    async with two_hosts(bed) as (first, second):
        first.bed.store.set_nudge_hook(lambda nudge: kinds.put_nowait(nudge.kind))
        second.bed.store.set_nudge_hook(lambda nudge: other_kinds.put_nowait(nudge.kind))
        await second.bed.store.limits.set(Limit(scope=DESK, max_concurrent=1))
        assert await next_kind(kinds) == "limits"
        await first.claim(0, 1)
        await second.claim(0, 1)
        assert await next_kind(kinds) == "slots"
        await first.claim(0, 0)
        await first.bed.store.limits.delete(DESK)

        own = [] if bed.backend == "memory" else ["limits", "slots"]
        for kind in (*own, "slots", "limits"):
            assert await next_kind(other_kinds) == kind
        for host in (first, second):
            host.bed.store.set_nudge_hook(None)
