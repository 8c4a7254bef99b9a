"""The contract of `Supervisor`, over every assembly."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.agent import SpawnBudget, Supervision
from actors._kernel.agent.message import Message
from actors._kernel.runtime.commit import Park
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.log_entry import EntryKind, NewEntry
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.runtime.sources import RunHandle, RunResult
from actors._kernel.runtime.waits import WakeSet
from actors._runtime.parts import ComposedStore, InMemoryEventLog, SupervisorView
from actors.errors import (
    ContractError,
    IllegalTransitionError,
    LeaseLostError,
    OtherTenantError,
    SpawnDenied,
    UnknownRunError,
)
from tests.conformance.bed import DESK, Bed, Turns, result
from tests.conformance.clock import ManualClock
from tests.conformance.conftest import OWNER, composed_bed
from tests.conformance.talk import CLERK, answers, join_wait, rest, row, terms

if TYPE_CHECKING:
    from actors._kernel.runtime.sources import Supervisor

OTHER = AgentId("clerk", "8")


def supervisor_of(bed: Bed, nudges: list[Nudge] | None = None) -> Supervisor:
    """The supervisor of this host."""
    follow = None if nudges is None else nudges.append
    return SupervisorView(bed.store, lease_of=bed.lease_of, follow=follow)


async def spawned_entries(bed: Bed, run: Turns) -> list[object]:
    """The children that the run's log names."""
    log = bed.store.reads.entries(run.run_id)
    return [e.payload["child"] async for e in log if e.kind == EntryKind.CHILD_SPAWNED]


@pytest.mark.item(127, 128, 145, 228)
async def test_spawn_creates_one_child_with_its_message(bed: Bed) -> None:
    """One entry in the parent's log, one run, the message bound to it, and the host is told."""
    parent, nudges = await bed.begin(), list[Nudge]()
    boot = Message.of(CLERK, {"do": "it"})

    handle = await supervisor_of(bed, nudges).spawn(
        CLERK, parent=parent.run_id, supervision=terms(), boot=boot
    )

    (loaded,) = await bed.store.reads.load([handle.run_id])
    assert handle == RunHandle(handle.run_id, CLERK, parent.run_id)
    assert await spawned_entries(bed, parent) == [handle.run_id]
    assert [m.message.payload for m in loaded.messages] == [{"do": "it"}]
    assert loaded.row.status is RunStatus.PENDING
    assert await bed.store.backlog.pending_mail(agent=CLERK) == []
    assert nudges == [Nudge("run", CLERK, handle.run_id)]
    assert await bed.store.operators.refold(parent.run_id) == await row(bed, parent)


@pytest.mark.item(126, 234)
async def test_the_same_spawn_is_the_same_child(bed: Bed) -> None:
    """Asked again with the same message it names the child that is there, also from another view."""
    parent, boot = await bed.begin(), Message.of(CLERK, "go")
    first = await supervisor_of(bed).spawn(
        CLERK, parent=parent.run_id, supervision=terms(), boot=boot
    )

    again = await supervisor_of(bed).spawn(
        CLERK, parent=parent.run_id, supervision=terms(), boot=boot
    )
    other = await supervisor_of(bed).spawn(
        OTHER, parent=parent.run_id, supervision=terms(), boot=boot
    )

    assert again == first
    assert other.run_id != first.run_id
    assert await spawned_entries(bed, parent) == [first.run_id, other.run_id]


async def test_spawns_at_once_are_so_many_children(bed: Bed) -> None:
    """Each has its place in the parent's log; without a message too."""
    parent, supervisor = await bed.begin(), supervisor_of(bed)

    handles = await asyncio.gather(
        *(
            supervisor.spawn(
                AgentId("clerk", f"{n}"),
                parent=parent.run_id,
                supervision=terms(),
                boot=Message.of(CLERK, n) if n % 2 else None,
            )
            for n in range(6)
        )
    )

    assert len({handle.run_id for handle in handles}) == 6
    assert set(await spawned_entries(bed, parent)) == {handle.run_id for handle in handles}
    children = await supervisor.children_of(parent.run_id)
    assert {child.agent_id for child in children} == {handle.agent_id for handle in handles}


async def test_children_are_named_in_their_order(bed: Bed) -> None:
    """As they were spawned; a run without children has none."""
    parent, supervisor = await bed.begin(), supervisor_of(bed)
    handles = [
        await supervisor.spawn(AgentId("clerk", f"{n}"), parent=parent.run_id, supervision=terms())
        for n in range(3)
    ]

    assert await supervisor.children_of(parent.run_id) == handles
    assert await supervisor.children_of(handles[0].run_id) == []


async def test_a_waiting_parent_goes_on_waiting(bed: Bed) -> None:
    """A child that is spawned from outside does not wake its parent."""
    parent, nudges = await bed.begin(), list[Nudge]()
    wake = WakeSet(signals=("go",), at=bed.in_s(3600))
    await parent.suspend(wake)

    handle = await supervisor_of(bed, nudges).spawn(
        CLERK, parent=parent.run_id, supervision=terms()
    )

    now = await row(bed, parent)
    assert (now.status, now.wake) == (RunStatus.SUSPENDED, wake)
    assert nudges == [Nudge("run", CLERK, handle.run_id)]
    assert await bed.store.operators.refold(parent.run_id) == now


@pytest.mark.item(238, 253)
async def test_a_child_is_where_its_parent_puts_it(bed: Bed) -> None:
    """Its terms are kept; place and root are those of the tree, whatever they claim."""
    parent, supervisor = await bed.begin(), supervisor_of(bed)
    claims = Supervision(
        run_id="mine",
        root_id="mine",
        parent_id=None,
        depth=0,
        priority=8,
        spawn_budget=SpawnBudget(max_runs=3),
        session_id="s",
    )

    handle = await supervisor.spawn(CLERK, parent=parent.run_id, supervision=claims)

    child = await row(bed, handle.run_id)
    assert (child.parent, child.root, child.depth) == (parent.run_id, parent.run_id, 1)
    assert child.priority == 8
    assert child.supervision == claims.model_copy(
        update={
            "run_id": handle.run_id,
            "root_id": parent.run_id,
            "parent_id": parent.run_id,
            "depth": 1,
        }
    )


@pytest.mark.item(236, 237)
async def test_a_spawn_over_the_budget_is_denied(bed: Bed) -> None:
    """The error names the run and the limit; nothing was written."""
    parent = await bed.begin(supervision=terms(spawn=SpawnBudget(max_runs=1)))
    supervisor = supervisor_of(bed)
    first = await supervisor.spawn(CLERK, parent=parent.run_id, supervision=terms())

    with pytest.raises(SpawnDenied) as caught:
        await supervisor.spawn(OTHER, parent=parent.run_id, supervision=terms())

    assert (caught.value.parent, caught.value.limit) == (parent.run_id, "max_runs 1")
    assert await spawned_entries(bed, parent) == [first.run_id]


async def test_spawn_needs_a_parent_that_can_have_children(bed: Bed) -> None:
    """Unknown, not begun, parked or ended parents, and other tenants, are refused with a reason."""
    supervisor = supervisor_of(bed)
    queued = await bed.submit(agent=OTHER)
    ended, parked = await bed.begin(), await bed.begin(agent=AgentId("desk", "2"))
    await ended.complete()
    why = NewEntry(EntryKind.RUN_PARKED, "", {"reason": "in_doubt"})
    await parked.commit(parked.turn(why, then=Park("in_doubt")))

    for parent in (queued.run_id, ended.run_id, parked.run_id):
        with pytest.raises(IllegalTransitionError):
            await supervisor.spawn(CLERK, parent=parent, supervision=terms())
    with pytest.raises(UnknownRunError):
        await supervisor.spawn(CLERK, parent=RunId("0" * 32), supervision=terms())
    with pytest.raises(OtherTenantError):
        await supervisor.spawn(
            AgentId("clerk", "7", "acme"), parent=ended.run_id, supervision=terms()
        )


async def test_spawn_needs_the_parents_lease(bed: Bed) -> None:
    """A host that does not own the parent's agent may not write to its log."""
    parent = await bed.begin()
    stranger = SupervisorView(bed.store, lease_of=lambda _: None)

    with pytest.raises(LeaseLostError):
        await stranger.spawn(CLERK, parent=parent.run_id, supervision=terms())

    assert await bed.store.lists.children(parent.run_id) == []


@pytest.mark.item(129, 233)
async def test_join_returns_how_a_run_ended(bed: Bed) -> None:
    """Output, error or reason; also when it ended before, through a handle made from its id."""
    done, failed, cancelled = [await bed.begin(agent=AgentId("desk", f"{n}")) for n in range(3)]
    await done.complete({"n": 1})
    await failed.fail("boom")
    await cancelled.cancel("enough")
    supervisor = supervisor_of(bed)

    results = [
        await supervisor.join(RunHandle(run.run_id, run.agent)) for run in (done, failed, cancelled)
    ]

    assert [(r.status, r.output, r.error) for r in results] == [
        (RunStatus.COMPLETED, {"n": 1}, None),
        (RunStatus.FAILED, None, {"type": "builtins:ValueError", "message": "boom"}),
        (RunStatus.CANCELLED, None, {"message": "enough"}),
    ]
    assert [r.run_id for r in results] == [done.run_id, failed.run_id, cancelled.run_id]


@pytest.mark.item(129)
async def test_join_waits_for_the_end(bed: Bed) -> None:
    """It returns when the run has ended, not before; several may wait, and one may stop waiting."""
    run, supervisor = await bed.begin(), supervisor_of(bed)
    handle = RunHandle(run.run_id, DESK)
    joins = [asyncio.ensure_future(supervisor.join(handle)) for _ in range(3)]
    await run.commit(run.turn(result("0")))
    joins[0].cancel()
    await asyncio.wait(joins[:1])
    early = [join.done() for join in joins]

    await run.complete("done")
    async with asyncio.timeout(10):
        results = await asyncio.gather(*joins[1:])

    assert early == [True, False, False]
    assert [r.output for r in results] == ["done", "done"]


async def test_join_needs_a_run(bed: Bed) -> None:
    """An unknown one is an error, not a wait for ever."""
    with pytest.raises(UnknownRunError):
        await supervisor_of(bed).join(RunHandle(RunId("0" * 32), DESK))


@pytest.mark.item(232, 252)
async def test_a_completion_is_recorded_once(bed: Bed) -> None:
    """The parent has one answer and is woken once, by the first result, whoever records the next."""
    parent, nudges = await bed.begin(), list[Nudge]()
    child = await parent.spawn("c", CLERK)
    supervisor = supervisor_of(bed, nudges)
    first = RunResult(run_id=child.run_id, status=RunStatus.COMPLETED, output=1)

    await supervisor.record_completion(child.run_id, first)
    await supervisor.record_completion(child.run_id, first.model_copy(update={"output": 2}))
    await child.start()
    await child.complete(3)

    assert [(a.key, a.result) for a in await answers(bed, parent)] == [(child.run_id, 1)]
    assert nudges == [Nudge("signal", DESK, parent.run_id)]
    assert (await rest(parent, join_wait(child))).wake_now


async def test_a_completion_is_the_runs_own_and_final(bed: Bed) -> None:
    """A status that is no end, or another run's result, is refused; a root's has nobody to tell."""
    run, supervisor = await bed.begin(), supervisor_of(bed)
    ended = RunResult(run_id=run.run_id, status=RunStatus.COMPLETED)

    await supervisor.record_completion(run.run_id, ended)
    for wrong in ({"status": RunStatus.RUNNING}, {"run_id": "other"}):
        with pytest.raises(ContractError):
            await supervisor.record_completion(run.run_id, ended.model_copy(update=wrong))
    unknown = RunId("0" * 32)
    with pytest.raises(UnknownRunError):
        await supervisor.record_completion(unknown, ended.model_copy(update={"run_id": unknown}))

    assert await answers(bed, run) == []


@pytest.mark.item(130)
async def test_cancel_flags_the_subtree(bed: Bed) -> None:
    """Three levels, each told once, with the reason; again is no error."""
    root, nudges = await bed.begin(), list[Nudge]()
    child = await (await root.spawn("c", CLERK)).start()
    grandchild = await child.spawn("g", OTHER)
    supervisor = supervisor_of(bed, nudges)

    await supervisor.cancel(RunHandle(root.run_id, DESK), reason="enough")
    await supervisor.cancel(RunHandle(root.run_id, DESK), reason="more")

    for run in (root, child, grandchild):
        assert (await row(bed, run)).cancel_requested == "enough"
        assert Nudge("cancel", run.agent, run.run_id) in nudges
    with pytest.raises(UnknownRunError):
        await supervisor.cancel(RunHandle(RunId("0" * 32), DESK))


@pytest.mark.item(153)
async def test_a_given_event_log_has_the_childs_entry() -> None:
    """On a composed store the supervisor writes `child.spawned` into that object."""
    clock = ManualClock()
    log = InMemoryEventLog(clock=clock)
    async with composed_bed() as bed:
        bed.store = ComposedStore(clock=clock, event_log=log)
        await bed.claim()
        parent = await bed.begin()

        handle = await supervisor_of(bed).spawn(
            CLERK, parent=parent.run_id, supervision=terms(), boot=Message.of(CLERK, "go")
        )

    entries = [entry async for entry in log.read(parent.run_id)]
    assert bed.owner == OWNER
    assert [entry.kind for entry in entries] == [EntryKind.RUN_STARTED, EntryKind.CHILD_SPAWNED]
    assert entries[-1].payload["child"] == handle.run_id
    assert entries[-1].payload["boot"] == "go"


@pytest.mark.item(145, 255)
async def test_the_tree_survives_its_host(bed: Bed) -> None:
    """Another host, with a supervisor of its own, knows the children and their results."""
    parent = await bed.begin()
    handle = await supervisor_of(bed).spawn(CLERK, parent=parent.run_id, supervision=terms())
    child = await Turns(bed, handle.run_id, CLERK).start()
    await child.complete("done")

    async with bed.rival() as rival:
        await bed.lose_to(rival)
        supervisor = supervisor_of(rival)
        children = await supervisor.children_of(parent.run_id)
        joined = await supervisor.join(RunHandle(children[0].run_id, children[0].agent_id))
        later = await supervisor.spawn(OTHER, parent=parent.run_id, supervision=terms())
        (answer,) = await rival.store.reads.answers(parent.run_id)

    assert children == [handle]
    assert (joined.status, joined.output) == (RunStatus.COMPLETED, "done")
    assert (answer.key, answer.result) == (handle.run_id, "done")
    assert later.run_id != handle.run_id
