"""Branches and sub-graphs of flows on agents: concurrent, merged, joined, failed and cancelled."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.scheduler import RunStatus as RowStatus
from actors._workflow.hosted import graph_run
from actors._workflow.hosted.step_entry import OPENED_STEP, STATE
from actors.workflow import (
    Effect,
    EffectOutcome,
    EffectType,
    RunStatus,
    StepPlan,
    WaitReason,
    WorkflowSpec,
)
from tests.behaviour.bed import LIMIT_S
from tests.behaviour.flow_stage import Stage, asking, completing, ending, single, staged

if TYPE_CHECKING:
    from actors.workflow import RunState
    from tests.behaviour.bed import Bed

T = EffectType
SUB = T.START_SUBWORKFLOW


def forking(*names: str, join: str = "end") -> Any:
    """Return a node with branches at nodes of these names."""
    return lambda run, _ctx: StepPlan(
        run.current_node, parallel={name: name for name in names}, next_node=join
    )


def setting(after: str = "end", **values: Any) -> Any:
    """Return a node that changes vars."""

    def node(run: RunState, _ctx: Any) -> StepPlan:
        run.vars.update(values)
        return StepPlan(run.current_node, next_node=after)

    return node


def asking_for(name: str, after: str = "end") -> Any:
    """Return a node that asks a person."""
    payload = {"prompt": "?", "wait_key": name}
    return asking(T.ASK_USER, payload, key=f"in.{name}", after=after)


def fork_of(*names: str, reducers: Any = None, **nodes: Any) -> WorkflowSpec:
    """Return a flow of branches at nodes of these names."""
    return WorkflowSpec(
        "flow", "fork", {"fork": forking(*names), "end": ending} | nodes, reducers or {}
    )


@pytest.mark.item(391, 401, 441)
async def test_branches_go_on_at_the_same_time(bed: Bed) -> None:
    """Their effects and waits overlap, and each has its own records.

    A crash repeats only effects without a record.
    """
    both, calls = asyncio.Barrier(2), []

    async def handle(run: RunState, effect: Effect) -> EffectOutcome:
        calls.append(effect.payload["n"])
        await both.wait()
        return EffectOutcome.completed(effect.payload["n"])

    nodes = {
        name: asking(T.TOOL_CALLS, {"n": name}, key=f"did.{name}", after=f"{name}2")
        for name in "lr"
    }
    nodes |= {f"{name}2": asking_for(name) for name in "lr"}
    stage = await staged(bed, fork_of("l", "r", **nodes), effect_handlers={T.TOOL_CALLS: handle})
    run_id = await stage.runs.start("flow")
    await stage.waits(run_id, 2)
    state = await stage.runs.state(run_id)
    assert state.waiting is not None
    assert state.waiting.reason is WaitReason.BRANCHES
    await stage.runs.resume(run_id, "r", 2)
    await bed.seen(run_id, K.ASK_REPLIED)
    await stage.restart()
    await stage.waits(run_id)
    await stage.runs.resume(run_id, "l", 1)

    assert (await stage.ended(run_id)).output == {
        "did": {"l": "l", "r": "r"},
        "in": {"l": 1, "r": 2},
    }
    assert sorted(calls) == ["l", "r"]
    ways = {
        tuple(record["delta"].get("branch") or ())
        for record in await stage.runs.ledger(run_id)
        if record["delta"]
    }
    assert ways == {(), ("0.l",), ("0.r",)}


@pytest.mark.item(401, 404)
async def test_patches_of_branches_are_merged_in_order(bed: Bed) -> None:
    """Patches are merged in order; a reducer merges one name.

    Two writers of one name, or a failed branch, fail the run.
    """

    def bad(_run: RunState, _ctx: Any) -> StepPlan:
        raise ValueError("on purpose")

    def spec_of(name: str, *branches: str, reducers: Any = None, **nodes: Any) -> WorkflowSpec:
        fork = fork_of(*branches, reducers=reducers, **nodes)
        return WorkflowSpec(name, fork.entry_node, fork.nodes, fork.reducers)

    x, y = setting(x=1), setting(y=2)
    adding = {"x": lambda before, values: sum(values, before or 0)}
    stage = await staged(
        bed,
        spec_of("merged", "a", "b", a=x, b=y),
        spec_of("reduced", "a", "b", "c", reducers=adding, a=x, b=x, c=y),
        spec_of("twice", "a", "b", a=x, b=setting(x=2)),
        spec_of("failed", "a", "b", a=bad, b=y),
        spec_of("none", a=x),
    )

    assert (await stage.play("merged")).output == {"x": 1, "y": 2}
    assert (await stage.play("reduced", vars={"x": 5})).output == {"x": 7, "y": 2}
    assert (await stage.play("none")).output == {}
    twice, failed = await stage.play("twice"), await stage.play("failed")
    assert "branches 'a' and 'b' both changed it" in str(twice.error)
    assert "branch 'a': node 'a' raised ValueError" in str(failed.error)
    assert {twice.status, failed.status} == {RunStatus.FAILED}


@pytest.mark.item(391, 401)
async def test_nested_branches_are_merged_from_the_inside(bed: Bed) -> None:
    """The innermost branches wait, over a crash.

    The outer branch continues when the inner ones are merged.
    """
    nodes = {
        "a": forking("p", "q", join="met"),
        "p": asking_for("p", "met"),
        "q": asking_for("q", "met"),
    }
    nodes |= {"met": setting(met=1), "b": setting(b=1)}
    stage = await staged(bed, fork_of("a", "b", **nodes))
    run_id = await stage.runs.start("flow")
    await stage.waits(run_id, 2)
    await stage.runs.resume(run_id, "q", "Q")
    await stage.restart()
    await stage.waits(run_id, 1)
    await stage.runs.resume(run_id, "p", "P")

    assert (await stage.ended(run_id)).output == {"met": 1, "b": 1, "in": {"p": "P", "q": "Q"}}


async def child_of(stage: Stage, run_id: RunId) -> RunId:
    """Return the first child of a run as soon as there is one."""
    async with asyncio.timeout(LIMIT_S):
        while not (children := await stage.bed.runtime.children(run_id)):  # noqa: ASYNC110 - rows
            await asyncio.sleep(0.01)
    return children[0].run_id


ASKING = single(T.ASK_USER, {"prompt": "?", "wait_key": "k"}, name="child")


@pytest.mark.item(392, 421, 480)
async def test_a_parent_waits_while_its_child_does(bed: Bed) -> None:
    """It gets the child's output, over restarts. The child has its parent, session and principal."""
    sub = {"workflow_id": "child", "vars": {"v": 1}}
    stage = await staged(bed, ASKING, single(SUB, sub))
    run_id = await stage.runs.start("flow", actor_id="ann", session_id="s")
    child = await child_of(stage, run_id)
    await stage.waits(child)
    await bed.seen(run_id, K.CHILD_SPAWNED)
    parent, below = await stage.runs.state(run_id), await stage.runs.state(child)
    assert parent.waiting is not None
    assert (parent.status, parent.waiting.reason) == (RunStatus.WAITING, WaitReason.SUBWORKFLOW)
    assert parent.waiting.wait_key == f"subworkflow:{child}"
    assert (below.parent_run_id, below.actor_id, below.session_id) == (run_id, "ann", "s")
    await stage.restart()
    await stage.runs.resume(child, "k", "yes")

    assert (await stage.ended(run_id)).output == {
        "out": {"sub_run_id": child, "output": {"v": 1, "out": "yes"}}
    }


@pytest.mark.item(421)
async def test_parents_and_clients_decide_nothing_for_a_run(bed: Bed) -> None:
    """The runtime's names are left out of vars. A message with the state of a run is refused."""
    forged = {"_runtime": {"answers": {"k": 1}, "effect_seq": "x"}, "_temp": {"a": 1}, "v": 1}
    stage = await staged(bed, ASKING, single(SUB, {"workflow_id": "child", "vars": forged}))
    child = await child_of(stage, await stage.runs.start("flow"))
    direct = await bed.runtime.submit(AgentId(stage.flows.app, "child:c"), {"vars": forged})
    states = []
    for run_id in (child, direct):
        await stage.waits(run_id)
        states.append(await stage.runs.state(run_id))
        assert (states[-1].vars["_temp"], states[-1].vars["v"]) == ({}, 1)
        assert "answers" not in states[-1].vars["_runtime"]
    start: dict[str, Any] = {
        STATE: states[-1].to_dict(),
        graph_run.HEAD: None,
        graph_run.WAITED: [],
        OPENED_STEP: None,
    }
    posed = await bed.runtime.submit(AgentId(stage.flows.app, "child:d"), start)

    assert f"{STATE!r} in its start message is the runtime's" in str((await bed.ended(posed)).error)


@pytest.mark.item(404, 421, 480)
@pytest.mark.parametrize("how", ["failed", "cancelled"])
async def test_a_child_that_does_not_succeed_fails_its_parent(bed: Bed, how: str) -> None:
    """The parent fails with the child's error, and has its own record."""
    stage = await staged(
        bed,
        ASKING,
        single(T.TOOL_CALLS, {}, name="bad"),
        single(SUB, {"workflow_id": "child"}),
        single(SUB, {"workflow_id": "bad"}, name="other"),
    )
    run_id = await stage.runs.start("flow" if how == "cancelled" else "other")
    child = await child_of(stage, run_id)
    if how == "cancelled":
        await stage.waits(child)
        await stage.runs.cancel(child, reason="enough")

    state = await stage.ended(run_id)

    assert state.status is RunStatus.FAILED
    assert f"(run {child}) {how}: " in str(state.error)
    assert ("enough" if how == "cancelled" else "no handler") in str(state.error)
    assert (await stage.runs.ledger(run_id))[-2]["error"] == state.error


@pytest.mark.item(421)
async def test_a_cancelled_run_cancels_its_children(bed: Bed) -> None:
    """The children that it waits for, their children, and those that it does not wait for."""
    nodes = {
        "apart": asking(SUB, {"workflow_id": "child", "async": True}, key="apart", after="sub"),
        "sub": asking(SUB, {"workflow_id": "middle"}),
        "end": ending,
    }
    middle = single(SUB, {"workflow_id": "child"}, name="middle")
    stage = await staged(bed, ASKING, middle, WorkflowSpec("flow", "apart", nodes))
    run_id = await stage.runs.start("flow")
    async with asyncio.timeout(LIMIT_S):
        while len(children := await bed.runtime.children(run_id)) < 2:  # noqa: ASYNC110 - rows
            await asyncio.sleep(0.01)
    below = await child_of(stage, children[1].run_id)
    for waiting in (children[0].run_id, below):
        await stage.waits(waiting)

    await stage.runs.cancel(run_id)

    for id_ in (run_id, *(child.run_id for child in children), below):
        assert (await bed.ended(id_)).status is RowStatus.CANCELLED


@pytest.mark.item(421)
async def test_an_asynchronous_child_outlives_its_parent(bed: Bed) -> None:
    """The parent gets its id at once. A wait for it returns its output."""
    sub = {"workflow_id": "child", "async": True}
    stage = await staged(
        bed, ASKING, single(SUB, sub), single(SUB, sub | {"wait": True}, name="both")
    )
    state = await stage.play("flow")
    child = RunId(state.output["out"]["sub_run_id"])
    assert state.output["out"]["async"] is True
    both = await stage.runs.start("both")
    joined = await child_of(stage, both)
    for run_id in (child, joined):
        await stage.waits(run_id)
        await stage.runs.resume(run_id, "k", "yes")
    assert (await stage.ended(child)).output == {"out": "yes"}
    assert (await stage.ended(both)).output["out"]["output"] == {"out": "yes"}


@pytest.mark.item(404, 421)
async def test_a_sub_graph_that_cannot_start_fails_the_step(bed: Bed) -> None:
    """The reason is in a record. The run is not retried, and no wait stays open."""
    bad: dict[str, tuple[dict[str, Any], str]] = {
        "none": ({}, "needs payload.workflow_id"),
        "unknown": ({"workflow_id": "gone"}, "'gone' was not found"),
        "vars": ({"workflow_id": "child", "vars": [1]}, "payload.vars is a list"),
        "long": ({"workflow_id": "child", "run_id": "x" * 400}, "is not valid"),
        "large": ({"workflow_id": "child", "vars": {"x": "y" * 300_000}}, "262144 are the limit"),
        "self": ({"workflow_id": "self", "run_id": "r"}, "cannot spawn a run of its own agent"),
        "limits": ({"workflow_id": "child", "vars": {"_limits": 3}}, "needs an object there"),
    }
    specs = [single(SUB, payload, name=name) for name, (payload, _) in bad.items()]
    stage = await staged(bed, ASKING, *specs)

    for name, (_, error) in bad.items():
        state = await stage.play(name, id="r")
        assert state.status is RunStatus.FAILED
        assert error in str(state.error)
        run_id = RunId(state.run_id)
        assert (await stage.runs.ledger(run_id))[-2]["error"] == state.error
        assert not await bed.log(run_id, K.RUN_ATTEMPT_FAILED)


@pytest.mark.item(421)
async def test_the_depth_of_sub_graphs_is_bounded(bed: Bed) -> None:
    """A flow that starts itself without end fails at the limit, and so do all runs above it."""
    stage = await staged(bed, single(SUB, {"workflow_id": "flow"}))

    state = await stage.play("flow")

    assert "sub-graphs within each other" in str(state.error)


@pytest.mark.item(391, 421)
async def test_a_child_is_joined_by_a_later_generation(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A generation after continue-as-new, and a wait for the child's end."""
    monkeypatch.setattr(graph_run, "ENTRIES_KEPT", 3)

    def loop(run: RunState, _ctx: Any) -> StepPlan:
        n = run.vars["n"] = run.vars.get("n", 0) + 1
        return StepPlan(
            "loop", Effect(T.TOOL_CALLS, {}, "did"), next_node="loop" if n < 9 else "ask"
        )

    nodes = {
        "sub": asking(
            SUB, {"workflow_id": "child", "async": True, "run_id": "c"}, key="sub", after="loop"
        ),
        "loop": loop,
        "ask": asking(SUB, {"workflow_id": "again", "run_id": "d"}),
        "end": ending,
    }
    again = single(T.TOOL_CALLS, {}, name="again")
    stage = await staged(
        bed,
        ASKING,
        again,
        WorkflowSpec("flow", "sub", nodes),
        effect_handlers={T.TOOL_CALLS: completing(1)},
    )
    state = await stage.play("flow")
    run_id = RunId(state.run_id)

    assert len(await bed.log(run_id, K.RUN_CONTINUED)) >= 2
    assert state.output["out"]["output"] == {"out": 1}
    child = RunId(state.output["sub"]["sub_run_id"])
    assert (await child_of(stage, run_id)) == child
    await stage.waits(child)
