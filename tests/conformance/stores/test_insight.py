"""The contract of every `InsightStore`: agents with work, waiting messages, hosts, totals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors._kernel.runtime.commit import Finish, Park, Retry
from actors._kernel.runtime.ids import AgentId, HostIncarnation
from actors._kernel.runtime.log_entry import EntryKind, NewEntry
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.runtime.waits import Wait, WakeSet
from actors._kernel.stores.insight import Totals
from actors._kernel.stores.shards import Serves
from tests.conformance.bed import DESK, SERVES, message
from tests.conformance.posts import bring, follow, post

if TYPE_CHECKING:
    from actors._kernel.json import JsonValue
    from actors._kernel.stores.insight import AgentRow
    from tests.conformance.bed import Bed

LOST = AgentId("lost", "1")
CLERK = AgentId("clerk", "1")
ACME = AgentId("desk", "1", "acme")
ERROR: dict[str, JsonValue] = {"type": "builtins:ValueError", "message": "boom"}


async def agent(bed: Bed, agent_id: AgentId) -> AgentRow:
    """Return the one row of this agent."""
    rows = await bed.store.insight.agents(type_=agent_id.type, tenant=agent_id.tenant)
    (row,) = [row for row in rows if row.agent_id == agent_id]
    return row


async def test_agents_with_messages_or_an_open_run_are_listed(bed: Bed) -> None:
    """By tenant, type and key, in pages, of one type or tenant. Ended and other agents are not listed."""
    await bed.submit(agent=AgentId("desk", "2"))
    await bed.store.arrivals.deliver([message(to=who, id="m") for who in (ACME, LOST, CLERK)])
    done = await bed.begin(agent=AgentId("desk", "9"))
    await done.complete()
    insight = bed.store.insight

    every = [row.agent_id for row in await insight.agents()]
    first = await insight.agents(limit=2)
    rest = await insight.agents(after=first[-1].agent_id)

    assert every == [ACME, CLERK, AgentId("desk", "2"), LOST]
    assert [row.agent_id for row in (*first, *rest)] == every
    assert [row.agent_id for row in await insight.agents(type_="desk")] == [every[0], every[2]]
    assert [row.agent_id for row in await insight.agents(tenant="acme")] == [ACME]
    assert await insight.agents(type_="nothing") == []


async def test_what_an_agent_waits_for_is_told(bed: Bed) -> None:
    """The number and age of its messages, the run that holds it, and why it does not continue."""
    before = bed.in_s(-1)
    run = await bed.begin()
    executing = await agent(bed, DESK)
    await bed.submit()
    await bed.store.arrivals.deliver([message(id="m1"), message(id="m2")])
    await run.suspend(WakeSet(signals=("go",)))
    waiting = await agent(bed, DESK)

    assert (executing.reason, executing.status) == ("executing", RunStatus.RUNNING)
    assert (waiting.reason, waiting.status) == ("waiting", RunStatus.SUSPENDED)
    assert (waiting.run_id, waiting.queued, waiting.pending) == (run.run_id, 1, 2)
    assert waiting.oldest_at is not None
    assert before < waiting.oldest_at < bed.in_s(10)
    assert waiting.owner == bed.owner


async def test_a_run_that_backs_off_or_is_parked_says_so(bed: Bed) -> None:
    """With its time, or its reason."""
    run, parked = await bed.begin(), await bed.begin(agent=CLERK)
    at = bed.in_s(60)
    payload: dict[str, JsonValue] = {
        "attempt": 1,
        "error": ERROR,
        "retry_from": 0,
        "at": at.isoformat(),
    }
    failed = NewEntry(EntryKind.RUN_ATTEMPT_FAILED, "", payload)
    await run.commit(run.turn(failed, then=Retry(at, ERROR, 0)))
    entry = NewEntry(EntryKind.RUN_PARKED, "", {"reason": "in_doubt"})
    await parked.commit(parked.turn(entry, then=Park("in_doubt")))

    backing_off, clerk = await agent(bed, DESK), await agent(bed, CLERK)
    totals = await bed.store.insight.totals()

    assert (backing_off.reason, backing_off.wake_at) == ("back-off", at)
    assert (clerk.reason, clerk.parked, clerk.run_id) == ("parked", "in_doubt", parked.run_id)
    assert totals.parked == {"in_doubt": 1}
    assert totals.runs == {RunStatus.PENDING: 1, RunStatus.SUSPENDED: 1}


async def test_agents_that_nobody_serves_or_owns_say_so(bed: Bed) -> None:
    """No host serves the type, or its host is dead."""
    await bed.store.arrivals.deliver([message(to=who, id="m") for who in (DESK, LOST)])
    assert (await agent(bed, LOST)).reason == "unserved"
    assert (await agent(bed, DESK)).reason == "queued"
    assert (await bed.store.insight.totals()).unserved == ("lost",)

    await bed.store.shards.release(list(bed.leases.values()))

    row = await agent(bed, DESK)
    totals = await bed.store.insight.totals()
    assert (row.reason in ("unserved", "unowned"), row.owner) == (True, None)
    assert totals.unowned == totals.shards > 0


async def test_a_dead_host_is_no_host(bed: Bed) -> None:
    """Its shards count as unowned and its types as unserved."""
    bed.needs("expiry")
    await bed.store.arrivals.deliver([message(id="m")])
    (host,) = await bed.store.insight.hosts()
    shards = await bed.store.insight.shards_of(bed.owner)

    await bed.lapse()

    assert (host.owner, host.shards, host.serves) == (bed.owner, len(bed.shards), ("clerk", "desk"))
    assert 0 <= host.seen_s < host.expires_s <= 60
    assert sorted(shards) == sorted(bed.shards)
    assert await bed.store.insight.hosts() == []
    assert (await agent(bed, DESK)).reason == "unserved"
    totals = await bed.store.insight.totals()
    assert (totals.hosts, totals.unowned) == (0, totals.shards)
    assert totals.unserved == ("desk",)


async def test_made_up_types_come_behind_those_that_a_host_has_declared(bed: Bed) -> None:
    """Messages to types that were never declared do not displace a type whose hosts are away."""
    bed.needs("expiry")
    made_up = [AgentId(f"a{n}", "1") for n in range(3)]
    await bed.store.arrivals.deliver([message(to=who, id="m") for who in (DESK, *made_up)])

    await bed.lapse()

    totals = await bed.store.insight.totals()
    assert totals.unserved == ("desk", "a0", "a1", "a2")


async def test_a_host_says_which_single_agents_it_serves(fresh_bed: Bed) -> None:
    """As text, after its types."""
    await fresh_bed.claim(Serves(types=("desk",), agents=(AgentId("solo", "1", "acme"),)))

    (host,) = await fresh_bed.store.insight.hosts()

    assert host.serves == ("desk", "acme:solo/1")
    assert await fresh_bed.store.insight.shards_of(HostIncarnation("nobody")) == []


async def test_only_those_that_wait_long_are_listed(bed: Bed) -> None:
    """Selected by the oldest message."""
    await bed.store.arrivals.deliver([message(id="m")])
    await bed.begin(agent=CLERK)

    long = await bed.store.insight.agents(waiting_s=3600)
    some = await bed.store.insight.agents(waiting_s=0)

    assert long == []
    assert [row.agent_id for row in some] == [DESK]


async def test_the_inbox_holds_what_is_not_done(bed: Bed) -> None:
    """Messages of open runs with the run, others without, by arrival. Processed ones are not returned."""
    done = await bed.begin()
    await done.complete()
    submitted = await bed.submit("work")
    await bed.store.arrivals.deliver([message("one", id="m1"), message("two", id="m2")])

    items = await bed.store.insight.inbox(DESK)

    assert [(m.message.payload, m.run_id) for m in items] == [
        ("work", submitted.run_id),
        ("one", None),
        ("two", None),
    ]
    assert await bed.store.insight.inbox(DESK, limit=1) == items[:1]
    assert await bed.store.insight.inbox(LOST) == []


async def test_posts_for_lazy_followers_are_in_the_inbox_only(bed: Bed) -> None:
    """They do not make an agent a waiting one."""
    await follow(bed, [DESK], mode="lazy")
    await bed.store.posts.publish(post("late"))
    await bring(bed)

    (waiting,) = await bed.store.insight.inbox(DESK)
    assert waiting.message.payload == "late"
    assert await bed.store.insight.agents() == []
    assert (await bed.store.insight.totals()).pending == {}


async def test_totals_count_everything(bed: Bed) -> None:
    """Runs, messages, dead letters, timers, shards, hosts and pending approvals; zero if there are none."""
    quiet = await bed.store.insight.totals()
    run = await bed.begin()
    approval = Wait("1", "approval", "key", must=True, request={"tool": "x"})
    await run.suspend(WakeSet(at=bed.in_s(-60)), waits=(approval,))
    await bed.submit(agent=CLERK)
    await bed.store.arrivals.deliver([message(to=CLERK, id="m")])
    dead = await bed.begin(agent=AgentId("clerk", "2"))
    entry = NewEntry(EntryKind.RUN_FAILED, "", {"status": "error", "error": ERROR})
    finish = Finish(RunStatus.FAILED, error=ERROR, dead_letter="max_retries")
    await dead.commit(dead.turn(entry, then=finish))

    totals = await bed.store.insight.totals()

    shards = len(bed.shards)
    assert quiet == Totals(shards=shards, hosts=1)
    assert totals.runs == {RunStatus.SUSPENDED: 1, RunStatus.PENDING: 1}
    assert totals.pending == {"clerk": 1}
    assert totals.oldest_pending_s >= 0
    assert (totals.dead_letters, totals.timers_overdue, totals.approvals) == (1, 1, 1)
    assert (totals.hosts, totals.unowned, totals.unserved) == (1, 0, ())


async def test_agents_of_other_hosts_are_listed_with_their_owner(bed: Bed) -> None:
    """Every host gets the same list."""
    async with bed.rival() as rival:
        await rival.store.shards.declare(SERVES, partitions=4)
        await bed.store.arrivals.deliver([message(id="m")])
        (row,) = await rival.store.insight.agents()

    assert row.owner == bed.owner


async def test_what_was_counted_is_known_to_all(bed: Bed) -> None:
    """Of the hosts that find a count due one counts, and its result is every host's total."""
    await bed.begin()
    insight = bed.store.insight
    answers = [await insight.known_totals(every_s=3600.0) for _ in range(3)]
    await insight.count_totals()
    answer = await insight.known_totals(every_s=3600.0)

    assert sum(a.is_due for a in answers) <= 1
    assert answer.totals == await insight.totals()
    assert (answer.is_due, 0 <= answer.age_s < 3600) == (False, True)
