"""Children: spawned, joined, cancelled, counted against the tree's budget, left open."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.agent.agent import HistoryRetention, SpawnBudget, Supervision
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.runtime.sources import RunHandle
from actors.errors import ContractError, OtherTenantError, SpawnDenied, UnknownRunError
from tests.behaviour.agents import Acting

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


async def double(ctx: RunContext, inbox: list[Message]) -> Any:
    """A child that executes one step."""
    return await ctx.step("double", lambda x: x * 2, inbox[0].payload)


async def wait_for_go(ctx: RunContext, inbox: list[Message]) -> Any:
    """A child that waits for the signal `go`."""
    del inbox
    return await ctx.sleep_until_signal("go")


@pytest.mark.item(82, 83, 127, 128, 228, 232, 233, 235, 255)
async def test_a_child_is_spawned_and_joined(bed: Bed) -> None:
    """It has its own log; the parent's has child.spawned and child.completed, once each."""
    child = await bed.serve(double)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        handle = await ctx.spawn(child, 21)
        result = await ctx.join(handle)
        return [handle.run_id, result.status.value, result.output]

    run_id = await bed.submit(await bed.serve(act), priority=3)
    child_run, status, output = await bed.result(run_id)
    assert (status, output) == ("COMPLETED", 42)
    kinds = await bed.kinds(run_id)
    assert (kinds.count(K.CHILD_SPAWNED), kinds.count(K.CHILD_COMPLETED)) == (1, 1)
    row = await bed.row(child_run)
    assert (row.parent, row.root, row.depth, row.agent_id) == (run_id, run_id, 1, child)
    assert row.priority == 3
    assert await bed.kinds(child_run) == [
        K.RUN_STARTED,
        K.MSG_RECEIVED,
        K.EFFECT_INTENT,
        K.EFFECT_RESULT,
        K.RUN_COMPLETED,
    ]
    [handle] = await bed.runtime.children(run_id)
    assert handle == RunHandle(child_run, child, run_id)


@pytest.mark.item(82, 126, 128, 234)
async def test_replay_finds_the_same_child(bed: Bed) -> None:
    """However often the parent crashes there is one child, whose agent has the key drawn once."""
    child = await bed.serve(wait_for_go)

    async def body(ctx: RunContext) -> object:
        handle = await ctx.spawn(child, 1)
        return handle.run_id

    values = await bed.live_and_replayed(body)
    assert len(set(map(str, values))) == 1
    row = await bed.row(values[0])
    assert row.parent is not None
    assert len(await bed.runtime.children(row.parent)) == 1
    await bed.runtime.cancel(values[0])


@pytest.mark.item(83, 105, 129, 168, 230)
@pytest.mark.parametrize("when", ["ended", "waiting"])
async def test_join_takes_a_child_that_ended_before_or_later(bed: Bed, when: str) -> None:
    """A waiting parent is woken; a join of an ended child does not wait."""
    child = await bed.serve(wait_for_go)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        handle = await ctx.spawn(child)
        await ctx.step("mark", bed.world.do, "mark", handle.run_id)
        if when == "ended":
            await ctx.step("gate", bed.world.wait, "gate")
        first = await ctx.join(handle)
        again = await ctx.join(handle.run_id)
        return [first.output, again.output]

    run_id = await bed.submit(await bed.serve(act))
    mark = await bed.seen(run_id, K.EFFECT_RESULT, name="mark")
    child_run = RunId(str(mark.payload["value"]))
    if when == "waiting" and bed.drops:
        await bed.seen(run_id, K.RUN_SUSPENDED)
        assert (await bed.row(run_id)).status is RunStatus.SUSPENDED
    await bed.runtime.signal(child_run, "go", "went")
    await bed.ended(child_run)
    bed.world.gates["gate"].set()
    assert await bed.result(run_id) == ["went", "went"]


@pytest.mark.item(83, 129, 232)
async def test_a_parent_that_dies_after_its_child_ended_gets_its_result(bed: Bed) -> None:
    """The result is a row that the parent's next host reads."""
    child = await bed.serve(wait_for_go)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        handle = await ctx.spawn(child)
        await ctx.step("mark", bed.world.do, "mark", handle.run_id)
        await ctx.step("gate", bed.world.wait, "gate")
        return (await ctx.join(handle)).output

    run_id = await bed.submit(await bed.serve(act))
    mark = await bed.seen(run_id, K.EFFECT_RESULT, name="mark")
    child_run = RunId(str(mark.payload["value"]))
    await bed.runtime.signal(child_run, "go", "kept")
    await bed.ended(child_run)
    await bed.restart()
    bed.world.gates["gate"].set()
    assert await bed.result(run_id) == "kept"


@pytest.mark.item(83)
async def test_gather_and_select_take_handles(bed: Bed) -> None:
    """A handle among the branches is joined; select's winner is the child that ended first."""
    child, slow = await bed.serve(double), await bed.serve(wait_for_go)

    agent_type = bed.name().type
    await bed.runtime.register_type(agent_type, lambda agent_id: Acting(agent_id, double))

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        handles = [await ctx.spawn(agent_type, n, key=f"k{n}") for n in range(2)]
        handles.append(await ctx.spawn(agent_type, 2))
        results = await ctx.gather(*handles)
        waiting = await ctx.spawn(slow)
        index, winner = await ctx.select(waiting, await ctx.spawn(child, 9))
        return [[r.output for r in results], index, winner.output]

    assert await bed.play(act) == [[0, 2, 4], 1, 18]


@pytest.mark.item(83, 84, 233, 255)
async def test_the_failure_of_a_child_is_a_result(bed: Bed) -> None:
    """Join raises nothing: it returns status and error, also of a cancelled child."""

    async def fail(ctx: RunContext, inbox: list[Message]) -> object:
        del ctx, inbox
        raise ContractError("no such thing")

    failing, waiting = await bed.serve(fail), await bed.serve(wait_for_go)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        failed = await ctx.join(await ctx.spawn(failing, 1))
        handle = await ctx.spawn(waiting, 1)
        await ctx.cancel(handle, reason="enough")
        cancelled = await ctx.join(handle)
        return [
            failed.status.value,
            (failed.error or {}).get("message"),
            cancelled.status.value,
            cancelled.error,
        ]

    assert await bed.play(act) == ["FAILED", "no such thing", "CANCELLED", {"message": "enough"}]


@pytest.mark.item(126, 128, 229)
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_crash_around_the_commit_of_a_spawn_leaves_one_child(bed: Bed, moment: str) -> None:
    """Before the commit there is no child, after it there is one; the replay ends with one."""
    child = await bed.serve(double)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        if moment == "before":
            await ctx.step("gate", bed.world.wait, "gate")
        handle = await ctx.spawn(child, 4)
        if moment == "after":
            await ctx.step("mark", bed.world.do, "mark")
            await ctx.step("gate", bed.world.wait, "gate")
        return (await ctx.join(handle)).output

    run_id = await bed.submit(await bed.serve(act))
    await bed.seen(run_id, K.EFFECT_RESULT if moment == "after" else K.RUN_STARTED)
    assert len(await bed.runtime.children(run_id)) == (moment == "after")
    await bed.restart()
    bed.world.gates["gate"].set()
    assert await bed.result(run_id) == 8
    assert len(await bed.runtime.children(run_id)) == 1


@pytest.mark.item(236, 237, 238)
@pytest.mark.parametrize("caught", [True, False])
async def test_a_spawn_over_budget_is_denied(bed: Bed, caught: bool) -> None:
    """Spawns within the budget succeed; the others raise, the same on replay; uncaught it ends the run."""
    child = await bed.serve(double)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        outputs: list[object] = []
        for n in range(4):
            try:
                handle = await ctx.spawn(child, n)
            except SpawnDenied as exc:
                if not caught:
                    raise
                outputs.append(exc.parent == ctx.run_id)
            else:
                outputs.append((await ctx.join(handle)).output)
        await ctx.sleep(0.01)
        return outputs

    agent = await bed.serve(act)
    run_id = await bed.submit(agent, spawn_budget=SpawnBudget(max_runs=2))
    row = await bed.ended(run_id)
    if caught:
        assert row.result == [0, 2, True, True]
    else:
        assert row.error is not None
        assert (row.status, row.error["status"]) == (RunStatus.FAILED, "budget_exhausted")
    assert len(await bed.runtime.children(run_id)) == 2


@pytest.mark.item(236, 237)
async def test_spawns_of_one_commit_are_counted_together(bed: Bed) -> None:
    """Spawned in one commit, the first two are within the budget and the third raises."""
    child = await bed.serve(double)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        handles: list[RunHandle] = []
        denied = 0
        for n in range(4):
            try:
                handles.append(await ctx.spawn(child, n))
            except SpawnDenied:
                denied += 1
        return [[(await ctx.join(handle)).output for handle in handles], denied]

    run_id = await bed.submit(await bed.serve(act), spawn_budget=SpawnBudget(max_runs=2))
    assert await bed.result(run_id) == [[0, 2], 2]


@pytest.mark.item(237)
async def test_a_denied_spawn_disturbs_no_effect_of_another_branch(bed: Bed) -> None:
    """A concurrent at-most-once effect is executed once and not in doubt."""
    child = await bed.serve(double)

    async def charge(ctx: RunContext) -> object:
        return await ctx.step("charge", bed.world.wait, "gate", effect="at_most_once")

    async def spawn(ctx: RunContext) -> object:
        await ctx.step("mark", bed.world.do, "mark")
        denied = 0
        for n in range(3):
            try:
                await ctx.spawn(child, n)
            except SpawnDenied:
                denied += 1
        bed.world.gates["gate"].set()
        return denied

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        return await ctx.gather(charge(ctx), spawn(ctx))

    run_id = await bed.submit(await bed.serve(act), spawn_budget=SpawnBudget(max_runs=1))
    assert await bed.result(run_id) == [True, 2]


@pytest.mark.item(238)
async def test_a_child_has_no_budget_of_its_own(bed: Bed) -> None:
    """Its supervision has another budget, but the tree's root decides."""
    leaf = await bed.serve(double)

    async def middle(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        try:
            await ctx.join(await ctx.spawn(leaf, 1))
        except SpawnDenied:
            return "denied"
        return "spawned"

    agent = await bed.serve(middle)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        rich = Supervision(run_id="x", root_id="x", spawn_budget=SpawnBudget(max_runs=99))
        return (await ctx.join(await ctx.spawn(agent, 1, supervision=rich))).output

    run_id = await bed.submit(await bed.serve(act), spawn_budget=SpawnBudget(max_runs=1))
    assert await bed.result(run_id) == "denied"


@pytest.mark.item(253)
async def test_a_childs_supervision_survives_a_restart(bed: Bed) -> None:
    """Parent, root, depth, priority, retention and session are stored with it."""
    supervisions: list[Supervision] = []

    async def child_act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        supervisions.append(ctx.meta.supervision)
        return await ctx.sleep_until_signal("go")

    child = await bed.serve(child_act)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        terms = Supervision(
            run_id="-", root_id="-", priority=2, retention=HistoryRetention.PERMANENT
        )
        handle = await ctx.spawn(child, 1, supervision=terms)
        await ctx.step("mark", bed.world.do, "mark", handle.run_id)
        return (await ctx.join(handle)).output

    run_id = await bed.submit(await bed.serve(act), session_id="s1")
    mark = await bed.seen(run_id, K.EFFECT_RESULT, name="mark")
    child_run = RunId(str(mark.payload["value"]))
    await bed.until(lambda: supervisions)
    await bed.restart()
    await bed.runtime.signal(child_run, "go", 1)
    assert await bed.result(run_id) == 1
    assert len(supervisions) >= 2
    for terms in supervisions:
        assert (terms.run_id, terms.parent_id, terms.root_id) == (child_run, run_id, run_id)
        assert (terms.depth, terms.priority, terms.session_id) == (1, 2, "s1")
        assert terms.retention is HistoryRetention.PERMANENT


@pytest.mark.item(82)
async def test_invalid_spawns_and_joins_are_refused(bed: Bed) -> None:
    """The own agent, another tenant, an unknown run: each error names the problem, the same on replay."""

    async def body(ctx: RunContext) -> list[str]:
        problems: list[str] = []
        for attempt in (
            lambda: ctx.spawn(ctx.agent_id, 1),
            lambda: ctx.spawn(AgentId("x", "1", "elsewhere"), 1),
            lambda: ctx.send(AgentId("x", "1", "elsewhere"), 1),
            lambda: ctx.join("0" * 32),
            lambda: ctx.status("0" * 32),
            lambda: ctx.cancel("0" * 32),
        ):
            try:
                await attempt()
            except ContractError as exc:
                problems.append(type(exc).__name__)
        return problems

    values = await bed.live_and_replayed(body)
    unknown = [UnknownRunError.__name__] * 3
    tenant = [OtherTenantError.__name__] * 2
    assert all(value == ["ContractError", *tenant, *unknown] for value in values)


@pytest.mark.item(97)
async def test_the_status_of_a_child_is_recorded(bed: Bed) -> None:
    """One read returns status, end of the log and last milestone; it is recorded."""
    child = await bed.serve(wait_for_go)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        handle = await ctx.spawn(child)
        await ctx.step("gate", bed.world.wait, "gate")
        before = await ctx.status(handle)
        await ctx.join(handle)
        after = await ctx.status(handle.run_id)
        return [before.status.value, after.status.value, after.last_milestone, after.last_seq > 1]

    run_id = await bed.submit(await bed.serve(act))
    await bed.seen(run_id, K.EFFECT_INTENT)
    [handle] = await bed.runtime.children(run_id)
    await bed.seen(handle.run_id, K.RUN_STARTED)
    bed.world.gates["gate"].set()
    await bed.seen(run_id, K.EFFECT_RESULT, times=2)
    await bed.runtime.signal(handle.run_id, "go")
    before, *after = await bed.result(run_id)
    assert before in {"PENDING", "RUNNING", "SUSPENDED"}
    assert after == ["COMPLETED", "run.completed", True]


@pytest.mark.item(84, 130, 239)
async def test_cancel_reaches_three_levels(bed: Bed) -> None:
    """Suspended, hot and new runs below all end, each with the reason in its log."""
    leaf = await bed.serve(wait_for_go)

    async def middle(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        return (await ctx.join(await ctx.spawn(leaf))).output

    between = await bed.serve(middle)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        return (await ctx.join(await ctx.spawn(between))).output

    run_id = await bed.submit(await bed.serve(act))
    await bed.seen(run_id, K.CHILD_SPAWNED)
    [child] = await bed.runtime.children(run_id)
    await bed.seen(child.run_id, K.CHILD_SPAWNED)
    [grandchild] = await bed.runtime.children(child.run_id)
    await bed.runtime.cancel(run_id, reason="stop it")
    for id_ in (run_id, child.run_id, grandchild.run_id):
        row = await bed.ended(id_)
        assert row.status is RunStatus.CANCELLED
        [entry] = await bed.log(id_, K.RUN_CANCELLED)
        assert entry.payload["reason"] == "stop it"


@pytest.mark.item(239)
@pytest.mark.parametrize(
    "policy", [HistoryRetention.RUN, HistoryRetention.PERMANENT], ids=["run", "permanent"]
)
async def test_open_children_are_cancelled_or_continue_by_retention(
    bed: Bed, policy: HistoryRetention
) -> None:
    """RUN cancels them, PERMANENT lets them continue; the log has the decision for each child."""
    child = await bed.serve(wait_for_go)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        return (await ctx.spawn(child)).run_id

    run_id = await bed.submit(await bed.serve(act), retention=policy)
    child_run = await bed.result(run_id)
    [orphans] = await bed.log(run_id, K.ORPHANS_RESOLVED)
    assert orphans.payload == {"policy": policy.value, "children": [child_run]}
    if policy is HistoryRetention.PERMANENT:
        await bed.seen(child_run, K.RUN_STARTED)
        await bed.runtime.signal(child_run, "go", "on")
    row = await bed.ended(child_run)
    expected = RunStatus.CANCELLED if policy is HistoryRetention.RUN else RunStatus.COMPLETED
    assert row.status is expected


@pytest.mark.item(236)
async def test_depth_is_not_limited(bed: Bed) -> None:
    """A chain as deep as the budget has runs, each joined by the one above."""
    type_ = bed.name().type

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        remaining = int(inbox[0].payload)  # type: ignore[arg-type]
        if remaining == 0:
            return ctx.meta.supervision.depth
        return (await ctx.join(await ctx.spawn(type_, remaining - 1))).output

    await bed.runtime.register_type(type_, lambda agent_id: Acting(agent_id, act))
    root = await bed.submit(AgentId(type_, "root"), 40, spawn_budget=SpawnBudget(max_runs=40))
    assert await bed.result(root) == 40


@pytest.mark.item(236, 237)
async def test_max_concurrent_releases_slots(bed: Bed) -> None:
    """The end of a child releases its slot for the next one."""
    child = await bed.serve(double)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        outputs = [(await ctx.join(await ctx.spawn(child, n))).output for n in range(3)]
        await ctx.spawn(child, 9)
        with suppress(SpawnDenied):
            await ctx.spawn(child, 9)
            await ctx.sleep(0.01)
            outputs.append("spawned")
        return outputs

    budget = SpawnBudget(max_runs=9, max_concurrent=1)
    run_id = await bed.submit(await bed.serve(act), spawn_budget=budget)
    assert await bed.result(run_id) == [0, 2, 4]
