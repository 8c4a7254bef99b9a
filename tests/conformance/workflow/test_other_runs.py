"""Graphs that affect each other: sub-graphs, events, schedulers, on every store."""

from __future__ import annotations

import json
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.workflow.errors import GraphError
from actors._workflow.embedded import scheduler as embedded_scheduler
from actors._workflow.machine import waits
from actors.workflow import (
    Effect,
    EffectOutcome,
    EffectType,
    RunStatus,
    ScheduledRuntime,
    Scheduler,
    StaleResumeError,
    StepPlan,
    WaitReason,
    WorkflowRegistry,
    WorkflowSpec,
    create_scheduled_runtime,
)
from tests.conformance.workflow.stores import GraphClock, at_once, effect_then, end_node, one_effect

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.workflow import RunState
    from tests.conformance.workflow.stores import Stores

START = EffectType.START_SUBWORKFLOW


def failing(_run: RunState, _ctx: Any) -> StepPlan:
    """Raise."""
    raise ValueError("on purpose")


def parent_of(child: str, **more: Any) -> WorkflowSpec:
    """Return a graph that starts this one, and ends with its outcome."""
    return one_effect(START, {"workflow_id": child, **more}, name="parent")


def plain_child(run: RunState, _ctx: Any) -> StepPlan:
    """Return the end node, with the input as output."""
    return StepPlan("end", complete_output={"got": run.vars.get("given")})


CHILD = WorkflowSpec("child", "end", {"end": plain_child})
ASKING = one_effect(EffectType.ASK_USER, {"prompt": "Well?", "wait_key": "k"}, name="asking")


def scheduler_of(stores: Stores, *specs: WorkflowSpec, **more: Any) -> ScheduledRuntime:
    """Return a runtime and its scheduler, which does nothing by itself."""
    return create_scheduled_runtime(
        run_store=stores.runs,
        ledger_store=stores.ledger,
        artifact_store=stores.artifacts,
        workflows=specs,
        auto_start=False,
        clock=stores.clock,
        sleep=stores.clock.sleep,
        **more,
    )


@pytest.mark.item(421)
def test_a_child_that_ends_is_a_result(stores: Stores) -> None:
    """Its output is stored as the result; it has its parent, session and actor."""
    parent = parent_of("child", vars={"given": 7})
    runtime = stores.runtime(parent, CHILD)
    run_id = runtime.start(parent, session_id="s", actor_id="ar_1")

    state = runtime.tick(parent, run_id)

    (child,) = stores.reopen().runs.list_children(parent_run_id=run_id)
    assert state.output["out"] == {"sub_run_id": child.run_id, "output": {"got": 7}}
    assert (child.parent_run_id, child.session_id, child.actor_id) == (run_id, "s", "ar_1")


@pytest.mark.item(392, 421, 480)
def test_a_child_that_waits_makes_its_parent_wait(stores: Stores) -> None:
    """The wait names the child. The answer is delivered to the child, and its end to the parent."""
    parent = parent_of("asking")
    scheduled = scheduler_of(stores, parent, ASKING)
    run_id, state = scheduled.run(parent)

    assert state.waiting is not None
    assert state.waiting.reason is WaitReason.SUBWORKFLOW
    details = state.waiting.details or {}
    assert details["sub_waiting"]["prompt"] == "Well?"
    assert state.waiting.wait_key == f"subworkflow:{details['sub_run_id']}"
    assert scheduled.tick(run_id).status is RunStatus.WAITING

    state = scheduled.respond(run_id, "yes")

    assert state.status is RunStatus.COMPLETED
    assert state.output["out"]["output"]["out"] == "yes"
    with pytest.raises(StaleResumeError, match="not waiting"):
        scheduled.respond(run_id, "again")


@pytest.mark.item(421, 480)
def test_32_sub_graphs_within_each_other_may_wait(stores: Stores) -> None:
    """The wait of each is small, and shows the question a few levels below. The answer ends all of them."""

    def nest(run: RunState, _ctx: Any) -> StepPlan:
        n = run.vars.get("n", 0)
        below = {"workflow_id": "nest", "vars": {"n": n + 1}}
        asks = Effect(EffectType.ASK_USER, {"prompt": "Well?", "wait_key": "k"}, "out")
        effect = Effect(START, below, "out") if n < 32 else asks
        return StepPlan("work", effect, next_node="end")

    def end(run: RunState, _ctx: Any) -> StepPlan:
        return StepPlan("end", complete_output={"n": run.vars.get("n", 0)})

    spec = WorkflowSpec("nest", "work", {"work": nest, "end": end})
    scheduled = scheduler_of(stores, spec)
    run_id, state = scheduled.run(spec)
    assert (state.status, state.error) == (RunStatus.WAITING, None)
    assert len(json.dumps(state.to_dict())) < 20_000
    again = scheduler_of(stores.reopen(), spec)

    assert again.respond(run_id, "yes").status is RunStatus.COMPLETED


@pytest.mark.item(420, 458)
def test_an_event_counts_once_while_its_id_is_kept(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the last 1,000 events that a run got. Ids of any length are kept, and each record has one of them."""
    wait = Effect(EffectType.WAIT_EVENT, {"name": "e", "scope": "global"}, "out")
    spec = WorkflowSpec("w", "w", {"w": lambda _run, _ctx: StepPlan("w", wait, next_node="w")})
    rt = stores.runtime(spec)
    run_id = rt.start(spec)

    def emit(event_id: str) -> int:
        rt.tick(spec, run_id)
        delivered: int = rt.emit_event("e", 1, event_id=event_id)["delivered"]
        return delivered

    ids = [*(f"e{n}" for n in range(100)), "x" * 5000, ""]
    assert [*map(emit, ids)] == [1] * 102
    assert [*map(emit, ids)] == [0] * 102
    assert (
        max(len(json.dumps(record["delta"])) for record in rt.get_ledger(run_id) if record["delta"])
        < 2000
    )
    monkeypatch.setattr(waits, "MOST_HEARD", 102)
    assert [emit("new"), emit("e0"), emit("e2")] == [1, 1, 0]
    assert len(rt.get_state(run_id).vars["_runtime"]["events_heard"]) == 102


@pytest.mark.item(421, 480)
@pytest.mark.parametrize("how", ["failed", "cancelled", "deleted"])
def test_a_child_that_does_not_succeed_fails_its_parent(stores: Stores, how: str) -> None:
    """With the child's error: at once, on a cancel while the parent waits, and if the child is deleted."""
    bad = WorkflowSpec("asking", "fail", {"fail": failing})
    parent = parent_of("asking")
    child = bad if how == "failed" else ASKING
    scheduled = scheduler_of(stores, parent, child)
    run_id, state = scheduled.run(parent)
    if how != "failed":
        assert state.waiting is not None
        child_id = (state.waiting.details or {})["sub_run_id"]
        scheduled.runtime.cancel_run(child_id, reason="enough")
        if how == "deleted":
            scheduled.runtime.delete_run(child_id)
        assert scheduled.scheduler.poll_once() == 1
        state = scheduled.get_state(run_id)

    assert state.status is RunStatus.FAILED
    problem = {"failed": "on purpose", "cancelled": "cancelled: enough", "deleted": "deleted"}[how]
    assert problem in (state.error or "")
    assert "'asking'" in (state.error or "")


@pytest.mark.item(421)
def test_an_asynchronous_child_is_not_awaited(stores: Stores) -> None:
    """The parent continues with the child's id; a scheduler drives the child."""
    parent = parent_of("child", **{"async": True})
    scheduled = scheduler_of(stores, parent, CHILD)
    _, state = scheduled.run(parent)

    child_data = state.output["out"]
    assert child_data["async"] is True
    assert scheduled.get_state(child_data["sub_run_id"]).status is RunStatus.RUNNING
    scheduled.scheduler.poll_once()
    assert scheduled.get_state(child_data["sub_run_id"]).status is RunStatus.COMPLETED


@pytest.mark.item(421)
@pytest.mark.parametrize(
    ("payload", "registered", "problem"),
    [
        ({}, True, "workflow_id"),
        ({"workflow_id": "nobody"}, True, "'nobody' was not found"),
        ({"workflow_id": "child"}, False, "workflow_registry"),
        ({"workflow_id": "child", "run_id": "../x"}, True, "letters"),
        ({"workflow_id": "child", "vars": {"_runtime": 1, "context": 2}}, True, "context"),
    ],
)
def test_a_child_that_cannot_be_started_fails_the_step(
    stores: Stores, payload: dict[str, Any], registered: bool, problem: str
) -> None:
    """The error has the reason."""
    parent = one_effect(START, payload, name="parent")
    more: dict[str, Any] = {} if registered else {"workflow_registry": None}
    runtime = stores.runtime(parent, CHILD, **more)

    state = runtime.tick(parent, runtime.start(parent))

    assert state.status is RunStatus.FAILED
    assert problem in (state.error or "")


def test_the_depth_of_sub_graphs_has_a_limit(stores: Stores) -> None:
    """A graph that starts itself fails at depth 33, and so do all runs above it."""
    parent = parent_of("parent")
    runtime = stores.runtime(parent)
    run_id = runtime.start(parent)

    state = runtime.tick(parent, run_id)

    assert state.status is RunStatus.FAILED
    assert "32 sub-graphs within each other" in (state.error or "")
    assert len(stores.runs.list_runs(status=RunStatus.FAILED, limit=99)) == 33


@pytest.mark.item(421)
def test_a_cancelled_run_cancels_its_open_children(stores: Stores) -> None:
    """Ended ones are not changed."""
    parent = parent_of("middle")
    middle = one_effect(START, {"workflow_id": "asking"}, name="middle")
    scheduled = scheduler_of(stores, parent, middle, ASKING)
    run_id, _ = scheduled.run(parent)

    states = scheduled.cancel_with_children(run_id, reason="stop")

    assert [s.workflow_id for s in states] == ["parent", "middle", "asking"]
    assert {s.status for s in stores.reopen().runs.list_runs()} == {RunStatus.CANCELLED}
    assert scheduled.scheduler.poll_once() == 0


def test_a_run_is_deleted_with_all_below_it(stores: Stores) -> None:
    """Records and artifacts, too; an open run is refused."""
    parent = parent_of("asking")
    scheduled = scheduler_of(stores, parent, ASKING)
    run_id, state = scheduled.run(parent)
    assert state.waiting is not None
    child_id = (state.waiting.details or {})["sub_run_id"]
    stores.artifacts.store(b"x", run_id=child_id)
    with pytest.raises(GraphError, match="cancel it first"):
        scheduled.runtime.delete_run(run_id)
    scheduled.respond(run_id, "yes")

    assert scheduled.runtime.delete_run(run_id) == 2
    assert scheduled.runtime.delete_run(run_id) == 0
    other = stores.reopen()
    assert other.runs.list_runs() == []
    assert other.ledger.list(child_id) == []
    assert other.artifacts.list_all() == []


def listening(scope: str = "session", name: str = "listener") -> WorkflowSpec:
    """Return a graph that waits for the event `ready`."""
    return one_effect(EffectType.WAIT_EVENT, {"name": "ready", "scope": scope}, name=name)


def emitting(**more: Any) -> WorkflowSpec:
    """Return a graph that emits the event `ready`."""
    payload = {"name": "ready", "payload": {"v": 1}, **more}
    return one_effect(EffectType.EMIT_EVENT, payload, name="emitter")


@pytest.mark.item(420, 458)
@pytest.mark.parametrize(
    ("scope", "more", "who"),
    [
        ("session", {}, {"same"}),
        ("session", {"session_id": "s2"}, {"other"}),
        ("workflow", {"workflow_id": "listener"}, {"same", "other"}),
        ("global", {}, {"same", "other"}),
        ("run", {"run_id": "same"}, {"same"}),
    ],
)
def test_an_event_answers_all_waits_in_its_scope(
    stores: Stores, scope: str, more: dict[str, Any], who: set[str]
) -> None:
    """And no other run. An answered run continues."""
    listener, emitter = listening(scope), emitting(scope=scope, **more)
    scheduled = scheduler_of(stores, listener, emitter)
    for run_id, session in (("same", "s1"), ("other", "s2")):
        scheduled.start(listener, run_id=run_id, session_id=session)
        scheduled.tick(run_id)

    _, state = scheduled.run(emitter, session_id="s1")

    delivery = state.output["out"]
    assert {*delivery["resumed"]} == who
    assert delivery["delivered"] == len(who)
    assert scheduled.scheduler.poll_once() == len(who)
    for run_id in ("same", "other"):
        waiting_state = scheduled.get_state(run_id)
        assert (waiting_state.status is RunStatus.COMPLETED) is (run_id in who)
        if run_id in who:
            event = waiting_state.output["out"]
            assert (event["name"], event["payload"], event["scope"]) == ("ready", {"v": 1}, scope)


@pytest.mark.item(420)
def test_an_event_without_a_wait_is_no_error(stores: Stores) -> None:
    """The result lists the names that have waits; a later wait does not get the event."""
    listener = listening()
    emitter = one_effect(EffectType.EMIT_EVENT, {"name": "reddy"}, name="emitter")
    runtime = stores.runtime(listener, emitter)
    first = runtime.start(listener, session_id="s")
    runtime.tick(listener, first)

    state = runtime.tick(emitter, runtime.start(emitter, session_id="s"))

    assert state.output["out"]["delivered"] == 0
    assert state.output["out"]["available_listeners_in_session"] == ["ready"]
    for payload, problem in (
        ({}, "no name"),
        ({"name": "x", "scope": "moon"}, "'moon' is none of"),
    ):
        bad = one_effect(EffectType.EMIT_EVENT, payload, name="bad")
        assert problem in (runtime.tick(bad, runtime.start(bad)).error or "")


class Narrow:
    """A store that stores runs, but cannot list them."""

    def __init__(self, inner: Any) -> None:
        self.save, self.load = inner.save, inner.load


@pytest.mark.item(420)
def test_an_event_for_waiting_runs_needs_a_registry(stores: Stores) -> None:
    """And a store that can list them."""
    listener, emitter = listening(), emitting()
    bare = stores.runtime(workflow_registry=None)
    assert bare.tick(emitter, bare.start(emitter, session_id="s")).status is RunStatus.COMPLETED
    bare.tick(listener, bare.start(listener, session_id="s"))

    state = bare.tick(emitter, bare.start(emitter, session_id="s"))

    assert "workflow_registry" in (state.error or "")
    narrow = stores.runtime(emitter, run_store=Narrow(stores.runs))
    assert "QueryableRunStore" in (narrow.tick(emitter, narrow.start(emitter)).error or "")


@pytest.mark.item(420)
def test_an_event_of_one_id_answers_one_wait_of_a_run(stores: Stores) -> None:
    """However often it is emitted."""

    def loop(run: RunState, ctx: Any) -> StepPlan:
        n = run.vars["n"] = run.vars.get("n", 0) + 1
        if n > 2:
            return end_node(run, ctx)
        return StepPlan("loop", Effect(EffectType.WAIT_EVENT, {"name": "ready"}, f"e{n}"), "loop")

    spec = WorkflowSpec("graph", "loop", {"loop": loop})
    scheduled = scheduler_of(stores, spec)
    run_id, _ = scheduled.run(spec, session_id="s")
    scope = {"scope": "session", "session_id": "s"}

    def emit(event_id: str) -> int:
        return len(scheduled.scheduler.emit_event(name="ready", event_id=event_id, **scope))

    assert [emit("a"), emit("a"), emit("b"), emit("c")] == [1, 0, 1, 0]
    assert scheduled.get_state(run_id).status is RunStatus.COMPLETED


def test_each_of_many_listeners_gets_the_event(stores: Stores) -> None:
    """None of them twice."""
    listener = listening("global")
    scheduled = scheduler_of(stores, listener)
    count = 60
    for n in range(count):
        scheduled.start(listener, run_id=f"r{n}")
        scheduled.tick(f"r{n}")

    states = scheduled.scheduler.emit_event(name="ready", payload=1)

    assert {s.run_id for s in states} == {f"r{n}" for n in range(count)}
    assert {s.status for s in states} == {RunStatus.COMPLETED}


@pytest.mark.item(414)
def test_one_of_two_concurrent_answers_succeeds(stores: Stores) -> None:
    """From threads, each with its own runtime; the node after the wait is called once."""
    calls: list[Any] = []

    def after(run: RunState, ctx: Any) -> StepPlan:
        calls.append(run.vars["out"])
        return end_node(run, ctx)

    ask = effect_then(EffectType.ASK_USER, {"prompt": "x", "wait_key": "k"}, after="after")
    spec = WorkflowSpec("graph", "ask", {"ask": ask, "after": after})
    first, second = stores.runtime(spec), stores.reopen().runtime(spec)
    for n in range(20):
        run_id = first.start(spec)
        first.tick(spec, run_id)
        ready, outcomes = threading.Barrier(2), list[Any]()

        def answer(runtime: Any, name: str, run_id: str = run_id, ready: Any = ready) -> None:
            ready.wait()
            try:
                outcomes.append(runtime.resume(spec, run_id, "k", name))  # noqa: B023
            except StaleResumeError as exc:
                outcomes.append(exc)  # noqa: B023

        at_once(partial(answer, *target) for target in ((first, "a"), (second, "b")))
        assert sorted(isinstance(outcome, StaleResumeError) for outcome in outcomes) == [
            False,
            True,
        ]
        assert len(calls) == n + 1


@pytest.mark.item(454)
def test_a_registry_knows_graphs_by_name() -> None:
    """Names are unique. An unknown name is None, or an error where a graph is required."""
    registry = WorkflowRegistry()
    registry.register(CHILD)

    assert registry.get("child") is CHILD
    assert registry.get_or_raise("child") is CHILD
    assert registry.get("nobody") is None
    assert registry.list_ids() == ["child"]
    with pytest.raises(ValueError, match="already registered"):
        registry.register(CHILD)
    registry.unregister("child")
    assert "child" not in registry
    assert len(registry) == 0
    for verb in (registry.unregister, registry.get_or_raise):
        with pytest.raises(KeyError, match="not registered"):
            verb("child")


@pytest.mark.item(455)
def test_a_scheduler_drives_due_runs(stores: Stores) -> None:
    """It skips paused runs, waits for others, and unknown graphs; it counts its runs."""
    timer = one_effect(EffectType.WAIT_UNTIL, {"timeout_s": 10}, name="timer")
    strange = one_effect(EffectType.WAIT_UNTIL, {"timeout_s": 10}, name="strange")
    resumed: list[str] = []
    scheduled = scheduler_of(stores, timer, ASKING)
    scheduled.scheduler = Scheduler(
        runtime=scheduled.runtime,
        registry=scheduled.registry,
        on_run_resumed=lambda state: resumed.append(state.run_id),
    )
    for run_id, spec in (("due", timer), ("paused", timer), ("asks", ASKING)):
        scheduled.start(spec, run_id=run_id)
        scheduled.tick(run_id)
    foreign = scheduled.runtime.start(strange)
    scheduled.runtime.tick(strange, foreign)
    scheduled.runtime.pause_run("paused")
    assert scheduled.scheduler.poll_once() == 0
    stores.clock.advance(10)

    assert scheduled.scheduler.poll_once() == 1
    assert resumed == ["due"]
    assert scheduled.get_state("due").status is RunStatus.COMPLETED
    assert len(scheduled.find_waiting_runs()) == 3
    assert [s.run_id for s in scheduled.find_waiting_runs(wait_reason=WaitReason.USER)] == ["asks"]
    stats = scheduled.scheduler.stats
    assert (stats.poll_cycles, stats.runs_resumed, stats.runs_failed) == (2, 1, 0)
    assert stats.last_poll_at is not None
    scheduled.runtime.resume_run("paused")
    assert scheduled.scheduler.poll_once() == 1


@pytest.mark.item(455)
@pytest.mark.parametrize("what", ["due", "left", "parents"])
def test_a_scheduler_comes_to_every_run(
    stores: Stores, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also behind pages of runs that it cannot continue: paused, of unknown graphs, or parents without news."""
    monkeypatch.setattr(embedded_scheduler, "_PAGE", 2)
    timer = one_effect(EffectType.WAIT_UNTIL, {"timeout_s": 10}, name="timer")
    lost = one_effect(EffectType.WAIT_UNTIL, {"timeout_s": 5}, name="lost")
    parent = parent_of("child" if what == "left" else "asking")
    child = WorkflowSpec(
        "asking",
        "work",
        dict(ASKING.nodes if what == "parents" else {**CHILD.nodes, "work": CHILD.nodes["end"]}),
    )
    scheduled = scheduler_of(stores, timer, parent, child)
    first = scheduled.start(parent if what == "parents" else timer, run_id="m")
    scheduled.tick(first)
    for n in range(7):
        stores.clock.advance(0.1)
        spec = {"due": (timer, lost)[n % 2], "left": lost, "parents": parent}[what]
        run_id = scheduled.runtime.start(spec, run_id=f"{'az'[n % 2]}{n}")
        if what != "left":
            scheduled.runtime.tick(spec, run_id)
        if spec is timer:
            scheduled.runtime.pause_run(run_id)
    if what == "left":
        scheduled.runtime.start(timer, run_id="n")
    if what == "parents":
        (below,) = stores.runs.list_children(parent_run_id="m")
        scheduled.runtime.resume(child, below.run_id, "k", "yes")
    stores.clock.advance(60)

    for _ in range(5):
        scheduled.scheduler.poll_once()

    assert scheduled.get_state(first).status is RunStatus.COMPLETED


@pytest.mark.item(391, 455)
def test_a_scheduler_takes_over_from_a_crashed_driver(stores: Stores) -> None:
    """It continues a run without a driver."""
    scheduled = scheduler_of(stores, CHILD)
    run_id = scheduled.start(CHILD)

    assert scheduled.scheduler.poll_once() == 1
    assert scheduled.get_state(run_id).status is RunStatus.COMPLETED
    assert scheduled.scheduler.poll_once() == 0


@pytest.mark.item(455)
def test_a_scheduler_continues_after_a_failing_run(stores: Stores) -> None:
    """It logs, counts, and retries."""
    failures: list[Any] = []
    scheduled = scheduler_of(stores, CHILD)
    good, bad = scheduled.start(CHILD), scheduled.start(CHILD)
    scheduled.scheduler = Scheduler(
        runtime=scheduled.runtime,
        registry=scheduled.registry,
        on_run_failed=lambda run_id, exc: failures.append((run_id, str(exc))),
    )
    real = scheduled.runtime.try_tick

    def try_tick(spec: WorkflowSpec, run_id: str, max_steps: int = 100) -> RunState | None:
        if run_id == bad:
            raise OSError("store full")
        return real(spec, run_id, max_steps)

    scheduled.runtime.try_tick = try_tick  # type: ignore[method-assign,assignment]
    assert scheduled.scheduler.poll_once() == 1
    assert failures == [(bad, "store full")]
    assert scheduled.get_state(good).status is RunStatus.COMPLETED
    scheduled.runtime.try_tick = real  # type: ignore[method-assign]
    assert scheduled.scheduler.poll_once() == 1


@pytest.mark.item(455)
def test_a_scheduler_does_not_wait_for_a_run_that_is_driven(stores: Stores) -> None:
    """A thread, or another store over the same files, has locked it.

    The scheduler continues with others.
    """
    begun, may_end = threading.Event(), threading.Event()

    def slow(_run: RunState, _effect: Effect) -> EffectOutcome:
        begun.set()
        assert may_end.wait(30)
        return EffectOutcome.completed("slow")

    busy = one_effect(EffectType.LLM_CALL, {}, name="busy")
    scheduled = scheduler_of(stores, busy, CHILD, effect_handlers={EffectType.LLM_CALL: slow})
    run_id, other = scheduled.start(busy), scheduled.start(CHILD)
    driving = threading.Thread(target=scheduled.tick, args=(run_id,))
    driving.start()
    assert begun.wait(30)

    assert scheduled.scheduler.poll_once() == 1
    assert scheduled.get_state(other).status is RunStatus.COMPLETED
    assert scheduled.runtime.try_tick(busy, run_id) is None
    may_end.set()
    driving.join()
    assert scheduled.get_state(run_id).output["out"] == "slow"


def test_a_run_that_another_process_holds_is_left_alone(disk_stores: Stores) -> None:
    """It does not wait for the lock; once the lock is released, it drives the run."""
    other = disk_stores.reopen()
    scheduled = scheduler_of(disk_stores, CHILD)
    run_id = scheduled.start(CHILD)

    with other.runs.lock(run_id):
        assert scheduled.scheduler.poll_once() == 0
    assert scheduled.scheduler.poll_once() == 1
    assert scheduled.scheduler.stats.runs_failed == 0
    other.close()


@pytest.mark.item(455)
def test_a_scheduler_needs_a_store_that_can_list_runs(stores: Stores) -> None:
    """Otherwise its constructor raises."""
    with pytest.raises(TypeError, match="QueryableRunStore"):
        Scheduler(
            runtime=stores.runtime(run_store=Narrow(stores.runs)), registry=WorkflowRegistry()
        )


@pytest.mark.item(456)
def test_a_graph_runs_in_five_lines() -> None:
    """In memory, with a scheduler of its own, which stops."""
    scheduled = create_scheduled_runtime()
    run_id, state = scheduled.run(ASKING)
    assert state.status is RunStatus.WAITING
    assert scheduled.respond(run_id, {"response": "yes"}).output["out"] == {"response": "yes"}
    assert scheduled.is_running
    with pytest.raises(RuntimeError, match="already running"):
        scheduled.scheduler.start()
    scheduled.stop()
    scheduled.stop()
    assert not scheduled.is_running
    assert scheduled.get_ledger(run_id)


@pytest.mark.item(457)
def test_a_scheduler_delivers_answers_and_events(stores: Stores) -> None:
    """An answer by its key, an event by its name; the run of an unknown graph is refused."""
    listener = listening("global")
    scheduled = scheduler_of(stores, listener, ASKING)
    asks, _ = scheduled.run(ASKING)
    hears, _ = scheduled.run(listener)

    state = scheduled.resume_event(run_id=asks, wait_key="k", payload=1)
    assert state.output["out"] == 1
    (state,) = scheduled.scheduler.emit_event(name="ready", payload=2)
    assert (state.run_id, state.output["out"]["payload"]) == (hears, 2)
    scheduled.registry.unregister("asking")
    with pytest.raises(KeyError, match="not registered"):
        scheduled.resume_event(run_id=asks, wait_key="k", payload=1)


@pytest.mark.item(455)
def test_the_loop_of_a_scheduler_wakes_a_run() -> None:
    """In its own thread."""
    timer = one_effect(EffectType.WAIT_UNTIL, {"timeout_s": 60}, name="timer")
    ended, clock = threading.Event(), GraphClock()
    scheduled = create_scheduled_runtime(auto_start=False, clock=clock)
    loop = Scheduler(
        runtime=scheduled.runtime,
        registry=scheduled.registry,
        poll_interval_s=0.005,
        on_run_resumed=lambda _state: ended.set(),
    )
    _, state = scheduled.run(timer)
    assert state.status is RunStatus.WAITING
    clock.advance(60)
    loop.start()

    assert ended.wait(30)
    loop.stop()


def test_two_drivers_of_one_run_take_turns(stores: Stores) -> None:
    """Each node is called once."""
    calls: list[int] = []

    def count(run: RunState, ctx: Any) -> StepPlan:
        n = run.vars["n"] = run.vars.get("n", 0) + 1
        calls.append(n)
        return StepPlan("count", next_node="count") if n < 40 else end_node(run, ctx)

    spec = WorkflowSpec("graph", "count", {"count": count})
    first, second = stores.runtime(spec), stores.reopen().runtime(spec)
    run_id = first.start(spec)

    def drive(tick: Callable[..., RunState]) -> None:
        while not tick(spec, run_id, 1).status.is_terminal:
            pass

    at_once(partial(drive, driver.tick) for driver in (first, second))

    assert calls == [*range(1, 41)]
