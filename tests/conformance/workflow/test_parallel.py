"""Branches of a run behave the same on every store."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest

from actors.workflow import (
    Effect,
    EffectOutcome,
    EffectType,
    GraphError,
    OffloadingRunStore,
    RetryPolicy,
    RunStatus,
    StaleResumeError,
    StepPlan,
    WaitReason,
    WorkflowSpec,
    branch_of,
    open_waits,
)
from tests.conformance.workflow.stores import effect_then, end_node, one_effect

if TYPE_CHECKING:
    from collections.abc import Mapping

    from actors.workflow import RunState
    from tests.conformance.workflow.stores import Stores


def fork(branches: Mapping[str, str], join: str = "end") -> Any:
    """Return a node with these branches."""
    return lambda run, _ctx: StepPlan(run.current_node, next_node=join, parallel=branches)


def setting(after: str = "end", **values: Any) -> Any:
    """Return a node that changes vars."""

    def node(run: RunState, _ctx: Any) -> StepPlan:
        run.vars.update(values)
        return StepPlan(run.current_node, next_node=after)

    return node


def asking(key: str, after: str | None = "end", **more: Any) -> Any:
    """Return a node that asks a person."""
    payload = {"prompt": "?", "wait_key": key} | more
    return effect_then(EffectType.ASK_USER, payload, key=f"got.{key}", after=after)


def two(one_node: Any, other_node: Any, **more: Any) -> WorkflowSpec:
    """Return a graph of two branches with one node each."""
    begin = fork({"left": "one", "right": "other"})
    nodes = {"fork": begin, "one": one_node, "other": other_node, "end": end_node}
    return WorkflowSpec("graph", "fork", nodes, **more)


def raising(_run: RunState, _ctx: Any) -> StepPlan:
    """Fail."""
    raise ValueError("on purpose")


def public(state: RunState) -> dict[str, Any]:
    """Return what the graph put into its output."""
    hidden = {"context", "scratchpad"}
    return {name: value for name, value in state.output.items() if name not in hidden}


def records_of(stores: Stores, run_id: str, branch: str | None) -> list[tuple[str, str]]:
    """Return node and status of the records of a branch, or of records outside of branches."""
    return [
        (record["node_id"], record["status"])
        for record in stores.ledger.list(run_id)
        if record["delta"] is not None
        and ((record["delta"].get("branch") or ["."])[-1].partition(".")[2] or None) == branch
    ]


def test_branches_take_turns_and_their_patches_are_merged(stores: Stores) -> None:
    """Each gets the vars of the start and its own changes: an effect of one, then one of the next."""
    calls: list[str] = []

    def handle(run: RunState, effect: Effect) -> EffectOutcome:
        calls.append(effect.payload["n"])
        assert [*run.vars.get("did", {})] == calls[-3:-2]
        return EffectOutcome.completed(effect.payload["n"])

    def seeing(after: str) -> Any:
        def node(run: RunState, _ctx: Any) -> StepPlan:
            (name,) = branch_of(run.vars)
            assert "left" not in run.vars
            run.vars[name] = run.vars["begun"]
            return StepPlan(run.current_node, next_node=after)

        return node

    def work(name: str, after: str) -> Any:
        return effect_then(EffectType.LLM_CALL, {"n": name}, key=f"did.{name}", after=after)

    nodes = {
        "fork": fork({"left": "l", "right": "r"}, join="join"),
        "l": seeing("l1"),
        "l1": work("l1", "l2"),
        "l2": work("l2", "join"),
        "r": seeing("r1"),
        "r1": work("r1", "r2"),
        "r2": work("r2", "join"),
        "join": setting(met=True),
        "end": end_node,
    }
    spec = WorkflowSpec("graph", "fork", nodes)
    runtime = stores.runtime(spec, effect_handlers={EffectType.LLM_CALL: handle})
    run_id = runtime.start(spec, vars={"begun": 1})

    state = runtime.tick(spec, run_id)

    assert (state.status, state.error, state.fork) == (RunStatus.COMPLETED, None, None)
    assert calls == ["l1", "r1", "l2", "r2"]
    did = {name: name for name in ("l1", "l2", "r1", "r2")}
    assert public(state) == {"begun": 1, "left": 1, "right": 1, "did": did, "met": True}
    assert [*state.output["did"]] == ["l1", "l2", "r1", "r2"]
    stores = stores.reopen()
    assert stores.runs.load(run_id) == state
    effect = [("started"), ("completed")]
    assert records_of(stores, run_id, "left") == [
        ("l", "completed"),
        *(("l1", status) for status in effect),
        *(("l2", status) for status in effect),
    ]
    assert records_of(stores, run_id, None) == [
        ("fork", "completed"),
        ("fork", "completed"),
        ("fork", "completed"),
        ("join", "completed"),
        ("end", "completed"),
    ]
    started = [record for record in stores.ledger.list(run_id) if record["status"] == "started"]
    assert len({record["idempotency_key"] for record in started}) == 4
    assert len({record["step_id"] for record in started}) == 4


@pytest.mark.parametrize(
    ("left_vars", "right_vars", "path"),
    [
        ({"a": 1}, {"a": 1}, "a"),
        ({"n": {"x": 1}}, {"n": {"x": 2}}, r"n\.x"),
        ({"n": {"x": 1}}, {"n": 2}, "n"),
        ({"n": 2}, {"n": {"x": {"y": 1}}}, r"n\.x\.y"),
    ],
)
def test_two_branches_must_not_change_one_name(
    stores: Stores, left_vars: dict[str, Any], right_vars: dict[str, Any], path: str
) -> None:
    """The run fails at the join; its error names path and both branches."""
    spec = two(setting(**left_vars), setting(**right_vars))
    runtime = stores.runtime(spec)
    run_id = runtime.start(spec)

    state = runtime.tick(spec, run_id)

    assert state.status is RunStatus.FAILED
    assert state.error is not None
    assert f"vars path '{path}'".replace("\\", "") in state.error
    assert "branches 'left' and 'right' both changed it" in state.error


def test_names_within_one_object_are_no_conflict(stores: Stores) -> None:
    """A value that one branch removes and the other leaves unchanged is removed."""

    def removing(run: RunState, _ctx: Any) -> StepPlan:
        del run.vars["old"]
        return StepPlan(run.current_node, next_node="end")

    spec = two(setting(n={"x": 1, "z": 0}), removing)
    more = two(setting(n={"x": 1}), setting(n={"y": 2}))
    runtime = stores.runtime()

    run_id = runtime.start(spec, vars={"old": 1, "n": {"z": 0}})
    assert public(runtime.tick(spec, run_id)) == {"n": {"z": 0, "x": 1}}
    run_id = runtime.start(more)
    assert public(runtime.tick(more, run_id)) == {"n": {"x": 1, "y": 2}}


def test_a_reducer_merges_values_of_branches(stores: Stores) -> None:
    """It gets the earlier value and the branches' values in their order, and is called once."""
    calls: list[Any] = []

    def total(before: int, values: list[int]) -> int:
        calls.append((before, values))
        return before + sum(value - before for value in values)

    def counting(amount: int) -> Any:
        def node(run: RunState, _ctx: Any) -> StepPlan:
            run.vars["sum"]["n"] += amount
            return StepPlan(run.current_node, next_node="end")

        return node

    spec = two(counting(2), counting(5), reducers={"sum.n": total})
    runtime = stores.runtime(spec)
    run_id = runtime.start(spec, vars={"sum": {"n": 10}})

    assert public(runtime.tick(spec, run_id))["sum"] == {"n": 17}
    assert calls == [(10, [12, 15])]
    assert spec.hash != two(counting(2), counting(5)).hash

    spec = two(setting(a=1), setting(a=2), reducers={"a": lambda _before, values: {*values}})
    state = runtime.tick(spec, runtime.start(spec))
    assert state.status is RunStatus.FAILED
    assert "reducer of 'a'" in str(state.error)
    spec = two(setting(a=1), setting(a=2), reducers={"a": lambda before, _values: before + 1})
    state = runtime.tick(spec, runtime.start(spec))
    assert "reducer of 'a': TypeError" in str(state.error)


@pytest.mark.item(392, 393, 414)
def test_a_waiting_branch_does_not_delay_the_others(stores: Stores) -> None:
    """The run waits when each open branch does; each wait is found, and answered once, by its key."""
    done: list[int] = []

    def handle(_run: RunState, effect: Effect) -> EffectOutcome:
        done.append(effect.payload["n"])
        return EffectOutcome.completed(0)

    nodes = {
        "fork": fork({"a": "ask", "b": "work", "c": "hear"}),
        "ask": asking("k1", after="again"),
        "again": asking("k2"),
        "work": effect_then(EffectType.LLM_CALL, {"n": 1}, key="w", after="more"),
        "more": effect_then(EffectType.LLM_CALL, {"n": 2}, key="x"),
        "hear": effect_then(EffectType.WAIT_EVENT, {"wait_key": "e"}, key="heard"),
        "end": end_node,
    }
    spec = WorkflowSpec("graph", "fork", nodes)
    runtime = stores.runtime(spec, effect_handlers={EffectType.LLM_CALL: handle})
    run_id = runtime.start(spec)

    state = runtime.tick(spec, run_id)

    assert done == [1, 2]
    assert state.status is RunStatus.WAITING
    assert state.waiting is not None
    assert state.waiting.reason is WaitReason.BRANCHES
    assert [w.wait_key for w in open_waits(state)] == ["k1", "e"]
    runs = stores.reopen().runs
    for reason in (WaitReason.USER, WaitReason.EVENT, WaitReason.BRANCHES):
        assert [r.run_id for r in runs.list_runs(wait_reason=reason)] == [run_id]
    assert runs.list_runs(wait_reason=WaitReason.JOB) == []
    assert [r.run_id for r in runs.list_event_waiters(wait_keys=["e"])] == [run_id]
    assert runs.list_event_waiters(wait_keys=["k1"]) == []
    with pytest.raises(StaleResumeError, match="'k1', 'e'"):
        runtime.resume(spec, run_id, "k2", "early")

    assert runtime.resume(spec, run_id, "k1", 1).status is RunStatus.WAITING
    with pytest.raises(StaleResumeError):
        runtime.resume(spec, run_id, "k1", 2)
    assert runtime.resume(spec, run_id, "e", "yes").status is RunStatus.WAITING
    assert stores.reopen().runs.list_event_waiters(wait_keys=["e"]) == []
    state = runtime.resume(spec, run_id, "k2", 3)
    assert public(state) == {"got": {"k1": 1, "k2": 3}, "w": 0, "x": 0, "heard": "yes"}
    assert runs.list_runs(wait_reason=WaitReason.USER) == []


@pytest.mark.item(416, 417, 455)
def test_deadlines_of_branches_are_independent(stores: Stores) -> None:
    """The run is listed as due at the first deadline."""
    spec = two(
        effect_then(EffectType.WAIT_UNTIL, {"timeout_s": 60}, key="slept"),
        asking("k", timeout_s=90),
    )
    runtime = stores.runtime(spec)
    run_id = runtime.start(spec)
    clock, runs = stores.clock, stores.runs
    assert runtime.tick(spec, run_id).status is RunStatus.WAITING

    def due(seconds: float) -> list[str]:
        return [r.run_id for r in runs.list_due_wait_until(now_iso=clock.iso(seconds))]

    assert (due(59), due(60)) == ([], [run_id])
    clock.advance(60)
    state = runtime.tick(spec, run_id)
    assert [w.wait_key for w in open_waits(state)] == ["k"]
    assert (due(29), due(30)) == ([], [run_id])
    clock.advance(30)
    state = runtime.tick(spec, run_id)
    assert state.status is RunStatus.COMPLETED
    assert state.output["got"]["k"]["timed_out"] is True


@pytest.mark.item(437)
def test_a_pause_between_attempts_does_not_delay_the_others(stores: Stores) -> None:
    """Other branches execute meanwhile; the driver sleeps until the first attempt that is due."""
    tries: list[str] = []

    def handle(_run: RunState, effect: Effect) -> EffectOutcome:
        tries.append(effect.payload["n"])
        if effect.payload["n"] == "bad" and tries.count("bad") < 3:
            return EffectOutcome.failed("no luck")
        return EffectOutcome.completed(1)

    nodes = {
        "fork": fork({"a": "bad", "b": "one"}),
        "bad": effect_then(EffectType.LLM_CALL, {"n": "bad"}, key="bad"),
        "one": effect_then(EffectType.LLM_CALL, {"n": "one"}, key="one", after="two"),
        "two": effect_then(EffectType.LLM_CALL, {"n": "two"}, key="two"),
        "end": end_node,
    }
    spec = WorkflowSpec("graph", "fork", nodes)
    runtime = stores.runtime(
        spec, effect_handlers={EffectType.LLM_CALL: handle}, effect_policy=RetryPolicy()
    )
    run_id = runtime.start(spec)

    assert runtime.tick(spec, run_id).status is RunStatus.COMPLETED
    assert tries == ["bad", "one", "two", "bad", "bad"]
    assert stores.clock.slept == [1.0, 2.0]


def test_a_branch_that_fails_lets_the_others_end(stores: Stores) -> None:
    """The run fails at the join; its error names each failed branch."""
    spec = two(raising, asking("k"))
    runtime = stores.runtime(spec)
    run_id = runtime.start(spec)

    assert runtime.tick(spec, run_id).status is RunStatus.WAITING
    state = runtime.resume(spec, run_id, "k", "yes")

    assert state.status is RunStatus.FAILED
    assert str(state.error).startswith("branches of node 'fork': branch 'left': node 'one' raised")
    assert state.fork is not None
    assert [branch.status for branch in state.fork.branches] == [
        RunStatus.FAILED,
        RunStatus.RUNNING,
    ]
    assert open_waits(state) == []
    ends = [
        record
        for record in stores.ledger.list(run_id)
        if (record["effect"] or {}).get("type") == "emit_event"
    ]
    assert len(ends) == 1
    spec = two(raising, raising)
    state = runtime.tick(spec, runtime.start(spec))
    assert "branch 'left': " in str(state.error)
    assert "branch 'right': " in str(state.error)


def test_an_output_ends_its_branch_alone(stores: Stores) -> None:
    """An effect without a next node does, too; the run continues at the join."""
    spec = two(
        lambda run, _ctx: StepPlan(run.current_node, complete_output={"n": 1}),
        asking("k", after=None),
    )
    runtime = stores.runtime(spec)
    run_id = runtime.start(spec)

    assert runtime.tick(spec, run_id).status is RunStatus.WAITING
    assert public(runtime.resume(spec, run_id, "k", 2)) == {"got": {"k": 2}}


def test_branches_have_branches(stores: Stores) -> None:
    """Each join waits for its own branches. Depth is at most four; a fork may have no branch."""
    nodes = {
        "out": fork({"a": "in", "b": "b"}),
        "in": fork({"a": "a1", "b": "a2"}, join="met"),
        "a1": asking("a1", after="met"),
        "a2": asking("a2", after="met"),
        "met": asking("met"),
        "b": asking("b", after="none"),
        "none": fork({}, join="end"),
        "end": end_node,
    }
    spec = WorkflowSpec("graph", "out", nodes)
    runtime = stores.runtime(spec)
    run_id = runtime.start(spec)

    def keys(state: RunState) -> list[str | None]:
        return [w.wait_key for w in open_waits(state)]

    assert keys(runtime.tick(spec, run_id)) == ["a1", "a2", "b"]
    assert keys(runtime.resume(spec, run_id, "a2", 2)) == ["a1", "b"]
    assert keys(runtime.resume(spec, run_id, "b", 3)) == ["a1"]
    assert keys(stores.reopen().runtime(spec).resume(spec, run_id, "a1", 1)) == ["met"]
    state = runtime.resume(spec, run_id, "met", 4)
    assert public(state) == {"got": {"a1": 1, "a2": 2, "met": 4, "b": 3}}

    spec = WorkflowSpec("deep", "f", {"f": fork({"a": "f"}), "end": end_node})
    state = runtime.tick(spec, runtime.start(spec))
    assert "4 forks are within each other" in str(state.error)


def test_a_cancel_ends_all_branches_and_what_they_started(stores: Stores) -> None:
    """A cancel during an effect of a branch keeps the effect's result."""
    child = one_effect(EffectType.ASK_USER, {"prompt": "?"}, name="child")
    spec = two(
        effect_then(EffectType.START_SUBWORKFLOW, {"workflow_id": "child"}),
        effect_then(EffectType.LLM_CALL, {}),
    )

    def handle(run: RunState, _effect: Effect) -> EffectOutcome:
        runtime.cancel_run(run.run_id, "enough")
        return EffectOutcome.completed("done")

    runtime = stores.runtime(spec, child, effect_handlers={EffectType.LLM_CALL: handle})
    run_id = runtime.start(spec)

    assert runtime.tick(spec, run_id).status is RunStatus.CANCELLED

    state = runtime.cancel_run(run_id)
    assert state.error == "enough"
    assert open_waits(state) == []
    stores = stores.reopen()
    (below,) = stores.runs.list_children(parent_run_id=run_id)
    assert below.status is RunStatus.CANCELLED
    aborted = records_of(stores, run_id, "right")
    assert aborted == [("other", "started"), ("other", "cancelled")]
    assert stores.runs.list_runs(wait_reason=WaitReason.SUBWORKFLOW) == []


def test_a_pause_stops_all_branches(stores: Stores) -> None:
    """Between two effects; on a resume each continues where it was."""
    done: list[int] = []

    def handle(run: RunState, effect: Effect) -> EffectOutcome:
        done.append(effect.payload["n"])
        if len(done) == 1:
            runtime.pause_run(run.run_id)
        return EffectOutcome.completed(1)

    spec = two(
        effect_then(EffectType.LLM_CALL, {"n": 1}, key="a"),
        effect_then(EffectType.LLM_CALL, {"n": 2}, key="b"),
    )
    runtime = stores.runtime(spec, effect_handlers={EffectType.LLM_CALL: handle})
    run_id = runtime.start(spec)

    assert runtime.tick(spec, run_id).status is RunStatus.RUNNING
    assert runtime.tick(spec, run_id).status is RunStatus.RUNNING
    assert done == [1]
    runtime.steer(run_id, "hello")
    runtime.resume_run(run_id)
    state = (
        stores.reopen()
        .runtime(spec, effect_handlers={EffectType.LLM_CALL: handle})
        .tick(spec, run_id)
    )
    assert public(state) == {"a": 1, "b": 1}
    assert done == [1, 2]
    assert state.vars["_runtime"]["inbox"][0]["message"]["content"] == "hello"


@pytest.mark.item(472)
def test_limits_and_traces_are_shared_by_branches(stores: Stores) -> None:
    """Each branch adds to the counts of the others."""

    def counting(run: RunState, _ctx: Any) -> StepPlan:
        run.vars["_limits"]["current_iteration"] += 1
        effect = Effect(EffectType.LLM_CALL, {}, f"got.{branch_of(run.vars)[0]}")
        return StepPlan("work", effect, next_node="end")

    nodes = {"fork": fork(dict.fromkeys("abc", "work")), "work": counting, "end": end_node}
    spec = WorkflowSpec("graph", "fork", nodes)

    def handle(_run: RunState, _effect: Effect) -> EffectOutcome:
        return EffectOutcome.completed({"usage": {"total_tokens": 7}})

    runtime = stores.runtime(spec, effect_handlers={EffectType.LLM_CALL: handle})
    run_id = runtime.start(spec)
    state = runtime.tick(spec, run_id)

    assert [*state.output["got"]] == ["a", "b", "c"]
    status = runtime.get_limit_status(run_id)
    assert (status["iterations"]["current"], status["tokens"]["current"]) == (3, 7)
    assert len(runtime.get_node_trace(run_id, "work")["steps"]) == 3
    assert "branch" not in state.vars["_runtime"]


@pytest.mark.item(420, 458)
def test_a_branch_gets_an_event_of_another_one(stores: Stores) -> None:
    """An external event reaches a branch while others execute, and all branches that wait for it at once."""
    payload = {"name": "paid", "scope": "global"}
    nodes = {
        "fork": fork({"a": "hear", "b": "hear too", "c": "tell"}),
        "hear": effect_then(EffectType.WAIT_EVENT, payload, key="a"),
        "hear too": effect_then(EffectType.WAIT_EVENT, payload, key="b"),
        "tell": effect_then(EffectType.EMIT_EVENT, {**payload, "payload": 1}, key="c"),
        "end": end_node,
    }
    spec = WorkflowSpec("graph", "fork", nodes)
    runtime = stores.runtime(spec)
    run_id = runtime.start(spec)

    state = runtime.tick(spec, run_id)

    assert state.status is RunStatus.COMPLETED, state
    assert [state.output[name]["payload"] for name in "ab"] == [1, 1]
    assert state.output["c"]["resumed"] == [run_id]

    run_id = runtime.start(spec)
    runtime.tick(spec, run_id, max_steps=3)
    assert stores.reopen().runs.load(run_id).status is RunStatus.RUNNING
    delivery = runtime.emit_event("paid", 2, event_id="e")
    assert delivery["resumed"] == [run_id]
    assert runtime.emit_event("paid", 3, event_id="e")["resumed"] == []
    state = runtime.tick(spec, run_id)
    assert [state.output[name]["payload"] for name in "ab"] == [2, 2]


def test_an_answer_before_its_wait_is_kept_for_a_branch(stores: Stores) -> None:
    """An answer to a branch that waits while others execute is applied at once."""
    spec = two(asking("k"), asking("l"))
    runtime = stores.runtime(spec)
    run_id = runtime.start(spec)
    runtime.answer(run_id, "l", "early")
    runtime.tick(spec, run_id, max_steps=2)
    state = runtime.answer(run_id, "k", "now")
    assert state.status is RunStatus.RUNNING
    with pytest.raises(StaleResumeError):
        runtime.answer(run_id, "l", "late")

    assert public(runtime.tick(spec, run_id)) == {"got": {"k": "now", "l": "early"}}


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        ({"parallel": {"a": "end"}}, "parallel goes with next_node"),
        ({"parallel": {"a": "end"}, "complete_output": 1, "next_node": "end"}, "stands alone"),
        ({"parallel": {"a": "nowhere"}, "next_node": "end"}, "has no node 'nowhere'"),
        ({"parallel": {"": "end"}, "next_node": "end"}, "a branch has no name"),
        ({"parallel": {1: "end"}, "next_node": "end"}, "keys must be str"),
        ({"parallel": {str(n): "end" for n in range(1001)}, "next_node": "end"}, "1001 branches"),
        (
            {
                "parallel": {"a": "end"},
                "next_node": "end",
                "effect": Effect(EffectType.ANSWER_USER),
            },
            "parallel goes with next_node",
        ),
    ],
)
def test_a_plan_of_branches_is_checked(stores: Stores, plan: dict[str, Any], problem: str) -> None:
    """The run fails; the error has the correct form."""
    nodes = {"begin": lambda run, _ctx: StepPlan(run.current_node, **plan), "end": end_node}
    spec = WorkflowSpec("graph", "begin", nodes)
    runtime = stores.runtime(spec)

    state = runtime.tick(spec, runtime.start(spec))

    assert state.status is RunStatus.FAILED
    assert problem in str(state.error)


@pytest.mark.item(450)
def test_large_values_of_a_branch_are_artifacts(stores: Stores) -> None:
    """Also while it waits."""

    def large(run: RunState, _ctx: Any) -> StepPlan:
        run.vars["text"] = "x" * 5000
        return StepPlan(run.current_node, next_node="other")

    spec = two(large, asking("k"))
    nodes = {**spec.nodes, "fork": fork({"left": "one"})}
    spec = WorkflowSpec("graph", "fork", nodes)
    store = OffloadingRunStore(stores.runs, artifact_store=stores.artifacts, max_inline_bytes=1000)
    runtime = stores.runtime(spec, run_store=store)
    run_id = runtime.start(spec)
    runtime.tick(spec, run_id)

    saved = stores.reopen().runs.load(run_id)
    assert "x" * 5000 not in str(saved)
    assert [w.wait_key for w in open_waits(saved)] == ["k"]
    state = runtime.resume(spec, run_id, "k", "yes")
    assert stores.artifacts.load(state.vars["text"]["$artifact"]).as_text() == "x" * 5000


@pytest.mark.parametrize("kind", [EffectType.ASK_USER, EffectType.WAIT_EVENT])
def test_two_branches_share_no_wait_key(stores: Stores, kind: EffectType) -> None:
    """The second question gets a key of its own. So a copy of the first answer does not answer it."""
    payload = {"prompt": "?", "wait_key": "ok"}
    spec = two(
        effect_then(EffectType.ASK_USER, payload, key="l"), effect_then(kind, payload, key="r")
    )
    rt = stores.runtime(spec)
    run_id = rt.start(spec)
    first, second = (w.wait_key for w in open_waits(rt.tick(spec, run_id)))
    assert (first, str(second).startswith("ok~")) == ("ok", True)

    rt.resume(spec, run_id, "ok", "yes")
    with pytest.raises(GraphError, match="waits for 'ok~") as late:
        rt.resume(spec, run_id, "ok", "yes")
    assert pickle.loads(pickle.dumps(late.value)).run_id == run_id
    assert isinstance(late.value, StaleResumeError)

    state = stores.reopen().runtime(spec).resume(spec, run_id, second, "no")
    assert public(state) == {"l": "yes", "r": "no"}
