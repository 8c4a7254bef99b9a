"""Schedules on every bed: when they fire, which message they send, and how they are changed."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.ids import HostIncarnation
from actors._kernel.stores.schedule import Tick
from actors.errors import InvalidScheduleError, ScheduleExistsError, UnknownScheduleError
from tests.behaviour.agents import Acting

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors._kernel.agent.message import Message
    from actors._kernel.stores.schedule import Schedule
    from actors._runtime import RunContext
    from actors._runtime.schedules.api import Schedules
    from tests.behaviour.bed import Bed

EVERY_SECOND = "* * * * * *"
NEVER = "0 0 29 2 *"


class Recorder:
    """The messages that an agent got, with their instants."""

    def __init__(self, bed: Bed) -> None:
        self.bed = bed
        self.messages: list[Message] = []
        self.at: list[datetime] = []

    async def __call__(self, ctx: RunContext, inbox: list[Message]) -> None:
        """Record an inbox."""
        del ctx
        self.messages += inbox
        self.at += [self.bed.clock.now()] * len(inbox)

    @property
    def payloads(self) -> list[Any]:
        """Return the payloads of the messages."""
        return [message.payload for message in self.messages]

    @property
    def ticks(self) -> list[str]:
        """Return the ticks for which the messages were sent."""
        return [message.metadata["scheduled_at"] for message in self.messages]


def late_s(bed: Bed) -> float:
    """Return the additional seconds that a test on a busy machine needs."""
    return 0 if bed.backend == "memory" else 3


def names(bed: Bed) -> Callable[[str], str]:
    """Return names that no other test of the folder has."""
    return lambda name: f"{bed._prefix}.{name}"


async def overdue(bed: Bed, schedule: Schedule, by_s: float) -> Schedule:
    """Set the schedule's tick to this long ago, as after an outage."""
    at = (await bed.runtime.store.schedules.now()) - timedelta(seconds=by_s)
    old = replace(schedule, next_at=at, base_at=at - timedelta(seconds=1), at=schedule.at and at)
    stored_schedule = await bed.runtime.store.schedules.put(old, expected=schedule.revision)
    assert stored_schedule is not None
    return stored_schedule


def api(bed: Bed) -> Schedules:
    """Return the calls under test."""
    return bed.runtime.schedules


async def test_a_delayed_message_arrives_once_and_never_early(bed: Bed) -> None:
    """With its payload, from the schedule's own sender; the schedule is done then."""
    recorder, name = Recorder(bed), names(bed)("one")
    agent = await bed.serve(recorder)
    schedule = await api(bed).create(name, agent, {"n": 1}, delay_s=0.3)
    await bed.until(lambda: recorder.messages)
    stored_schedule = await api(bed).get(name)

    assert schedule.next_at is not None
    assert recorder.at[0] >= schedule.next_at
    assert (recorder.payloads, recorder.messages[0].sender) == ([{"n": 1}], f"schedule:{name}")
    assert recorder.ticks == [schedule.next_at.isoformat()]
    assert (stored_schedule.state, stored_schedule.last_at) == ("done", schedule.next_at)


async def test_an_instant_far_away_is_kept_until_then_by_the_hosts_that_are_up(bed: Bed) -> None:
    """The host that read it crashes; the next one fires it, not before its time."""
    recorder, name = Recorder(bed), names(bed)("later")
    agent = await bed.serve(recorder)
    at = (await bed.runtime.store.schedules.now()) + timedelta(seconds=1 + late_s(bed))
    await api(bed).create(name, agent, 1, at=at)
    await bed.restart()
    await bed.until(lambda: recorder.messages)

    assert recorder.at[0] >= at
    assert recorder.payloads == [1]


async def test_a_cron_schedule_fires_every_tick_in_order(bed: Bed) -> None:
    """Each second has its own message; none is doubled, none is missing."""
    recorder, name = Recorder(bed), names(bed)("tick")
    agent = await bed.serve(recorder)
    busy: Any = {} if bed.backend == "memory" else {"catch_up": "all"}
    await api(bed).create(name, agent, cron=EVERY_SECOND, **busy)
    await bed.until(lambda: len(recorder.messages) >= 3)
    await api(bed).delete(name)

    ticks = [datetime.fromisoformat(tick) for tick in recorder.ticks]
    assert all(at >= tick for at, tick in zip(recorder.at, ticks, strict=True))
    assert {b - a for a, b in itertools.pairwise(ticks)} == {timedelta(seconds=1)}


async def test_ticks_missed_in_an_outage_send_one_message(bed: Bed) -> None:
    """It is for the first missed tick; the next one is in the future."""
    recorder, name = Recorder(bed), names(bed)("missed")
    agent = await bed.serve(recorder)
    schedule = await api(bed).create(name, agent, cron=NEVER)
    await bed.crash()
    async with bed.open_store(HostIncarnation(f"{bed._prefix}-operator")) as store:
        at = (await store.schedules.now()) - timedelta(days=3)
        old = replace(schedule, cron="0 * * * *", next_at=at, base_at=at - timedelta(hours=1))
        assert await store.schedules.put(old, expected=schedule.revision)
    await bed.start()
    await bed.until(lambda: recorder.messages)
    stored_schedule = await api(bed).get(name)

    assert recorder.ticks == [at.isoformat()]
    assert stored_schedule.next_at is not None
    assert stored_schedule.next_at > await bed.runtime.store.schedules.now()
    assert stored_schedule.last_at == at


async def test_with_catch_up_all_each_missed_tick_sends_a_message(bed: Bed) -> None:
    """In order, and then the plan continues."""
    recorder, name = Recorder(bed), names(bed)("all")
    agent = await bed.serve(recorder)
    schedule = await api(bed).create(name, agent, cron=NEVER, catch_up="all")
    at = (await bed.runtime.store.schedules.now()).replace(microsecond=0) - timedelta(days=2)
    old = replace(schedule, cron="0 0 * * *", next_at=at, base_at=at)
    await bed.runtime.store.schedules.put(old, expected=schedule.revision)
    await bed.until(lambda: len(recorder.messages) >= 3)
    stored_schedule = await api(bed).get(name)

    midnights = [at.replace(hour=0, minute=0, second=0) + timedelta(days=n) for n in (1, 2)]
    assert recorder.ticks == [tick.isoformat() for tick in (at, *midnights)]
    assert stored_schedule.next_at == midnights[-1] + timedelta(days=1)


async def test_a_message_of_a_schedule_starts_a_run_and_is_received_by_one_that_waits(
    bed: Bed,
) -> None:
    """Like any other message."""
    got: list[Any] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        got.extend(m.payload for m in inbox)
        second = await ctx.receive()
        assert second is not None
        got.append(second.payload)

    name = names(bed)
    agent = await bed.serve(act)
    run_id = await bed.submit(agent, "first")
    await api(bed).create(name("mail"), agent, "second", delay_s=0.2)
    await bed.ended(run_id)

    assert got[-2:] == ["first", "second"]


async def test_a_schedule_written_by_another_process_fires_at_its_time(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner is notified, and does not wait for its next poll."""
    monkeypatch.setattr("actors._runtime.schedules.ticker.POLL_S", 600.0)
    await bed.restart()
    recorder, name = Recorder(bed), names(bed)("client")
    agent = await bed.serve(recorder)
    await asyncio.sleep(0.1)  # it has polled
    async with bed.client() as client:
        schedule = await client.schedules.create(name, agent, delay_s=0.2)
        await bed.until(lambda: recorder.messages)

    assert schedule.next_at is not None
    assert recorder.at[0] >= schedule.next_at


async def test_a_tick_for_an_agent_that_no_host_serves_comes_once_a_host_does(bed: Bed) -> None:
    """It was written before any host served its type; no tick is lost."""
    recorder, name, agent = Recorder(bed), names(bed), bed.name()
    await api(bed).create(name("one"), agent, "one", delay_s=0)
    schedule = await api(bed).create(name("cron"), agent, "cron", cron=NEVER)
    await overdue(bed, schedule, by_s=60)
    await bed.runtime.register(Acting(agent, recorder))
    await bed.until(lambda: len(recorder.messages) >= 2)

    assert sorted(recorder.payloads) == ["cron", "one"]


async def test_a_tick_whose_zone_has_new_rules_is_moved_before_it_fires(bed: Bed) -> None:
    """A new owner checks the ticks that were planned with an older zone database."""
    recorder, name = Recorder(bed), names(bed)("zone")
    agent = await bed.serve(recorder)
    schedule = await api(bed).create(name, agent, cron="30 3 1 1 *", timezone="Europe/Berlin")
    assert schedule.next_at is not None
    off = replace(schedule, next_at=schedule.next_at + timedelta(hours=1))
    assert await bed.runtime.store.schedules.put(off, expected=schedule.revision)
    await bed.restart()

    async with asyncio.timeout(20):
        while (await api(bed).get(name)).next_at != schedule.next_at:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert recorder.messages == []
    assert (await api(bed).get(name)).last_at is None


async def test_a_schedule_that_this_host_cannot_read_harms_no_other(bed: Bed) -> None:
    """Its zone is not in the host's database: it stays due, and the others fire."""
    recorder, name = Recorder(bed), names(bed)
    agent = await bed.serve(recorder)
    schedule = await api(bed).create(name("bad"), agent, "bad", cron=NEVER)
    at = (await bed.runtime.store.schedules.now()) - timedelta(seconds=1)
    odd = replace(schedule, timezone="Mars/Olympus", next_at=at, base_at=at)
    await bed.runtime.store.schedules.put(odd, expected=schedule.revision)
    await api(bed).create(name("good"), agent, "good", delay_s=0.1)
    await bed.until(lambda: recorder.messages)
    stored_schedule = await api(bed).get(name("bad"))
    await api(bed).delete(name("bad"))

    assert recorder.payloads == ["good"]
    assert (stored_schedule.next_at, stored_schedule.last_at) == (at, None)


async def test_creating_a_schedule_again_changes_nothing(bed: Bed) -> None:
    """Same values, same schedule. A delay counts from the first call, also after it has passed."""
    recorder, name = Recorder(bed), names(bed)
    agent = await bed.serve(recorder)
    for parts in ({"cron": NEVER, "timezone": "Europe/Berlin"}, {"delay_s": 0.05}):
        key = name(next(iter(parts)))
        first = await api(bed).create(key, agent, {"a": 1}, **parts)
        again = await api(bed).create(key, agent, {"a": 1}, **parts)
        assert first.next_at is not None
        assert (first.next_at, first.base_at) == (again.next_at or first.next_at, again.base_at)
    await bed.until(lambda: recorder.messages)
    await api(bed).create(name("delay_s"), agent, {"a": 1}, delay_s=0.05)

    assert len(recorder.messages) == 1


async def test_another_schedule_of_the_same_name_is_refused_and_the_difference_named(
    bed: Bed,
) -> None:
    """Unless `replace` is given: then values that are not new stay as they were."""
    agent, name = await bed.serve(Recorder(bed)), names(bed)("same")
    schedule = await api(bed).create(name, agent, 1, cron=NEVER)
    with pytest.raises(ScheduleExistsError, match="payload: 1 there / 2 wanted") as caught:
        await api(bed).create(name, agent, 2, cron=NEVER)
    assert caught.value.differences == ["payload: 1 there / 2 wanted"]
    await api(bed).pause(name)
    new = await api(bed).create(name, agent, 2, cron=NEVER, replace=True)
    assert (new.payload, new.next_at, new.is_paused) == (2, schedule.next_at, True)
    moved = await api(bed).create(name, agent, 2, cron="0 0 * * *", replace=True)
    assert moved.next_at is not None
    assert schedule.next_at is not None
    assert moved.next_at < schedule.next_at


async def test_a_paused_schedule_fires_nothing_until_it_is_resumed(bed: Bed) -> None:
    """Then its next tick is in the future; ticks of the pause are dropped."""
    recorder, name = Recorder(bed), names(bed)("pause")
    agent = await bed.serve(recorder)
    await api(bed).create(name, agent, cron="0 0 * * *")
    paused = await api(bed).pause(name)
    await overdue(bed, paused, by_s=86_400)
    assert await api(bed).pause(name) == await api(bed).get(name)
    resumed = await api(bed).resume(name)

    assert resumed.next_at is not None
    assert resumed.next_at > await bed.runtime.store.schedules.now()
    assert (resumed.state, recorder.messages) == ("active", [])
    assert await api(bed).resume(name) == resumed


async def test_a_single_message_whose_time_passed_in_a_pause_comes_when_it_is_resumed(
    bed: Bed,
) -> None:
    """A delayed message is not lost by a pause."""
    recorder, name = Recorder(bed), names(bed)("pause-one")
    agent = await bed.serve(recorder)
    await api(bed).create(name, agent, "late", delay_s=3600)
    await overdue(bed, await api(bed).pause(name), by_s=1)
    await api(bed).resume(name)
    await bed.until(lambda: recorder.messages)

    assert recorder.payloads == ["late"]


async def test_trigger_sends_at_once_beside_the_plan_and_once_per_request(bed: Bed) -> None:
    """Paused or not; the next tick stays as it was."""
    recorder, name = Recorder(bed), names(bed)("trigger")
    agent = await bed.serve(recorder)
    schedule = await api(bed).create(name, agent, "now", cron=NEVER)
    sent = [await api(bed).trigger(name, request_id="r1") for _ in range(2)]
    await api(bed).pause(name)
    async with bed.client() as client:
        sent += [await client.schedules.trigger(name, request_id="r2")]
    sent += [await api(bed).trigger(name), await api(bed).trigger(name)]
    await bed.until(lambda: len(recorder.messages) >= 4)

    assert sent == [True, False, True, True, True]
    assert recorder.payloads == ["now"] * 4
    assert (await api(bed).get(name)).next_at == schedule.next_at


async def test_a_deleted_schedule_does_not_fire(bed: Bed) -> None:
    """It does not fire, it is not listed, and each call raises that it is unknown."""
    recorder, name = Recorder(bed), names(bed)("gone")
    agent = await bed.serve(recorder)
    await api(bed).create(name, agent, delay_s=0.2 + late_s(bed))
    await api(bed).delete(name)
    calls = (api(bed).get, api(bed).pause, api(bed).resume, api(bed).trigger, api(bed).delete)
    for call in calls:
        with pytest.raises(UnknownScheduleError, match=r"'default' has no schedule"):
            await call(name)
    last = await api(bed).create(names(bed)("after"), agent, "after", delay_s=0.4 + late_s(bed))
    await bed.until(lambda: recorder.messages)

    assert recorder.payloads == ["after"]
    listed_names = [schedule.name for schedule in await api(bed).list(tenant="default")]
    assert last.name in listed_names
    assert name not in listed_names


async def test_changes_at_the_same_moment_all_count(bed: Bed) -> None:
    """Concurrent pauses, resumes and replacements of one schedule lose no change."""
    agent, name = await bed.serve(Recorder(bed)), names(bed)("race")
    await api(bed).create(name, agent, 0, cron=NEVER)

    async def change(n: int) -> None:
        if n % 2:
            await api(bed).pause(name)
        else:
            await api(bed).create(name, agent, n, cron=NEVER, replace=True)

    await asyncio.gather(*(change(n) for n in range(8)))
    stored_schedule = await api(bed).get(name)

    assert stored_schedule.is_paused
    assert stored_schedule.payload in (0, 2, 4, 6)


async def test_a_tick_fired_with_an_old_reading_does_nothing(bed: Bed) -> None:
    """For example by a host that read the schedule before a change."""
    recorder, name = Recorder(bed), names(bed)("stale")
    agent = await bed.serve(recorder)
    schedule = await api(bed).create(name, agent, 1, cron=NEVER)
    await api(bed).pause(name)
    leases = bed.runtime._host.worker.held.leases
    fired = await bed.runtime.store.schedules.fire(
        leases, [Tick(schedule, schedule.base_at, schedule.next_at)]
    )

    assert fired.moved_count == 0


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "one of cron, at and delay_s"),
    ({"cron": NEVER, "delay_s": 1}, "one of cron, at and delay_s"),
    ({"cron": "61 * * * *"}, r"'61 \* \* \* \*' is not valid \(bad minute\)"),
    ({"cron": "every day"}, "wrong number of fields"),
    ({"cron": "0 0 30 2 *"}, "bad day-of-month"),
    ({"cron": NEVER, "timezone": "Europe/Atlantis"}, "Europe/Atlantis.*not known here"),
    ({"cron": NEVER, "timezone": "../etc/passwd"}, "not known here"),
    ({"cron": NEVER, "catch_up": "none"}, "'one' or 'all'"),
    ({"at": datetime(2001, 1, 1, tzinfo=UTC)}, "2001-01-01T00:00:00.* has passed"),
    ({"at": datetime(2101, 1, 1)}, "no offset from UTC"),  # noqa: DTZ001 - that is what is refused
    ({"at": datetime(2101, 1, 1, tzinfo=UTC), "timezone": "Europe/Berlin"}, "for cron"),
    ({"delay_s": -1}, "give 0 or more"),
    ({"delay_s": float("nan")}, "give 0 or more"),
    ({"delay_s": 1e18}, "too long"),
]


@pytest.mark.parametrize(("parts", "problem"), BAD)
async def test_invalid_schedules_are_refused(bed: Bed, parts: dict[str, Any], problem: str) -> None:
    """At the call, with the reason; nothing is written."""
    agent, name = await bed.serve(Recorder(bed)), names(bed)("bad")
    with pytest.raises(InvalidScheduleError, match=problem):
        await api(bed).create(name, agent, **parts)

    assert await bed.runtime.store.schedules.get("default", name) is None
