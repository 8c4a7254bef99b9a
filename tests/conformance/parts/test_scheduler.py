"""The contract of every `Scheduler`."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors._kernel.runtime.waits import Wakeup
from actors._runtime.parts import InMemoryScheduler
from actors.errors import IllegalTransitionError, LeaseLostError, UnknownRunError
from tests.conformance.bed import DESK

if TYPE_CHECKING:
    from actors._kernel.runtime.scheduler import Lease, Scheduler
    from tests.conformance.source import Source

AT_ONCE = RetryPolicy(max_retries=2, backoff_s=0, jitter=0)
WORKER = "w1"


def new_run(scheduler: Scheduler, agent: AgentId = DESK) -> RunId:
    """A registered run."""
    run_id = RunId(uuid.uuid4().hex)
    scheduler.register_run(run_id, agent)
    return run_id


async def queued(scheduler: Scheduler, agent: AgentId = DESK, **parts: object) -> RunId:
    """A run that waits to be leased."""
    run_id = new_run(scheduler, agent)
    await scheduler.enqueue(run_id, **parts)  # type: ignore[arg-type]
    return run_id


async def leased(scheduler: Scheduler, agent: AgentId = DESK, **parts: object) -> Lease:
    """The lease of a fresh run."""
    await queued(scheduler, agent, **parts)
    (lease,) = await scheduler.lease(worker_id=WORKER, capacity=1)
    return lease


@pytest.mark.item(121, 148)
async def test_lower_priority_numbers_are_leased_first(source: Source) -> None:
    """And in order of arrival inside one priority."""
    scheduler = source.scheduler()
    runs = [await queued(scheduler, priority=p) for p in (9, 5, 1, 5, 1)]

    pending = await scheduler.pending_runs()
    leases = await scheduler.lease(worker_id=WORKER, capacity=10)

    expected = [runs[n] for n in (2, 4, 1, 3, 0)]
    assert pending == expected
    assert [lease.run_id for lease in leases] == expected


async def test_tenants_take_turns_whatever_their_priorities(source: Source) -> None:
    """A tenant with many urgent runs does not delay another's single run."""
    scheduler = source.scheduler()
    many = [await queued(scheduler, tenant="big", priority=0) for _ in range(4)]
    small_run = await queued(scheduler, tenant="small", priority=9)

    assert await scheduler.pending_runs() == [many[0], small_run, *many[1:]]
    assert await scheduler.pending_runs(tenant="small") == [small_run]


@pytest.mark.item(122, 204, 216, 217)
async def test_a_pending_run_is_not_queued_twice(source: Source) -> None:
    """However many causes come at once, it is leased once."""
    scheduler = source.scheduler()
    run_id = new_run(scheduler)

    wakes = [None, Wakeup(kind="message"), Wakeup(kind="signal", signal="go"), None, None]
    await asyncio.gather(*(scheduler.enqueue(run_id, wake=wake) for wake in wakes))

    leases = await scheduler.lease(worker_id=WORKER, capacity=5)
    assert [lease.run_id for lease in leases] == [run_id]
    assert await scheduler.lease(worker_id="w2", capacity=5) == []


@pytest.mark.item(205, 211, 212, 213, 215)
async def test_a_lease_names_its_run_and_is_handed_out_once(source: Source) -> None:
    """At most `capacity`, none of them to two workers that ask at once."""
    scheduler = source.scheduler()
    agents = {await queued(scheduler, AgentId("desk", str(n))): n for n in range(6)}

    first = await scheduler.lease(worker_id="w1", capacity=2)
    rest = await asyncio.gather(*(scheduler.lease(worker_id=f"w{n}", capacity=3) for n in range(3)))

    leases = [*first, *(lease for some in rest for lease in some)]
    assert len(first) == 2
    assert {lease.run_id for lease in leases} == set(agents)
    assert len(leases) == len(agents)
    assert all(lease.agent_id == AgentId("desk", str(agents[lease.run_id])) for lease in leases)
    assert {lease.attempt for lease in leases} == {1}
    assert all(lease.worker_id and lease.expires_at > source.clock.now() for lease in leases)


@pytest.mark.item(156, 157)
async def test_a_run_is_pending_until_it_is_leased(source: Source) -> None:
    """PENDING by enqueue, RUNNING by lease; an unknown one has no status."""
    scheduler = source.scheduler()
    run_id = await queued(scheduler)
    before = await scheduler.get_status(run_id)

    await scheduler.lease(worker_id=WORKER, capacity=1)

    assert before is RunStatus.PENDING
    assert await scheduler.get_status(run_id) is RunStatus.RUNNING
    assert await scheduler.get_status(RunId("0" * 32)) is None


@pytest.mark.item(150)
async def test_a_run_must_be_registered_before_it_is_queued(source: Source) -> None:
    """A leased run always has its agent."""
    with pytest.raises(UnknownRunError):
        await source.scheduler().enqueue(RunId("0" * 32))


@pytest.mark.item(160, 162, 165)
@pytest.mark.parametrize("status", [RunStatus.COMPLETED, RunStatus.CANCELLED])
async def test_an_ended_run_takes_part_no_more(source: Source, status: RunStatus) -> None:
    """It is not woken, not queued, and its lease is worth nothing."""
    scheduler = source.scheduler()
    lease = await leased(scheduler)

    await scheduler.release(lease, status=status)

    with pytest.raises(IllegalTransitionError):
        await scheduler.enqueue(lease.run_id)
    with pytest.raises(LeaseLostError):
        await scheduler.release(lease, status=RunStatus.COMPLETED)
    assert await scheduler.get_status(lease.run_id) is status
    assert await scheduler.wake_suspended(lease.run_id) is False
    assert await scheduler.wake_agent(DESK) is False
    assert await scheduler.heartbeat(lease) == "lost"
    assert await scheduler.find_run_for_agent(DESK) is None


@pytest.mark.item(165)
async def test_a_release_that_the_life_cycle_does_not_have_is_refused(source: Source) -> None:
    """RUNNING to RUNNING; the lease stays good."""
    scheduler = source.scheduler()
    lease = await leased(scheduler)

    with pytest.raises(IllegalTransitionError):
        await scheduler.release(lease, status=RunStatus.RUNNING)

    assert await scheduler.heartbeat(lease) == "ok"


@pytest.mark.item(158, 159, 207, 209)
async def test_a_suspended_run_waits_until_it_is_woken(source: Source) -> None:
    """Waking makes it pending once; waking anything else changes nothing."""
    scheduler = source.scheduler()
    lease = await leased(scheduler)
    while_running = await scheduler.wake_suspended(lease.run_id)
    wake_on = Wakeup(kind="signal", signal="go")
    await scheduler.release(lease, status=RunStatus.SUSPENDED, wake_on=wake_on)
    status = await scheduler.get_status(lease.run_id)
    nothing = await scheduler.lease(worker_id=WORKER, capacity=1)

    woken = await scheduler.wake_suspended(lease.run_id)
    twice = await scheduler.wake_suspended(lease.run_id)

    assert (while_running, status, nothing) == (False, RunStatus.SUSPENDED, [])
    assert (woken, twice) == (True, False)
    assert await scheduler.get_status(lease.run_id) is RunStatus.PENDING
    (again,) = await scheduler.lease(worker_id=WORKER, capacity=5)
    assert (again.run_id, again.attempt) == (lease.run_id, 1)


@pytest.mark.item(210)
async def test_an_agent_is_woken_by_its_suspended_run(source: Source) -> None:
    """Also when older runs of it have ended."""
    scheduler = source.scheduler()
    await scheduler.release(await leased(scheduler), status=RunStatus.COMPLETED)
    lease = await leased(scheduler)
    await scheduler.release(lease, status=RunStatus.SUSPENDED)

    woken = await scheduler.wake_agent(DESK)

    assert woken is True
    assert await scheduler.pending_runs() == [lease.run_id]


@pytest.mark.item(159)
async def test_a_timer_wakes_a_suspended_run(source: Source) -> None:
    """One whose time has passed at once, a later one not yet."""
    scheduler = source.scheduler()
    late, soon = await leased(scheduler), await leased(scheduler, AgentId("desk", "2"))
    now = source.clock.now()
    timers = [(late, now + timedelta(hours=3)), (soon, now - timedelta(seconds=1))]
    for lease, at in timers:
        wake_on = Wakeup(kind="timer", at=at)
        await scheduler.release(lease, status=RunStatus.SUSPENDED, wake_on=wake_on)

    (again,) = await scheduler.lease(worker_id=WORKER, capacity=5)

    assert again.run_id == soon.run_id


@pytest.mark.item(216)
async def test_a_cause_that_comes_while_a_run_executes_is_not_lost(source: Source) -> None:
    """Its suspension is over as it begins."""
    scheduler = source.scheduler()
    lease = await leased(scheduler)
    await scheduler.enqueue(lease.run_id, wake=Wakeup(kind="message"))

    await scheduler.release(lease, status=RunStatus.SUSPENDED)

    assert await scheduler.pending_runs() == [lease.run_id]


@pytest.mark.item(124, 161, 163, 164, 166)
async def test_a_failed_run_is_tried_again_as_often_as_its_policy_says(source: Source) -> None:
    """Each retry is one attempt more; then it is FAILED for good."""
    scheduler = source.scheduler()
    run_id = await queued(scheduler, retry_policy=AT_ONCE)
    attempts, statuses = [], []

    for _ in range(3):
        (lease,) = await scheduler.lease(worker_id=WORKER, capacity=1)
        attempts.append(lease.attempt)
        await scheduler.release(lease, status=RunStatus.FAILED)
        statuses.append(await scheduler.get_status(run_id))

    assert attempts == [1, 2, 3]
    assert statuses == [RunStatus.PENDING, RunStatus.PENDING, RunStatus.FAILED]
    assert await scheduler.lease(worker_id=WORKER, capacity=1) == []


@pytest.mark.item(124, 166)
async def test_a_retry_waits_for_its_back_off(source: Source) -> None:
    """Longer each time; another cause does not shorten the wait."""
    source.needs("clock")
    scheduler = source.scheduler()
    policy = RetryPolicy(max_retries=5, backoff_s=10, factor=3, jitter=0)
    run_id = await queued(scheduler, retry_policy=policy)

    for wait_s in (10, 30):
        (lease,) = await scheduler.lease(worker_id=WORKER, capacity=1)
        await scheduler.release(lease, status=RunStatus.FAILED)
        await scheduler.enqueue(run_id)
        source.advance(wait_s - 1)
        assert await scheduler.lease(worker_id=WORKER, capacity=1) == []
        source.advance(1)

    assert await scheduler.pending_runs() == [run_id]


@pytest.mark.item(36, 125, 208)
async def test_the_run_of_an_agent_is_the_one_that_holds_it(source: Source) -> None:
    """One that has begun, also while it waits; else the oldest queued one."""
    scheduler = source.scheduler()
    holder = await leased(scheduler)
    oldest = await queued(scheduler)
    await queued(scheduler)

    running = await scheduler.find_run_for_agent(DESK)
    await scheduler.release(holder, status=RunStatus.SUSPENDED)
    suspended = await scheduler.find_run_for_agent(DESK)
    await scheduler.wake_suspended(holder.run_id)
    for lease in await scheduler.lease(worker_id=WORKER, capacity=3):
        if lease.run_id != oldest:
            await scheduler.release(lease, status=RunStatus.COMPLETED)

    assert running == (holder.run_id, RunStatus.RUNNING)
    assert suspended == (holder.run_id, RunStatus.SUSPENDED)
    assert await scheduler.find_run_for_agent(DESK) == (oldest, RunStatus.RUNNING)
    assert await scheduler.find_run_for_agent(AgentId("desk", "nobody")) is None


@pytest.mark.item(123, 206, 214, 215)
async def test_a_lease_without_heartbeats_is_taken_away(source: Source) -> None:
    """After 30 seconds, not before; its run is leased anew and the old holder can do nothing."""
    source.needs("lease expiry")
    scheduler = source.scheduler()
    lease = await leased(scheduler)
    assert lease.expires_at == source.clock.now() + timedelta(seconds=30)
    source.advance(29)
    answer = await scheduler.heartbeat(lease)
    source.advance(29)
    still = await scheduler.lease(worker_id="w2", capacity=1)

    source.advance(1)
    (second,) = await scheduler.lease(worker_id="w2", capacity=1)

    assert (answer, still) == ("ok", [])
    assert (second.run_id, second.attempt, second.worker_id) == (lease.run_id, 2, "w2")
    assert await scheduler.heartbeat(lease) == "lost"
    with pytest.raises(LeaseLostError):
        await scheduler.release(lease, status=RunStatus.COMPLETED)
    assert await scheduler.get_status(lease.run_id) is RunStatus.RUNNING


@pytest.mark.item(206)
async def test_a_heartbeat_says_that_the_run_should_stop(source: Source) -> None:
    """Once somebody asked for it."""
    scheduler = source.scheduler()
    lease = await leased(scheduler)
    before = await scheduler.heartbeat(lease)

    if isinstance(scheduler, InMemoryScheduler):
        scheduler.request_cancel(lease.run_id)
    else:
        assert source.bed is not None
        await source.bed.store.arrivals.request_cancel(lease.run_id, reason="enough")

    assert (before, await scheduler.heartbeat(lease)) == ("ok", "cancel_requested")
