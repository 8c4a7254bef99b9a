"""The contract of every `RunStore`: open waits in lists, and wait cycles."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.agent.message import MessageKey
from actors._kernel.runtime.commit import Committed, Park
from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.log_entry import EntryKind, NewEntry
from actors._kernel.runtime.waits import Wait, WaitCycle
from actors._kernel.stores.conversations import SessionLabel
from actors._kernel.stores.runs import ApprovalFilter
from tests.conformance.bed import DESK, result, started
from tests.conformance.clock import ManualClock
from tests.conformance.talk import CLERK, ask_wait, asked, join_wait, question, reply, rest, row

if TYPE_CHECKING:
    from actors._kernel.runtime.commit import Outgoing
    from tests.conformance.bed import Bed, Turns


def tick(bed: Bed) -> None:
    """Advance the clock if it does not advance by itself."""
    if isinstance(bed.clock, ManualClock):
        bed.clock.advance(60)


async def test_open_waits_are_seen_with_all_they_say(bed: Bed) -> None:
    """Position, kind, key, awaited agent, question to a person, and deadline."""
    run, other = await bed.begin(), await bed.begin(agent=CLERK)
    until = bed.in_s(60)
    approval = Wait("3", "approval", "appr-1", request={"pay": [1, 2]}, expires_at=until)
    join = Wait("1.0", "join", other.run_id, CLERK, other.run_id, must=False)

    await run.commit(run.turn(result("0"), waits=(approval, join)))

    rows = await bed.store.lists.waits(run.run_id)
    assert {wait.wait.position: wait.wait for wait in rows} == {"3": approval, "1.0": join}
    assert {(wait.run_id, wait.agent_id) for wait in rows} == {(run.run_id, DESK)}
    assert all(wait.since.utcoffset() is not None for wait in rows)


async def test_waits_are_replaced_kept_and_gone(bed: Bed) -> None:
    """A commit with waits replaces all of them, one without keeps them, and the end deletes them."""
    run = await bed.begin()

    async def open_now() -> set[str]:
        return {wait.wait.key for wait in await bed.store.lists.waits(run.run_id)}

    await run.commit(run.turn(result("0"), waits=(ask_wait("a"), ask_wait("b"))))
    first = await open_now()
    await run.commit(run.turn(result("1")))
    unchanged_keys = await open_now()
    await run.commit(run.turn(result("2"), waits=(ask_wait("b"), ask_wait("c"))))
    replaced = await open_now()
    await run.commit(run.turn(result("3"), waits=()))
    none = await open_now()
    await run.complete(waits=(ask_wait("d"),))

    assert (first, unchanged_keys, replaced, none) == ({"a", "b"}, {"a", "b"}, {"b", "c"}, set())
    assert await open_now() == set()


@pytest.mark.parametrize("seed", range(3))
async def test_a_commit_that_knows_the_waits_before_it_writes_the_same(bed: Bed, seed: int) -> None:
    """For new, changed and ended waits, of suspended and executing runs, the stored waits are those given."""
    rnd, run = random.Random(seed), await bed.begin()
    every = [replace(ask_wait(f"k{n}", must=False), position=f"{n // 2}") for n in range(40)]
    known_waits: tuple[Wait, ...] | None = None
    for n in range(12):
        share = rnd.choice((0.2, 0.6, 0.9))
        waits = [wait for wait in every if rnd.random() < share]
        if waits and rnd.random() < 0.5:
            waits[0] = replace(waits[0], must=True)
        if n == 6:
            every = [replace(wait, agent=DESK, expires_at=bed.in_s(60)) for wait in every]

        turn = run.turn(result(f"{n}"), waits=tuple(waits), known_waits=known_waits)
        await run.commit(turn)

        rows = await bed.store.lists.waits(run.run_id, limit=100)
        sort_key = attrgetter("position", "key")
        assert sorted((wait.wait for wait in rows), key=sort_key) == sorted(waits, key=sort_key)
        known_waits = None if rnd.random() < 0.1 else turn.waits


async def test_a_wait_that_goes_on_has_its_old_beginning(bed: Bed) -> None:
    """A repeated wait keeps its start time. A wait at another position or for another key is new."""
    run = await bed.begin()
    await rest(run, ask_wait("a"), ask_wait("b"))
    (first, _) = await bed.store.lists.waits(run.run_id)
    tick(bed)

    await rest(run, replace(ask_wait("a"), must=False), replace(ask_wait("b"), position="2"))

    now = {wait.wait.key: wait for wait in await bed.store.lists.waits(run.run_id)}
    assert now["a"].since == first.since
    assert now["b"].since > first.since
    assert not now["a"].wait.must


async def test_a_refused_commit_leaves_the_waits(bed: Bed) -> None:
    """Waits are part of the commit."""
    run = await bed.begin()
    await run.commit(run.turn(result("0"), waits=(ask_wait("a"),)))

    await run.send(run.turn(result("1"), take_answers=("gone",), waits=(ask_wait("b"),)))

    assert [w.wait.key for w in await bed.store.lists.waits(run.run_id)] == ["a"]


async def test_what_waits_for_a_person_is_listed_oldest_first(bed: Bed) -> None:
    """Pending approvals of all runs, at most `limit`, in pages."""
    runs = [await bed.begin(agent=AgentId("desk", f"{n}")) for n in range(3)]
    for n, run in enumerate(runs):
        await rest(run, Wait("1", "approval", f"appr-{n}"), ask_wait(f"ask-{n}", must=False))
        tick(bed)

    rows = await bed.store.lists.approvals()
    two = await bed.store.lists.approvals(limit=2)

    assert [wait.wait.key for wait in rows] == ["appr-0", "appr-1", "appr-2"]
    assert [wait.wait.key for wait in two] == ["appr-0", "appr-1"]
    behind = ApprovalFilter(after=two[-1].place)
    assert await bed.store.lists.approvals(behind) == rows[2:]
    for wait in rows:
        for among in (ApprovalFilter(run_id=wait.run_id), ApprovalFilter(key=wait.wait.key)):
            assert await bed.store.lists.approvals(among) == [wait]
    assert await bed.store.lists.approvals(ApprovalFilter(key="appr", tenant="acme")) == []
    assert [wait.since for wait in rows] == sorted(wait.since for wait in rows)


async def test_approvals_of_an_owner_are_of_its_sessions_and_of_the_runs_below(bed: Bed) -> None:
    """Approvals of other owners, of other tenants and without an owner are not listed."""
    store, below = bed.store, {}
    for n, (owner, tenant) in enumerate(
        (("ada", "default"), ("bob", "default"), ("ada", "acme"), (None, "default"))
    ):
        agent = AgentId("desk", f"{n}", tenant)
        await store.data.directory.create(agent, SessionLabel(), owner=owner)
        run = await bed.begin(agent=agent)
        child = await run.spawn("0", AgentId("clerk", f"{n}", tenant))
        await child.start()
        await rest(run, Wait("1", "approval", f"top-{n}"))
        tick(bed)
        await rest(child, Wait("1", "approval", f"below-{n}"))
        below[n] = child

    async def keys(tenant: str, owner: str, **more: Any) -> list[str]:
        among = ApprovalFilter(tenant=tenant, owner=owner, **more)
        return [wait.wait.key for wait in await store.lists.approvals(among)]

    assert await keys("default", "ada") == ["top-0", "below-0"]
    assert await keys("default", "bob") == ["top-1", "below-1"]
    assert await keys("acme", "ada") == ["top-2", "below-2"]
    assert await keys("acme", "bob") == []
    assert await keys("default", "ada", run_id=below[0].run_id) == ["below-0"]
    assert await keys("default", "ada", run_id=below[1].run_id) == []
    assert await keys("default", "ada", key="top-1") == []
    [first] = await store.lists.approvals(ApprovalFilter(key="top-0"))
    assert await keys("default", "ada", after=first.place) == ["below-0"]


def key_of(sent: Outgoing) -> MessageKey:
    """Return the key of a sent message."""
    assert isinstance(sent.target, AgentId)
    return MessageKey(sent.target, sent.sender, sent.message.id)


async def test_a_question_is_taken_back_with_the_commit_that_refuses_it(bed: Bed) -> None:
    """It is not delivered any more. Other messages of its sender stay, and its id stays known."""
    run = await bed.begin()
    first, other = question(run, CLERK), question(run, CLERK, id="ask-2")
    await run.commit(run.turn(result("0"), outgoing=(first, other)))
    await run.commit(run.turn(result("1"), withdraw=(key_of(first),)))

    again = await run.commit(run.turn(result("2"), outgoing=(first,)))

    assert again.routed == ()
    pending = await bed.store.backlog.pending_mail(agent=CLERK)
    assert [arrived.message.id for arrived in pending] == ["ask-2"]


async def test_a_question_that_is_refused_before_it_leaves_never_leaves(bed: Bed) -> None:
    """No host is notified of it."""
    run = await bed.begin()
    sent = question(run, CLERK)

    done = await run.commit(run.turn(result("0"), outgoing=(sent,), withdraw=(key_of(sent),)))

    assert done.routed == ()
    assert await bed.store.backlog.pending_mail(agent=CLERK) == []


async def test_a_question_that_was_begun_is_not_taken_back(bed: Bed) -> None:
    """The run that took it continues and ends with it."""
    run = await bed.begin()
    target = await asked(run)
    sent = question(run, CLERK)
    await run.commit(run.turn(result("1"), withdraw=(key_of(sent),)))

    await target.commit(target.turn(result("0")))
    await target.complete()

    assert [answer.key for answer in await bed.store.reads.answers(run.run_id)] == ["ask-1"]


async def test_a_commit_that_takes_a_question_back_is_whole(bed: Bed) -> None:
    """If the commit is refused the question stays."""
    run = await bed.begin()
    sent = question(run, CLERK)
    await run.commit(run.turn(result("0"), outgoing=(sent,)))

    await run.send(run.turn(result("1"), take_answers=("gone",), withdraw=(key_of(sent),)))

    assert len(await bed.store.backlog.pending_mail(agent=CLERK)) == 1


async def test_of_taking_back_and_beginning_at_once_one_comes_first(bed: Bed) -> None:
    """Either the question is withdrawn and no run takes it, or a run has taken it and it stays."""
    for n in range(20):
        run = await bed.begin(agent=AgentId("desk", f"asks-{n}"))
        sent = question(run, CLERK, id=f"ask-{n}")
        await run.commit(run.turn(result("0"), outgoing=(sent,)))
        target, new = bed.turns_of_mail(key_of(sent))
        begin = target.turn(started(CLERK), create=new, bind=(key_of(sent),))
        begun, _ = await asyncio.gather(
            target.send(begin), run.commit(run.turn(result("1"), withdraw=(key_of(sent),)))
        )

        if isinstance(begun, Committed):
            target.seq = begun.last_seq
            await target.complete()
        assert len(await bed.store.reads.answers(run.run_id)) == isinstance(begun, Committed)
        assert await bed.store.backlog.pending_mail(agent=CLERK) == []


async def ring(bed: Bed, size: int) -> list[Turns]:
    """Start a run of each of these agents."""
    return [await bed.begin(agent=AgentId("desk", f"ring-{n}")) for n in range(size)]


def next_of(runs: list[Turns], n: int) -> Turns:
    """Return the run after the n-th, modulo their number."""
    return runs[(n + 1) % len(runs)]


@pytest.mark.parametrize("size", [1, 2, 5])
async def test_the_commit_that_closes_a_cycle_is_notified(bed: Bed, size: int) -> None:
    """Agents ask each other in a cycle. The commit of the last ask returns the cycle."""
    runs = await ring(bed, size)

    outcomes = [
        await rest(run, ask_wait(f"ask-{n}", next_of(runs, n).agent)) for n, run in enumerate(runs)
    ]

    around = [runs[-1], *runs[:-1]]
    assert [outcome.cycles for outcome in outcomes[:-1]] == [()] * (size - 1)
    assert outcomes[-1].cycles == (
        WaitCycle(runs[-1].run_id, runs[-1].agent, "1", tuple(run.agent for run in around)),
    )


@pytest.mark.parametrize("size", [1, 2, 5])
async def test_joins_make_cycles_too(bed: Bed, size: int) -> None:
    """Each of the started runs joins the next."""
    runs = await ring(bed, size)

    outcomes = [await rest(run, join_wait(next_of(runs, n))) for n, run in enumerate(runs)]

    assert [len(outcome.cycles) for outcome in outcomes] == [0] * (size - 1) + [1]


async def test_a_join_of_a_queued_run_waits_for_who_holds_its_agent(bed: Bed) -> None:
    """The agent's started run has to end first. If it waits for the joiner, none of the runs can continue."""
    joiner, holder = await ring(bed, 2)
    queued = await bed.submit(agent=holder.agent)
    own = await bed.submit(agent=joiner.agent)
    await rest(holder, ask_wait("ask-1", joiner.agent))

    behind_other = await rest(
        joiner, Wait("4", "join", queued.run_id, holder.agent, queued.run_id, must=True)
    )
    behind_itself = await rest(
        joiner, Wait("5", "join", own.run_id, joiner.agent, own.run_id, must=True)
    )

    assert [c.agents for c in behind_other.cycles] == [(joiner.agent, holder.agent)]
    assert [(c.agents, c.position) for c in behind_itself.cycles] == [((joiner.agent,), "5")]


async def test_no_cycle_where_another_run_can_go_on(bed: Bed) -> None:
    """A run that can receive messages, has another branch, is not started, or has its answer, breaks it."""
    first, second = await ring(bed, 2)

    await rest(first, ask_wait("a", second.agent), message=True)
    receives = await rest(second, ask_wait("b", first.agent))
    await rest(first, ask_wait("a", second.agent, must=False))
    has_branch = await rest(second, ask_wait("b", first.agent))
    free = await rest(second, ask_wait("b", AgentId("desk", "free")))
    queued = await bed.submit(agent=CLERK)
    not_started = await rest(
        second, Wait("1", "join", queued.run_id, CLERK, queued.run_id, must=True)
    )

    for outcome in (receives, has_branch, free, not_started):
        assert outcome.cycles == ()


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_cycle_is_closed_by_who_takes_an_answer(bed: Bed, is_known: bool) -> None:
    """Until then the run could continue, so there was no cycle. The commit adds no wait."""
    parent = await bed.begin()
    children = [await parent.spawn(f"{n}", AgentId("desk", f"child-{n}")) for n in range(20)]
    first, second = children[:2]
    await first.start()
    await second.start()
    joins = [
        replace(join_wait(child), position=f"{n}", must=n == 0) for n, child in enumerate(children)
    ]
    await rest(parent, *joins)
    await first.complete()
    could_go_on = await rest(second, ask_wait("q", parent.agent))

    waits = (replace(joins[1], must=True), *joins[2:])
    closes = await parent.commit(
        parent.turn(
            result("3"),
            take_answers=(first.run_id,),
            waits=waits,
            known_waits=tuple(joins) if is_known else None,
        )
    )

    assert could_go_on.cycles == ()
    assert [cycle.agents for cycle in closes.cycles] == [(parent.agent, second.agent)]


async def test_no_cycle_over_a_wait_that_is_answered(bed: Bed) -> None:
    """A run with a stored answer continues as soon as it is executed."""
    asker = await bed.begin()
    target = await asked(asker)
    await rest(asker, ask_wait("ask-1"))

    outcome = await target.commit(
        target.turn(
            result("0"), answers=(reply(asker, "yes"),), waits=(ask_wait("ask-2", asker.agent),)
        )
    )

    assert outcome.cycles == ()


async def test_no_cycle_over_a_run_that_an_operator_holds(bed: Bed) -> None:
    """A parked run waits for an operator first; its stored waits are ignored."""
    first, second = await ring(bed, 2)
    await rest(first, ask_wait("a", second.agent))
    parked = NewEntry(EntryKind.RUN_PARKED, "", {"reason": "in_doubt"})
    await first.commit(first.turn(parked, then=Park("in_doubt")))

    outcome = await rest(second, ask_wait("b", first.agent))

    assert outcome.cycles == ()
    assert (await row(bed, first)).parked == "in_doubt"


async def test_a_cycle_ends_with_a_wait(bed: Bed) -> None:
    """If one run ends its wait the others are in no cycle any more."""
    first, second = await ring(bed, 2)
    await rest(first, ask_wait("a", second.agent))
    closed = await rest(second, ask_wait("b", first.agent))
    await second.commit(second.turn(result("0"), waits=()))

    again = await rest(first, ask_wait("a", second.agent))

    assert len(closed.cycles) == 1
    assert again.cycles == ()
    assert await bed.store.backlog.wait_cycles(bed.shards, younger_than_s=15) == []


@pytest.mark.parametrize("size", [2, 5])
async def test_a_cycle_closed_by_all_at_once_is_found_once(bed: Bed, size: int) -> None:
    """The scan returns only the wait of the greatest run id, whichever commits missed the cycle."""
    runs = await ring(bed, size)
    await asyncio.gather(
        *(rest(run, ask_wait(f"ask-{n}", next_of(runs, n).agent)) for n, run in enumerate(runs))
    )

    cycles = await bed.store.backlog.wait_cycles(bed.shards, younger_than_s=15)

    at = max(range(size), key=lambda n: runs[n].run_id)
    around = [*runs[at:], *runs[:at]]
    assert cycles == [
        WaitCycle(runs[at].run_id, runs[at].agent, "1", tuple(run.agent for run in around))
    ]


async def test_the_scan_reads_its_shards_and_young_waits(bed: Bed) -> None:
    """Cycles of other shards and older waits are not returned."""
    first, second = await ring(bed, 2)
    await rest(first, join_wait(second))
    await rest(second, join_wait(first))

    old = await bed.store.backlog.wait_cycles(bed.shards, younger_than_s=0)
    elsewhere = await bed.store.backlog.wait_cycles([], younger_than_s=15)

    assert (old, elsewhere) == ([], [])
    assert len(await bed.store.backlog.wait_cycles(bed.shards, younger_than_s=15)) == 1


async def test_two_cycles_are_two(bed: Bed) -> None:
    """In each cycle one wait has to fail."""
    for pair in ("a", "b"):
        first = await bed.begin(agent=AgentId("desk", f"{pair}1"))
        second = await bed.begin(agent=AgentId("desk", f"{pair}2"))
        await rest(first, join_wait(second))
        await rest(second, join_wait(first))

    cycles = await bed.store.backlog.wait_cycles(bed.shards, younger_than_s=15)

    assert sorted(sorted(agent.key for agent in cycle.agents) for cycle in cycles) == [
        ["a1", "a2"],
        ["b1", "b2"],
    ]
