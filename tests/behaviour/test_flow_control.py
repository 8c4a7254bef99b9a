"""Runs of graphs that are paused or get messages, and runs on a host without their graph."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.workflow.errors import (
    GraphError,
    NoSuchSnapshotError,
    SpecChangedError,
    StaleResumeError,
)
from actors._workflow.hosted import graph_run
from actors.errors import ContractError, InvalidTextError, MessageTooLargeError
from actors.workflow import (
    Effect,
    EffectOutcome,
    EffectType,
    FlowRuns,
    Flows,
    StepPlan,
    WorkflowSpec,
    verify_ledger_chain,
)
from tests.behaviour.bed import LIMIT_S

if TYPE_CHECKING:
    from actors._kernel.runtime.ids import RunId
    from actors.workflow import RunState
    from tests.behaviour.bed import Bed


def asking(key: str, after: str) -> Any:
    """Return a node that asks a person."""
    return lambda run, _ctx: StepPlan(
        run.current_node,
        Effect(EffectType.ASK_USER, {"prompt": "?", "wait_key": key}, key),
        next_node=after,
    )


def telling(run: RunState, _ctx: Any) -> StepPlan:
    """Return the end node, with the messages of the run."""
    texts = [entry["message"]["content"] for entry in run.vars["_runtime"].get("inbox", ())]
    most = run.vars["_limits"]["max_iterations"]
    return StepPlan("end", complete_output={"told": texts, "most": most})


def forking(run: RunState, _ctx: Any) -> StepPlan:
    """Return a node with two branches that ask."""
    return StepPlan(run.current_node, parallel={"x": "x", "y": "y"}, next_node="end")


TWICE = WorkflowSpec("twice", "a", {"a": asking("a", "b"), "b": asking("b", "end"), "end": telling})
FORK = WorkflowSpec(
    "fork",
    "fork",
    {"fork": forking, "x": asking("x", "x2"), "x2": asking("x2", "end"), "y": asking("y", "end")}
    | {"end": telling},
)


async def waits_for(runs: FlowRuns, run_id: RunId, *keys: str) -> None:
    """Return when a run has these waits."""
    async with asyncio.timeout(LIMIT_S):
        while {wait.wait_key for wait in await runs.waits(run_id)} != {*keys}:  # noqa: ASYNC110 - rows
            await asyncio.sleep(0.01)


async def app_on(bed: Bed, *specs: WorkflowSpec) -> FlowRuns:
    """Serve graphs as an app of its own."""
    app = bed.name().type
    await Flows(app, specs).register(bed.runtime)
    return FlowRuns(bed.runtime, app)


@pytest.mark.item(427)
async def test_a_paused_run_keeps_answers_until_it_is_resumed(bed: Bed) -> None:
    """An answer that comes meanwhile has no effect yet; messages and limits are applied, in order."""
    runs = await app_on(bed, TWICE)
    run_id = await runs.start("twice")
    await waits_for(runs, run_id, "a")
    await runs.pause_run(run_id, "lunch")
    assert (await runs.state(run_id)).vars["_runtime"]["control"]["reason"] == "lunch"
    await runs.resume(run_id, "a", "first")
    await runs.steer(run_id, "one")
    await runs.update_limits(run_id, {"max_iterations": 7, "nonsense": 1})
    await runs.steer(run_id, {"role": "user", "content": "two"})
    await waits_for(runs, run_id)
    assert (await runs.state(run_id)).vars.get("a") is None
    with pytest.raises(GraphError, match="an empty message"):
        await runs.steer(run_id, "")
    await runs.resume_run(run_id)
    await waits_for(runs, run_id, "b")
    await runs.pause_run(run_id)
    await runs.resume_run(run_id)
    await runs.resume(run_id, "b", "second")
    assert await bed.result(run_id) == {"told": ["one", "two"], "most": 7}
    kinds = [(record["effect"] or {}).get("type") for record in await runs.ledger(run_id)]
    expected_kinds = ["pause", "steer", "limits", "steer", "unpause", "pause", "unpause"]
    assert [kind for kind in kinds if kind in {*expected_kinds}] == expected_kinds
    for call in (runs.pause_run, runs.resume_run):
        with pytest.raises(GraphError, match="it is completed"):
            await call(run_id)


@pytest.mark.item(427)
async def test_all_branches_of_a_paused_run_stop(bed: Bed) -> None:
    """Over a crash of the host, too; each continues when the run does."""
    runs = await app_on(bed, FORK)
    run_id = await runs.start("fork")
    await waits_for(runs, run_id, "x", "y")
    await runs.pause_run(run_id)
    await runs.resume(run_id, "x", 1)
    await runs.resume(run_id, "y", 2)
    await waits_for(runs, run_id)
    await bed.restart()
    await Flows(runs.app, [FORK]).register(bed.runtime)
    runs = FlowRuns(bed.runtime, runs.app)
    assert {record["status"] for record in await runs.ledger(run_id)} >= {"waiting"}
    await runs.resume_run(run_id)
    await waits_for(runs, run_id, "x2")
    await runs.resume(run_id, "x2", 3)
    assert (await bed.result(run_id))["told"] == []
    assert (await runs.state(run_id)).vars["x2"] == 3


@pytest.mark.item(427)
async def test_a_run_on_a_host_without_its_graph_is_parked_by_name(bed: Bed) -> None:
    """A run that has not started, and one that has. A host with the graph continues it."""
    runs = await app_on(bed, TWICE, replace(FORK, workflow_id="fork@2"))
    begun, new = await runs.start("twice"), await runs.start("fork")
    await waits_for(runs, begun, "a")
    assert "no flow 'fork' on this host, only 'fork@2': give it to Flows" in str(
        (await bed.seen(new, "run.parked")).payload
    )
    await bed.restart()
    await Flows(runs.app, [FORK]).register(bed.runtime)
    runs = FlowRuns(bed.runtime, runs.app)
    await runs.resume(begun, "a", 1)
    assert "no flow 'twice' on this host: give it to Flows" in str(
        (await bed.seen(begun, "run.parked")).payload
    )
    await bed.runtime.resolve(new)
    await waits_for(runs, new, "x", "y")
    await Flows(runs.app, [FORK, TWICE]).register(bed.runtime)
    await bed.runtime.resolve(begun)
    await waits_for(runs, begun, "b")


def versions(version: str) -> WorkflowSpec:
    """Return a flow that writes its code version to the vars: it asks, steps six times, asks again and ends."""

    def step(run: RunState, _ctx: Any) -> StepPlan:
        code = run.vars["code"] = [*run.vars.get("code", ()), version]
        is_done = len(code) == 6
        effect = None if is_done else Effect(EffectType.VARS_QUERY, {"path": "code"}, "seen")
        return StepPlan("step", effect, next_node="b" if is_done else "step")

    def end(run: RunState, _ctx: Any) -> StepPlan:
        return StepPlan("end", complete_output=[*run.vars["code"], version])

    nodes = {"a": asking("a", "step"), "step": step, "b": asking("b", "end"), "end": end}
    return WorkflowSpec("versioned", "a", nodes, version=version)


@pytest.mark.item(427, 489)
async def test_a_run_keeps_the_version_of_its_graph(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host with another version parks it, by name. Both can be served at once; new runs get the last one.

    The version stays after continue-as-new.
    """
    monkeypatch.setattr(graph_run, "ENTRIES_KEPT", 3)
    runs = await app_on(bed, versions("1"))
    old = await runs.start("versioned")
    await waits_for(runs, old, "a")
    await bed.restart()
    await Flows(runs.app, [versions("2")]).register(bed.runtime)
    runs = FlowRuns(bed.runtime, runs.app)
    await runs.resume(old, "a", 1)

    detail = str((await bed.seen(old, "run.parked")).payload["detail"])
    assert "version '1' of" in detail
    assert "/versioned:" in detail
    assert "serves version '2': serve the old one too, then resolve the run with --retry" in detail
    assert (await bed.row(old)).parked == "version"
    await bed.runtime.resolve(old)  # too early
    await bed.seen(old, "run.parked", times=2)
    for version in ("1", "2"):
        await Flows(runs.app, [versions(version)]).register(bed.runtime)
    await bed.runtime.resolve(old)
    await waits_for(runs, old, "b")
    assert len(await bed.log(old, "run.continued")) > 1
    new = await runs.start("versioned")
    await waits_for(runs, new, "a")
    for run_id, key in ((new, "a"), (old, "b")):
        await runs.resume(run_id, key, 1)
    await waits_for(runs, new, "b")
    await runs.resume(new, "b", 1)

    assert await bed.result(old) == ["1"] * 7
    assert await bed.result(new) == ["2"] * 7


@pytest.mark.item(427, 489)
async def test_a_run_is_parked_if_the_graph_lacks_its_node(bed: Bed) -> None:
    """A graph without a version was changed. The answer is kept, and a host that has the node continues."""
    runs = await app_on(bed, TWICE)
    run_id = await runs.start("twice")
    await waits_for(runs, run_id, "a")
    await bed.restart()
    other = replace(TWICE, nodes={"a": asking("a", "end"), "end": telling})
    await Flows(runs.app, [other]).register(bed.runtime)
    runs = FlowRuns(bed.runtime, runs.app)
    await runs.resume(run_id, "a", 1)

    parked = (await bed.seen(run_id, "run.parked")).payload
    assert parked["reason"] == "version"
    assert "at node 'b', which flow 'twice' does not have" in str(parked["detail"])
    await Flows(runs.app, [TWICE]).register(bed.runtime)
    await bed.runtime.resolve(run_id)
    await waits_for(runs, run_id, "b")
    assert (await runs.state(run_id)).vars["a"] == 1
    await runs.resume(run_id, "b", 2)
    assert (await bed.result(run_id))["told"] == []
    assert len(await bed.log(run_id, "ask.replied")) == 2


@pytest.mark.item(427, 489)
async def test_another_host_that_has_the_version_goes_on(bed: Bed) -> None:
    """So does a host with a second app object that has other flows: it serves the flows of both."""
    runs = await app_on(bed, versions("1"))
    run_id = await runs.start("versioned")
    await waits_for(runs, run_id, "a")
    await bed.restart()
    await Flows(runs.app, [versions("3")]).register(bed.runtime)
    await FlowRuns(bed.runtime, runs.app).resume(run_id, "a", 1)
    await bed.seen(run_id, "run.parked")
    async with bed.rival() as other:
        for specs in ([versions("1")], [versions("2")], [TWICE]):
            await Flows(runs.app, specs).register(other)
        await bed.stop()
        runs = FlowRuns(other, runs.app)
        await other.resolve(run_id)
        await waits_for(runs, run_id, "b")
        await runs.resume(run_id, "b", 1)

        assert await other.result(run_id) == ["1"] * 7


@pytest.mark.item(416, 417)
async def test_a_snapshot_starts_another_run_with_its_open_waits(bed: Bed) -> None:
    """In both branches; the snapshot's source continues independently.

    Another graph is refused unless forced.
    """
    flows = Flows(bed.name().type, [FORK, TWICE])
    await flows.register(bed.runtime)
    runs = FlowRuns(bed.runtime, flows)
    run_id = await runs.start("fork")
    await waits_for(runs, run_id, "x", "y")
    snapshot = await runs.snapshot(run_id, "both wait", tags=["t"])
    assert (snapshot.spec_hash, snapshot.tags) == (FORK.hash, ["t"])
    await runs.resume(run_id, "y", "old")
    other = await runs.restore(snapshot, id="other")
    await waits_for(runs, other, "x", "y")
    for key, answer in (("y", "new"), ("x", 1), ("x2", 2)):
        await waits_for_one(runs, other, key)
        await runs.resume(other, key, answer)
    await bed.result(other)
    state = await runs.state(other)
    assert [state.vars[name] for name in ("x", "x2", "y")] == [1, 2, "new"]
    assert (await runs.ledger(other))[0]["result"]["restored_from"] == snapshot.snapshot_id
    await waits_for(runs, run_id, "x")
    with pytest.raises(GraphError, match="nothing to go on with"):
        await runs.restore(await runs.snapshot(other, "over"))
    odd = replace(snapshot, spec_hash="other")
    with pytest.raises(SpecChangedError):
        await runs.restore(odd)
    unknowing = FlowRuns(bed.runtime, flows.app)
    refused = await bed.ended(await unknowing.restore(odd))
    assert "was made with graph other" in str(refused.error)
    forced = await unknowing.restore(odd, force=True)
    await waits_for(runs, forced, "x", "y")
    broken = replace(snapshot, run_state={"workflow_id": "fork"}, spec_hash=None)
    assert "holds no run" in str((await bed.ended(await unknowing.restore(broken))).error)
    with pytest.raises(GraphError, match="has none of this name"):
        await runs.start("nothing")


@pytest.mark.item(416)
async def test_a_run_that_has_not_begun_has_no_snapshot(bed: Bed) -> None:
    """It is refused at once, not when it is restored. After the first step there is one."""
    runs = FlowRuns(bed.runtime, bed.name().type)
    run_id = await runs.start("fork")  # no host has the flows
    with pytest.raises(GraphError, match="it has not begun"):
        await runs.snapshot(run_id, "too early")
    assert await runs.snapshots(run=run_id) == []
    await Flows(runs.app, [FORK]).register(bed.runtime)
    await waits_for(runs, run_id, "x", "y")

    snapshot = await runs.snapshot(run_id, "begun")

    await waits_for(runs, await runs.restore(snapshot), "x", "y")


async def waits_for_one(runs: FlowRuns, run_id: RunId, key: str) -> None:
    """Return when a run waits for this, too."""
    async with asyncio.timeout(LIMIT_S):
        while key not in {wait.wait_key for wait in await runs.waits(run_id)}:  # noqa: ASYNC110 - rows
            await asyncio.sleep(0.01)


@pytest.mark.item(416, 417)
async def test_a_stored_snapshot_starts_runs_after_its_source_was_deleted(bed: Bed) -> None:
    """By any process of the app, until it is deleted. A snapshot that can start no run is not stored."""
    flows = Flows(bed.name().type, [FORK, TWICE])
    await flows.register(bed.runtime)
    runs = FlowRuns(bed.runtime, flows)
    run_id = await runs.start("fork")
    await waits_for(runs, run_id, "x", "y")
    first = await runs.snapshot(run_id, "Both wait", description="for X", tags=["t", "u"], by="ada")
    await runs.resume(run_id, "x", 1)
    await waits_for_one(runs, run_id, "x2")
    later = await runs.snapshot(run_id, "later")
    unkept = await runs.snapshot(run_id, "unkept", keep=False)

    async with bed.client("elsewhere") as elsewhere:
        client_runs = FlowRuns(elsewhere, flows.app)
        both, only_first = [later.snapshot_id, first.snapshot_id], [first.snapshot_id]
        rows = await client_runs.snapshots()
        assert [row.id for row in rows] == both
        assert rows[1].created_by == "ada"
        assert 0 < rows[1].seq < rows[0].seq
        for among, ids in (
            ({"run": run_id, "query": "OTH W"}, only_first),
            ({"tag": "u", "query": "for x"}, only_first),
            ({"tag": "none"}, []),
            ({"limit": 1}, both[:1]),
            ({"after": both[0]}, only_first),
        ):
            assert [row.id for row in await client_runs.snapshots(**among)] == ids, among
        other_app = FlowRuns(elsewhere, "other")
        other_tenant = FlowRuns(elsewhere, flows.app, tenant="acme")
        for strange in (other_app, other_tenant):
            assert await strange.snapshots(run=run_id) == []
            with pytest.raises(NoSuchSnapshotError):
                await strange.restore(first.snapshot_id)
            with pytest.raises(NoSuchSnapshotError):
                await strange.delete_snapshot(first.snapshot_id)
        await runs.cancel(run_id)
        await bed.ended(run_id)
        other = await client_runs.restore(first.snapshot_id, id="other")
        assert await client_runs.restore(first.snapshot_id, id="other") == other
        await waits_for(runs, other, "x", "y")
        assert (await runs.ledger(other))[0]["result"]["restored_from"] == first.snapshot_id
        await client_runs.delete_snapshot(first.snapshot_id)
        for snapshot in (first, unkept):
            with pytest.raises(NoSuchSnapshotError, match=snapshot.snapshot_id):
                await runs.restore(snapshot.snapshot_id)
        await waits_for(runs, other, "x", "y")
        assert [row.id for row in await runs.snapshots()] == [later.snapshot_id]


@pytest.mark.item(416)
async def test_a_snapshot_that_can_start_no_run_is_not_stored(bed: Bed) -> None:
    """Too large a state, too long a name, too many tags. A file may have a state of any size."""
    flows = Flows(bed.name().type, [FORK, TWICE])
    await flows.register(bed.runtime)
    runs = FlowRuns(bed.runtime, flows)
    run_id = await runs.start("fork")
    await waits_for(runs, run_id, "x", "y")
    for _ in range(6):
        await runs.steer(run_id, "x" * 60_000)
    with pytest.raises(MessageTooLargeError, match=f"snapshot of run {run_id}"):
        await runs.snapshot(run_id, "large")
    assert (await runs.snapshot(run_id, "large", keep=False)).run_id == run_id
    with pytest.raises(InvalidTextError, match="tag of a snapshot"):
        await runs.snapshot(run_id, "n", tags=["x" * 2_000])
    with pytest.raises(ContractError, match="give 32 at most"):
        await runs.snapshot(run_id, "n", tags=["x"] * 33)
    assert await runs.snapshots() == []


def working(run: RunState, _ctx: Any) -> StepPlan:
    """Work 300 times."""
    done = run.vars.get("done", 0)
    if done == 300:
        return StepPlan("work", complete_output=run.vars["sum"])
    run.vars["done"] = done + 1
    effect = Effect(EffectType.TOOL_CALLS, {"sum": run.vars.get("sum", 0), "n": done}, "sum")
    return StepPlan("work", effect, next_node="work")


def adding(_run: RunState, effect: Effect) -> EffectOutcome:
    """Add a number to the sum."""
    return EffectOutcome.completed(effect.payload["sum"] + effect.payload["n"])


async def test_the_ledger_is_complete_after_continue_as_new(bed: Bed) -> None:
    """The log since the last restart is short; the chain covers all of it."""
    app = bed.name().type
    work = WorkflowSpec("work", "work", {"work": working})
    flows = Flows(app, [work], effect_handlers={EffectType.TOOL_CALLS: adding})
    await flows.register(bed.runtime)
    runs = FlowRuns(bed.runtime, flows)
    run_id = await runs.start("work")
    assert await bed.result(run_id) == sum(range(300))
    assert len(await bed.log(run_id, "run.continued")) == 1
    ledger = await runs.ledger(run_id)
    assert len([record for record in ledger if record["status"] == "started"]) == 300
    assert verify_ledger_chain(ledger)["ok"]
    with pytest.raises(GraphError, match="are the runtime's"):
        await runs.start("work", vars={"_runtime": {"effect_seq": "x"}})


async def test_an_answer_that_comes_too_late_is_refused(bed: Bed) -> None:
    """The first wait of its key timed out, so no wait would take it. An event needs its scope's id."""
    late = {"prompt": "?", "wait_key": "a", "timeout_s": 0.01}
    ask = lambda run, _ctx: StepPlan("a", Effect(EffectType.ASK_USER, late, "a"), next_node="b")  # noqa: E731
    spec = WorkflowSpec("late", "a", {"a": ask, "b": asking("b", "end"), "end": telling})
    runs = await app_on(bed, spec)
    run_id = await runs.start("late")
    await waits_for(runs, run_id, "b")
    with pytest.raises(StaleResumeError, match="does not wait for 'a' any more"):
        await runs.answer(run_id, "a", 1)
    await runs.answer(run_id, "b", 1)
    await bed.result(run_id)
    with pytest.raises(GraphError, match="needs session_id"):
        await runs.emit("paid", scope="session")
