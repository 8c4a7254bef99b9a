"""The contract of every `ScheduleStore`: stored schedules, due schedules, and ticks."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId
from actors._kernel.stores.schedule import Schedule, Tick, tick_message
from tests.conformance.bed import DESK

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from actors._kernel.runtime.rows import Arrived
    from actors._kernel.stores.schedule import Fired
    from tests.conformance.bed import Bed

CLERK = AgentId("clerk", "7")
OTHER = AgentId("desk", "1", "acme")


def plan(bed: Bed, name: str = "s", *, in_s: float | None = -1.0, **parts: Any) -> Schedule:
    """Return a schedule whose next tick is this far away; None: it has no more."""
    values: dict[str, Any] = {
        "agent_id": DESK,
        "payload": {"n": 1},
        "base_at": bed.in_s(-3600),
        "cron": "* * * * *",
        "next_at": None if in_s is None else bed.in_s(in_s),
        **parts,
    }
    return Schedule(name=name, **values)


async def put_schedule(bed: Bed, name: str = "s", **parts: Any) -> Schedule:
    """Write a schedule and return it."""
    schedule = await bed.store.schedules.put(plan(bed, name, **parts), expected=None)
    assert schedule is not None
    return schedule


async def fire(bed: Bed, *ticks: Tick) -> Fired:
    """Fire ticks with this host's leases."""
    return await bed.store.schedules.fire(list(bed.leases.values()), ticks)


def on(schedule: Schedule, next_at: datetime | None = None, *, is_sent: bool = True) -> Tick:
    """Return the schedule with its next tick."""
    assert schedule.next_at is not None
    return Tick(schedule, schedule.next_at, next_at, is_sent=is_sent)


async def waiting(bed: Bed, agent: AgentId = DESK) -> list[Arrived]:
    """Return the agent's pending messages."""
    return await bed.store.backlog.pending_mail(agent=agent)


async def due(bed: Bed, within_s: float = 10, limit: int = 1000) -> list[str]:
    """Return the names of due schedules."""
    schedules = await bed.store.schedules.due(bed.shards, within_s=within_s, limit=limit)
    return [s.schedule.name for s in schedules]


async def test_a_schedule_comes_back_as_it_was_written(bed: Bed) -> None:
    """All its fields, for any payload, with a revision of its own."""
    full = plan(
        bed,
        timezone="Europe/Berlin",
        catch_up="all",
        is_paused=True,
        last_at=bed.in_s(-7200),
        payload={"b": [1.0, None], "a": "\u00e9\U0001f600"},
        agent_id=OTHER,
    )
    single = plan(bed, "once", cron=None, at=bed.in_s(60), in_s=60)
    written_schedules = [await bed.store.schedules.put(s, expected=None) for s in (full, single)]
    stored_schedules = [
        await bed.store.schedules.get("acme", "s"),
        await bed.store.schedules.get("default", "once"),
    ]

    assert stored_schedules == written_schedules
    assert [replace(s, revision=0) for s in stored_schedules if s] == [full, single]
    assert await bed.store.schedules.get("default", "s") is None


async def test_a_name_is_one_tenants(bed: Bed) -> None:
    """Two tenants may use the same name. Lists are by tenant and name, in pages."""
    for name in ("b", "a"):
        for agent in (DESK, OTHER):
            await put_schedule(bed, name, agent_id=agent)
    every = await bed.store.schedules.find()
    page = await bed.store.schedules.find(after=("acme", "a"), limit=2)
    ours = await bed.store.schedules.find(tenant="default")

    names = [(s.tenant, s.name) for s in every]
    assert names == [("acme", "a"), ("acme", "b"), ("default", "a"), ("default", "b")]
    assert (page, ours) == (every[1:3], every[2:])


async def test_a_write_in_place_of_another_revision_changes_nothing(bed: Bed) -> None:
    """Of two writers that read the same schedule one succeeds. No schedule is created twice or restored."""
    first = await put_schedule(bed)
    second = await bed.store.schedules.put(replace(first, payload=2), expected=first.revision)
    assert second is not None
    assert await bed.store.schedules.put(first, expected=None) is None
    assert await bed.store.schedules.put(first, expected=first.revision) is None
    assert await bed.store.schedules.get("default", "s") == second
    assert await bed.store.schedules.delete("default", "s")
    assert not await bed.store.schedules.delete("default", "s")
    assert await bed.store.schedules.put(second, expected=second.revision) is None
    again = await put_schedule(bed)
    assert again.revision not in (first.revision, second.revision)


async def test_the_owner_is_notified_of_a_schedule_that_another_process_wrote(bed: Bed) -> None:
    """The nudge names the agent."""
    bed.needs("nudges")
    nudges: asyncio.Queue[Nudge] = asyncio.Queue()
    bed.store.set_nudge_hook(nudges.put_nowait)
    async with bed.rival() as rival:
        await put_schedule(rival)
        async with asyncio.timeout(10):
            while (nudge := await nudges.get()).kind != "schedule":
                pass

    assert nudge.agent_id == DESK


async def test_due_are_active_schedules_of_these_shards_earliest_first(bed: Bed) -> None:
    """With the seconds left. Paused, done and distant schedules and those of other hosts are not due."""
    await put_schedule(bed, "soon", in_s=5)
    await put_schedule(bed, "late", in_s=-5)
    await put_schedule(bed, "far", in_s=60)
    await put_schedule(bed, "paused", is_paused=True)
    await put_schedule(bed, "done", in_s=None)
    due_schedules = await bed.store.schedules.due(bed.shards, within_s=10)

    assert [d.schedule.name for d in due_schedules] == ["late", "soon"]
    assert [d.in_s for d in due_schedules] == pytest.approx([-5, 5], abs=4)
    assert await due(bed, limit=1) == ["late"]
    assert await due(bed, within_s=100) == ["late", "soon", "far"]
    assert await bed.store.schedules.due([], within_s=100) == []


async def test_a_schedule_belongs_to_the_shard_its_agent_has_then(fresh_bed: Bed) -> None:
    """A schedule written before its type was declared is due for the host that serves the type later."""
    await put_schedule(fresh_bed)
    await fresh_bed.claim()
    others = [s for s in fresh_bed.shards if s != fresh_bed.store.shards.shard_of(DESK)]

    assert await due(fresh_bed) == ["s"]
    if others:
        assert await fresh_bed.store.schedules.due(others, within_s=10) == []


async def test_zoned_are_active_cron_schedules_of_other_zones_than_utc(bed: Bed) -> None:
    """In pages by tenant and name."""
    for name in ("b", "a", "c"):
        await put_schedule(bed, name, timezone="Europe/Berlin")
    await put_schedule(bed, "utc")
    await put_schedule(bed, "once", cron=None, at=bed.in_s(5), in_s=5)
    await put_schedule(bed, "paused", timezone="Europe/Berlin", is_paused=True)
    store = bed.store.schedules
    schedules = await store.zoned(bed.shards)
    page = await store.zoned(bed.shards, after=("default", "a"), limit=1)

    assert [s.name for s in schedules] == ["a", "b", "c"]
    assert page == schedules[1:2]
    assert await store.zoned([]) == []


async def test_firing_writes_the_message_and_moves_the_schedule_on(bed: Bed) -> None:
    """The message has the tick's time, and its id is derived from the tick."""
    schedule = await put_schedule(bed)
    later = bed.in_s(3600)
    fired = await fire(bed, on(schedule, later))
    [item] = await waiting(bed)
    stored = await bed.store.schedules.get("default", "s")

    assert stored is not None
    assert schedule.next_at is not None
    assert (stored.last_at, stored.next_at) == (schedule.next_at, later)
    assert fired.moved_count == 1
    assert [a.arrival for a in fired.arrived] == [item.arrival]
    assert (item.sender, item.message.payload) == ("schedule:s", {"n": 1})
    assert item.message == tick_message(schedule, schedule.next_at)
    assert item.message.metadata == {"scheduled_at": schedule.next_at.isoformat()}
    assert await bed.store.backlog.who_has_mail(bed.shards) == [(item.agent_id, item.arrival)]


async def test_a_firing_sent_again_fires_nothing_twice_and_tells_what_waits(bed: Bed) -> None:
    """After a lost answer the message is returned again. Once it was taken it is not."""
    tick = on(await put_schedule(bed), bed.in_s(3600))
    first = await fire(bed, tick)
    again = await fire(bed, tick)

    assert (first.moved_count, again.moved_count) == (1, 0)
    assert [a.arrival for a in first.arrived] == [a.arrival for a in again.arrived]
    assert len(await waiting(bed)) == 1


async def test_a_last_tick_leaves_the_schedule_done(bed: Bed) -> None:
    """It is kept until it is old enough to be deleted."""
    await fire(bed, on(await put_schedule(bed, cron=None, at=bed.in_s(-1), in_s=-1)))
    stored = await bed.store.schedules.get("default", "s")
    assert stored is not None
    assert (stored.state, await due(bed)) == ("done", [])
    assert await bed.store.schedules.forget_done(older_than_s=60) == 0
    await fire(bed, on(await put_schedule(bed, "old", cron=None, at=bed.in_s(-100), in_s=-100)))
    assert await bed.store.schedules.forget_done(older_than_s=60) == 1
    assert [s.name for s in await bed.store.schedules.find()] == ["s"]


async def _early(bed: Bed) -> Tick:
    return on(await put_schedule(bed, in_s=30), bed.in_s(60))


async def _changed(bed: Bed) -> Tick:
    read = await put_schedule(bed)
    await bed.store.schedules.put(replace(read, payload=2), expected=read.revision)
    return on(read, bed.in_s(60))


async def _deleted(bed: Bed) -> Tick:
    read = await put_schedule(bed)
    await bed.store.schedules.delete("default", "s")
    return on(read, bed.in_s(60))


async def _made_anew(bed: Bed) -> Tick:
    tick = await _deleted(bed)
    await bed.store.schedules.put(tick.schedule, expected=None)
    return tick


@pytest.mark.parametrize("make", [_early, _changed, _deleted, _made_anew])
async def test_a_tick_that_is_not_there_yet_or_not_any_more_does_nothing(
    bed: Bed, make: Callable[[Bed], Awaitable[Tick]]
) -> None:
    """Other ticks of the same call are fired."""
    bad = await make(bed)
    good = on(await put_schedule(bed, "good", agent_id=CLERK), bed.in_s(60))
    before = await bed.store.schedules.get("default", "s")
    fired = await fire(bed, bad, good)

    assert (fired.moved_count, [a.agent_id for a in fired.arrived]) == (1, [CLERK])
    assert await bed.store.schedules.get("default", "s") == before
    assert await waiting(bed) == []


async def test_who_lost_the_shard_fires_nothing(bed: Bed) -> None:
    """The new owner fires. Its message is not returned to the former owner."""
    tick = on(await put_schedule(bed), bed.in_s(60))
    async with bed.rival() as rival:
        await bed.lose_to(rival)
        assert await fire(bed, tick) == replace(await fire(bed, tick), moved_count=0, arrived=())
        assert (await fire(rival, tick)).moved_count == 1
        late = await fire(bed, tick)

    assert (late.moved_count, late.arrived) == (0, ())
    assert len(await waiting(bed)) == 1


async def test_two_hosts_that_fire_the_same_tick_send_one_message(bed: Bed) -> None:
    """Also concurrently, and if they compute different next ticks."""
    schedule = await put_schedule(bed)
    done = await asyncio.gather(*(fire(bed, on(schedule, bed.in_s(60 + n))) for n in range(8)))

    assert sum(outcome.moved_count for outcome in done) == 1
    assert len(await waiting(bed)) == 1


async def test_a_schedule_is_moved_without_a_message(bed: Bed) -> None:
    """Also one with a distant tick, if its time zone has new rules."""
    schedule = await put_schedule(bed, in_s=3000)
    later = bed.in_s(6600)
    fired = await fire(bed, on(schedule, later, is_sent=False))
    stored = await bed.store.schedules.get("default", "s")

    assert stored is not None
    assert (fired.moved_count, fired.arrived) == (1, ())
    assert (stored.next_at, stored.last_at) == (later, None)
    assert await waiting(bed) == []


async def test_many_are_fired_in_one_call(bed: Bed) -> None:
    """Each agent gets its own message, in the order of the call."""
    schedules = [
        await put_schedule(bed, f"s{n}", agent_id=AgentId("desk", str(n % 7)), payload=n)
        for n in range(50)
    ]
    fired = await fire(bed, *(on(s, bed.in_s(60)) for s in schedules))
    got = [a.message.payload for n in range(7) for a in await waiting(bed, AgentId("desk", str(n)))]

    assert fired.moved_count == len(fired.arrived) == 50
    assert got == [n for key in range(7) for n in range(key, 50, 7)]


async def test_the_clock_of_the_store_is_told(bed: Bed) -> None:
    """Schedules are due by this clock."""
    now = await bed.store.schedules.now()

    assert abs(now - bed.clock.now()) < timedelta(seconds=5)
