"""The contract of every `RunStore`: children, budgets of trees, and orphans."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.agent import ExecutionBudget, HistoryRetention, SpawnBudget
from actors._kernel.runtime.commit import BudgetDelta, Committed, Conflict, OverBudget
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.scheduler import RunStatus
from tests.conformance.bed import DESK, child_spawned, message, result
from tests.conformance.talk import CLERK, answers, row, terms

if TYPE_CHECKING:
    from actors._kernel.runtime.commit import CommitOutcome, Spawned
    from tests.conformance.bed import Bed, Turns


def clerk(n: int | str) -> AgentId:
    """Return one of many agents."""
    return AgentId("clerk", f"c{n}")


async def spawn_all(run: Turns, children: list[Spawned]) -> CommitOutcome:
    """Spawn all of them in one commit."""
    entries = [child_spawned(child) for child in children]
    return await run.send(run.turn(*entries, spawned=tuple(children)))


@pytest.mark.item(127, 228, 229, 235)
async def test_a_child_comes_with_its_first_message(bed: Bed) -> None:
    """Run row, entry and message are one commit. The message is bound to the child."""
    run = await bed.begin()
    child = run.child("3", CLERK, boot={"do": "it"})

    outcome = await run.commit(run.turn(child_spawned(child), spawned=(child,)))

    (loaded,) = await bed.store.reads.load([child.run.run_id])
    (boot,) = loaded.messages
    assert (loaded.row.status, loaded.row.parent) == (RunStatus.PENDING, run.run_id)
    assert (loaded.row.root, loaded.row.depth) == (run.run_id, 1)
    assert (boot.message.payload, boot.sender) == ({"do": "it"}, f"spawn:{DESK}")
    assert boot.arrival == loaded.row.arrival
    assert await bed.store.backlog.pending_mail(agent=CLERK) == []
    assert [(born.run.run_id, arrival >= 0) for born, arrival in outcome.spawned] == [
        (child.run.run_id, True)
    ]
    assert [r.run_id for r in await bed.store.lists.children(run.run_id)] == [child.run.run_id]


@pytest.mark.item(126, 128, 229, 234)
async def test_a_child_is_created_once(bed: Bed) -> None:
    """A repeated commit or spawn creates no second run and no second message."""
    run = await bed.begin()
    child = run.child("3", CLERK, boot="go")
    turn = run.turn(child_spawned(child), spawned=(child,))
    await run.commit(turn)

    resent = await bed.store.commits.commit(turn)
    again = await run.commit(run.turn(result("4"), spawned=(child,)))

    assert resent == Conflict(1)
    assert isinstance(again, Committed)
    assert [r.run_id for r in await bed.store.lists.children(run.run_id)] == [child.run.run_id]
    (loaded,) = await bed.store.reads.load([child.run.run_id])
    assert len(loaded.messages) == 1
    assert await bed.store.backlog.pending_mail(agent=CLERK) == []


async def test_a_child_without_message_has_its_place_in_the_queue(bed: Bed) -> None:
    """It starts with an empty inbox, after older and before younger runs and messages."""
    before = await bed.submit(agent=CLERK)
    run = await bed.begin()
    child = await run.spawn("1", CLERK)
    after = await bed.submit(agent=CLERK)

    places = [(await row(bed, r)).arrival for r in (before.run_id, child.run_id, after.run_id)]
    (loaded,) = await bed.store.reads.load([child.run_id])

    assert places == sorted(set(places))
    assert loaded.messages == ()


async def test_children_are_listed_in_the_order_of_creation(bed: Bed) -> None:
    """Only that run's children, with ended ones. A run without children and an unknown run have none."""
    run = await bed.begin()
    children = [await run.spawn(f"{n}", clerk(n)) for n in range(4)]
    below = await (await children[0].start()).spawn("0", clerk("below"))
    await children[0].complete()

    rows = await bed.store.lists.children(run.run_id)

    assert [r.run_id for r in rows] == [child.run_id for child in children]
    assert [r.run_id for r in await bed.store.lists.children(children[0].run_id)] == [below.run_id]
    assert await bed.store.lists.children(below.run_id) == []


@pytest.mark.item(253)
async def test_a_child_has_its_own_terms(bed: Bed) -> None:
    """They are stored as given, beside those of the root."""
    mine = terms("root", spawn=SpawnBudget(max_runs=9), priority=3)
    submitted = await bed.submit(supervision=mine)
    run = await bed.begin(agent=AgentId("desk", "2"))
    theirs = terms("child", spawn=SpawnBudget(max_runs=2, max_concurrent=1), priority=7)
    child = run.child("1", CLERK, supervision=theirs)
    await run.commit(run.turn(child_spawned(child), spawned=(child,)))

    assert (await row(bed, submitted.run_id)).supervision == mine
    assert (await row(bed, child.run.run_id)).supervision == theirs
    assert (await row(bed, run)).supervision is None


async def test_a_child_born_of_a_run_that_is_to_stop_is_born_so(bed: Bed) -> None:
    """The child and its message are written with the flag, at any depth."""
    run = await bed.begin()
    await bed.store.arrivals.request_cancel(run.run_id, reason="enough")

    child = await run.spawn("c", CLERK, boot="go")
    grandchild = await child.spawn("g", clerk("g"))

    for born in (child, grandchild):
        assert (await row(bed, born)).cancel_requested == "enough"


async def test_a_cancel_and_a_spawn_at_once_leave_no_child_behind(bed: Bed) -> None:
    """In either order, every child of a cancelled run is asked to stop."""
    runs = [await bed.begin(agent=AgentId("desk", f"{n}")) for n in range(12)]

    children = await asyncio.gather(*(run.spawn("c", clerk(n)) for n, run in enumerate(runs)))
    await asyncio.gather(
        *(child.spawn("g", clerk(f"g{n}")) for n, child in enumerate(children)),
        *(bed.store.arrivals.request_cancel(run.run_id, reason="enough") for run in runs),
    )

    for child in children:
        (below,) = await bed.store.lists.children(child.run_id)
        assert below.cancel_requested == "enough"


@pytest.mark.item(91)
async def test_who_got_a_message_can_be_asked(bed: Bed) -> None:
    """The run that the message is bound to, also after its end, otherwise the run that holds the agent."""
    await bed.store.arrivals.deliver([message(to=CLERK, id="waits")])
    nobody = await bed.store.lists.run_of_message(CLERK, "client:tests", "waits")
    holder = await bed.begin(agent=CLERK, id="bound")
    bound = await bed.store.lists.run_of_message(CLERK, "submit:tests", "bound")
    waits = await bed.store.lists.run_of_message(CLERK, "client:tests", "waits")
    unknown = await bed.store.lists.run_of_message(CLERK, "client:tests", "unknown")
    await holder.complete()
    after = await bed.store.lists.run_of_message(CLERK, "submit:tests", "bound")

    assert nobody is None
    assert [r.run_id if r else None for r in (bound, waits, unknown, after)] == [holder.run_id] * 4


@pytest.mark.item(236, 237)
async def test_of_more_spawns_than_slots_the_first_ones_fit(bed: Bed) -> None:
    """The whole commit is refused and names the spawns that exceed the limit, and the limit."""
    root = await bed.begin(supervision=terms(spawn=SpawnBudget(max_runs=13)))
    children = [root.child(f"{n}", clerk(n), boot=n) for n in range(20)]

    refused = await spawn_all(root, children)
    nothing = await bed.store.lists.children(root.run_id)
    fits = await spawn_all(root, children[:13])
    full = await spawn_all(root, children[13:14])

    assert refused == OverBudget(tuple(f"{n}" for n in range(13, 20)), "max_runs 13")
    assert nothing == []
    assert await bed.store.backlog.pending_mail(agent=clerk(0)) == []
    assert isinstance(fits, Committed)
    assert full == OverBudget(("13",), "max_runs 13")
    assert len(await bed.store.lists.children(root.run_id)) == 13


@pytest.mark.item(236, 238)
async def test_a_tree_has_one_account(bed: Bed) -> None:
    """Runs of one tree that spawn concurrently get exactly the slots that the budget has."""
    root = await bed.begin(supervision=terms(spawn=SpawnBudget(max_runs=10 + 13)))
    parents = [await root.spawn(f"{n}", clerk(n)) for n in range(10)]
    for parent in parents:
        await parent.start()

    outcomes = await asyncio.gather(
        *(
            spawn_all(
                parent, [parent.child("a", clerk(f"{n}a")), parent.child("b", clerk(f"{n}b"))]
            )
            for n, parent in enumerate(parents)
        )
    )
    later_outcomes = [
        await spawn_all(parent, [parent.child("c", clerk(f"{n}c"))])
        for n, parent in enumerate(parents)
    ]

    passed = [outcome for outcome in outcomes if isinstance(outcome, Committed)]
    assert len(passed) == 6
    assert sum(isinstance(outcome, Committed) for outcome in later_outcomes) == 1
    for outcome in [*outcomes, *later_outcomes]:
        assert isinstance(outcome, Committed) or outcome.limit == "max_runs 23"  # type: ignore[union-attr]
    below = [await bed.store.lists.children(parent.run_id) for parent in parents]
    assert sum(map(len, below)) == 13


async def test_a_known_child_needs_no_slot(bed: Bed) -> None:
    """A repeated spawn is counted once."""
    root = await bed.begin(supervision=terms(spawn=SpawnBudget(max_runs=2)))
    children = [root.child(f"{n}", clerk(n)) for n in range(3)]
    await spawn_all(root, children[:2])

    again = await spawn_all(root, children[:2])
    more = await spawn_all(root, children)

    assert isinstance(again, Committed)
    assert more == OverBudget(("2",), "max_runs 2")


@pytest.mark.item(236)
async def test_a_tree_may_be_as_deep_as_it_is_wide(bed: Bed) -> None:
    """A chain of 100 runs fits into a budget of 100. The next run does not."""
    root = await bed.begin(supervision=terms(spawn=SpawnBudget(max_runs=100)))
    last = root
    for n in range(100):
        child = last.child("0", clerk(n), depth=n + 1)
        await last.commit(last.turn(child_spawned(child), spawned=(child,)))
        last = last.of_child(child)

    over = await spawn_all(last, [last.child("0", clerk("over"))])

    assert (await row(bed, last)).depth == 100
    assert over == OverBudget(("0",), "max_runs 100")


@pytest.mark.item(236, 237)
async def test_without_terms_a_tree_has_fifty_runs(bed: Bed) -> None:
    """The default budget applies to every root."""
    root = await bed.begin()

    over = await spawn_all(root, [root.child(f"{n}", clerk(n)) for n in range(51)])
    fits = await spawn_all(root, [root.child(f"{n}", clerk(n)) for n in range(50)])

    assert over == OverBudget(("50",), "max_runs 50")
    assert isinstance(fits, Committed)


@pytest.mark.item(238)
async def test_a_child_cannot_bring_its_own_budget(bed: Bed) -> None:
    """Neither its own terms nor another root in its row give the tree more slots."""
    root = await bed.begin(supervision=terms(spawn=SpawnBudget(max_runs=2)))
    rich = terms("x", spawn=SpawnBudget(max_runs=1000))
    child = root.child("0", CLERK, supervision=rich)
    await root.commit(root.turn(child_spawned(child), spawned=(child,)))
    spawner = await root.of_child(child).start()
    fresh = spawner.child("0", clerk(0), supervision=rich)
    alone = replace(fresh, run=replace(fresh.run, root=fresh.run.run_id))

    first = await spawn_all(spawner, [alone])
    second = await spawn_all(spawner, [spawner.child("1", clerk(1), supervision=rich)])

    assert isinstance(first, Committed)
    assert second == OverBudget(("1",), "max_runs 2")


async def test_an_end_releases_its_slot(bed: Bed) -> None:
    """Open runs are counted: the end of one, with any outcome, admits one more."""
    root = await bed.begin(supervision=terms(spawn=SpawnBudget(max_runs=9, max_concurrent=2)))
    first, second = [await root.spawn(f"{n}", clerk(n)) for n in range(2)]
    third = root.child("2", clerk(2))
    full = await spawn_all(root, [third])
    await first.start()
    await first.fail("boom")

    room = await spawn_all(root, [third])
    full_again = await spawn_all(root, [root.child("3", clerk(3))])
    await second.cancel("enough")
    room_again = await spawn_all(root, [root.child("3", clerk(3))])

    assert full == OverBudget(("2",), "max_concurrent 2")
    assert full_again == OverBudget(("3",), "max_concurrent 2")
    assert isinstance(room, Committed)
    assert isinstance(room_again, Committed)


def call(position: str) -> BudgetDelta:
    """Return the entry of a model call that starts."""
    return BudgetDelta(turns=1, position=position)


async def test_model_calls_of_a_tree_are_counted_exactly(bed: Bed) -> None:
    """Of concurrent calls in several runs exactly those that fit are admitted."""
    root = await bed.begin(supervision=terms(execution=ExecutionBudget(max_turns=7)))
    runs = [await (await root.spawn(f"{n}", clerk(n))).start() for n in range(10)]

    outcomes = await asyncio.gather(
        *(run.send(run.turn(result(f"{n}"), budget=call(f"{n}"))) for n, run in enumerate(runs))
    )
    late = await root.send(root.turn(result("late"), budget=call("late")))

    refused = [n for n, outcome in enumerate(outcomes) if not isinstance(outcome, Committed)]
    assert len(refused) == 3
    for n in refused:
        assert outcomes[n] == OverBudget((f"{n}",), "max_turns 7")
        assert (await row(bed, runs[n])).last_seq == 0
    assert late == OverBudget(("late",), "max_turns 7")


@pytest.mark.parametrize(
    ("budget", "used", "limit"),
    [
        (ExecutionBudget(max_tokens=100), BudgetDelta(tokens=60), "max_tokens"),
        (ExecutionBudget(max_cost_usd=1.0), BudgetDelta(cost_usd=0.6), "max_cost_usd"),
    ],
)
async def test_a_call_begins_while_something_is_left(
    bed: Bed, budget: ExecutionBudget, used: BudgetDelta, limit: str
) -> None:
    """Usage is counted after the call, also beyond the limit. After that no call starts."""
    root = await bed.begin(supervision=terms(execution=budget))

    outcomes = []
    for n in range(3):
        outcomes.append(await root.send(root.turn(result(f"{n}"), budget=call(f"{n}"))))
        await root.commit(root.turn(result(f"{n}.used"), budget=used))

    assert [type(outcome) for outcome in outcomes] == [Committed, Committed, OverBudget]
    refused = outcomes[-1]
    assert isinstance(refused, OverBudget)
    assert refused.positions == ("2",)
    assert refused.limit.startswith(limit)


async def test_what_a_tree_may_still_use_is_known(bed: Bed) -> None:
    """All its runs return the same remainder, before and after usage. It is never negative."""
    reads = bed.store.reads
    root = await bed.begin(supervision=terms(execution=ExecutionBudget(max_tokens=100)))
    assert await reads.tokens_left(root.run_id) == 100
    child = await (await root.spawn("c", CLERK)).start()
    free = await bed.begin(agent=clerk(7))
    remaining_tokens = []

    for used in (0, 60, 70):
        await child.commit(child.turn(result(f"{used}"), budget=BudgetDelta(tokens=used)))
        remaining_tokens.append(
            [await reads.tokens_left(run.run_id) for run in (root, child, free)]
        )

    assert remaining_tokens == [[100, 100, None], [40, 40, None], [0, 0, None]]
    assert await reads.tokens_left(RunId("unknown")) is None


async def test_a_tree_without_limits_spends_what_it_wants(bed: Bed) -> None:
    """Without terms no call is refused."""
    root = await bed.begin()

    for n in range(5):
        usage = BudgetDelta(tokens=10**9, cost_usd=1e6, turns=100, position=f"{n}")
        await root.commit(root.turn(result(f"{n}"), budget=usage))

    assert (await row(bed, root)).last_seq == 5


async def family(bed: Bed) -> tuple[Turns, Turns, list[Turns]]:
    """Return a root, its child, and that child's children: one open, one with a child, one ended."""
    root = await bed.begin()
    parent = await (await root.spawn("p", CLERK)).start()
    children = [await parent.spawn(f"{n}", clerk(n)) for n in range(3)]
    below = await children[1].spawn("below", clerk("below"))
    await children[2].start()
    await children[2].complete()
    return root, parent, [*children, below]


@pytest.mark.parametrize("policy", [HistoryRetention.RUN, HistoryRetention.NONE])
async def test_orphans_are_asked_to_stop(bed: Bed, policy: HistoryRetention) -> None:
    """All open runs below the ending one are flagged in its last commit; siblings are not."""
    root, parent, (first, second, ended, below) = await family(bed)

    outcome = await parent.complete(orphans=policy)

    flags = [(await row(bed, r)).cancel_requested for r in (first, second, below)]
    assert all(flags)
    assert (await row(bed, ended)).cancel_requested is None
    assert (await row(bed, root)).cancel_requested is None
    assert {nudge.run_id for nudge in outcome.nudges if nudge.kind == "cancel"} == {
        first.run_id,
        second.run_id,
        below.run_id,
    }


async def test_orphans_may_live_on_as_the_roots(bed: Bed) -> None:
    """Open children get the root as parent, which gets their answers. Deeper runs keep their parents."""
    root, parent, (first, second, ended, below) = await family(bed)

    await parent.complete(orphans=HistoryRetention.PERMANENT)
    await first.start()
    await first.complete("late")

    of_root = {r.run_id for r in await bed.store.lists.children(root.run_id)}
    assert of_root == {parent.run_id, first.run_id, second.run_id}
    assert [r.run_id for r in await bed.store.lists.children(parent.run_id)] == [ended.run_id]
    assert [r.run_id for r in await bed.store.lists.children(second.run_id)] == [below.run_id]
    assert (await row(bed, second)).cancel_requested is None
    assert (await row(bed, second)).parent == root.run_id
    assert [a.result for a in await answers(bed, root) if a.key == first.run_id] == ["late"]


async def test_a_cancel_of_the_root_reaches_what_it_took_over(bed: Bed) -> None:
    """Adopted children are part of the root's subtree."""
    root, parent, (first, second, _, below) = await family(bed)
    await parent.complete(orphans=HistoryRetention.PERMANENT)

    report = await bed.store.arrivals.request_cancel(root.run_id, reason="enough")

    assert {run_id for run_id, _ in report.runs} == {
        run.run_id for run in (root, first, second, below)
    }


async def test_the_children_of_a_root_that_lets_them_live_stay_its_own(bed: Bed) -> None:
    """A root has no ancestor that could adopt them."""
    root, parent, _ = await family(bed)

    await root.complete(orphans=HistoryRetention.PERMANENT)

    assert (await row(bed, parent)).parent == root.run_id
    assert (await row(bed, parent)).cancel_requested is None


async def test_without_policy_children_are_left_alone(bed: Bed) -> None:
    """A commit without an orphan policy changes no child."""
    _, parent, (first, second, _, below) = await family(bed)

    await parent.complete()

    for run in (first, second, below):
        assert (await row(bed, run)).cancel_requested is None
    assert (await row(bed, first)).parent == parent.run_id


@pytest.mark.item(130)
async def test_a_cancel_reaches_three_levels(bed: Bed) -> None:
    """Every open run of the tree is flagged, for each parent and each kind of wait."""
    root, parent, (first, second, ended, below) = await family(bed)

    report = await bed.store.arrivals.request_cancel(root.run_id, reason="enough")

    flagged_runs = {run_id for run_id, _ in report.runs}
    assert flagged_runs == {run.run_id for run in (root, parent, first, second, below)}
    assert (await row(bed, ended)).cancel_requested is None
