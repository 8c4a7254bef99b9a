"""Graphs behave the same on every store: nodes, plans, effects, waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.workflow.errors import GraphError, NoSuchRunError
from actors.errors import NotSerializableError
from actors.workflow import (
    Effect,
    EffectOutcome,
    EffectType,
    RunStatus,
    RuntimeConfig,
    StaleResumeError,
    StepPlan,
    StepStatus,
    WaitReason,
    WaitState,
    WorkflowSpec,
    tool_calls,
)
from tests.conformance.workflow.stores import effect_then, end_node, one_effect

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.workflow import RunState
    from tests.conformance.workflow.stores import Stores


def asking(kind: EffectType, payload: dict[str, Any]) -> WorkflowSpec:
    """Return a graph that waits in its first node."""
    return one_effect(kind, payload, name="asking")


@pytest.mark.item(400)
def test_a_spec_has_an_entry_and_knows_its_nodes() -> None:
    """An unknown node is a KeyError; a spec without its entry is refused."""
    spec = WorkflowSpec("graph", "a", {"a": end_node})

    assert spec.get_node("a") is end_node
    with pytest.raises(KeyError, match="nowhere"):
        spec.get_node("nowhere")
    with pytest.raises(GraphError, match="entry"):
        WorkflowSpec("graph", "nowhere", {"a": end_node})
    with pytest.raises(GraphError, match="workflow_id"):
        WorkflowSpec("", "a", {"a": end_node})
    assert spec.hash == WorkflowSpec("graph", "a", {"a": end_node}).hash
    assert spec.hash != WorkflowSpec("graph", "a", {"a": lambda _run, _ctx: None}).hash  # type: ignore[dict-item,return-value]


@pytest.mark.item(401, 402, 403, 398)
def test_the_three_plans_drive_a_run(stores: Stores) -> None:
    """A move has a record without an effect, an effect has two, the end one with the output and one more."""

    def begin(run: RunState, _ctx: Any) -> StepPlan:
        run.vars["moved"] = True
        return StepPlan("begin", next_node="work")

    work = effect_then(EffectType.ANSWER_USER, {"message": "Hello"})
    spec = WorkflowSpec("graph", "begin", {"begin": begin, "work": work, "end": end_node})
    runtime = stores.runtime(spec)
    run_id = runtime.start(spec, vars={"given": 1})

    state = runtime.tick(spec, run_id)

    assert state.status is RunStatus.COMPLETED
    output = {"given": 1, "moved": True, "out": {"message": "Hello", "level": "message"}}
    assert {**state.output, "context": 0, "scratchpad": 0} == output | {
        "context": 0,
        "scratchpad": 0,
    }
    steps = [
        (record["node_id"], record["status"], (record["effect"] or {}).get("type"))
        for record in stores.reopen().ledger.list(run_id)
    ]
    assert steps == [
        ("begin", "completed", None),  # the start of the run
        ("begin", "completed", None),
        ("work", "started", "answer_user"),
        ("work", "completed", "answer_user"),
        ("end", "completed", None),
        ("end", "completed", "emit_event"),
    ]
    end = runtime.get_ledger(run_id)[-2]
    assert end["result"] == {"completed": True, "output": state.output}
    assert stores.reopen().runs.load(run_id) == runtime.tick(spec, run_id) == state


@pytest.mark.item(409, 472)
def test_a_run_starts_with_its_limits(stores: Stores) -> None:
    """The limits come from the configuration; the caller's values override them."""
    spec = WorkflowSpec("graph", "end", {"end": end_node})
    runtime = stores.runtime(spec, config=RuntimeConfig(max_iterations=50, max_tokens=1000))
    run_id = runtime.start(
        spec, vars={"_limits": {"max_tokens": 500}}, actor_id="ar_1", session_id="s"
    )

    state = stores.reopen().runs.load(run_id)

    assert isinstance(run_id, str)
    assert (state.status, state.current_node) == (RunStatus.RUNNING, "end")
    assert (state.actor_id, state.session_id) == ("ar_1", "s")
    limits = state.vars["_limits"]
    assert (limits["max_iterations"], limits["max_tokens"]) == (50, 500)
    assert (limits["current_iteration"], limits["max_history_messages"]) == (0, -1)


def test_a_run_of_a_given_id_is_made_once(stores: Stores) -> None:
    """A repeated creation returns the same run; a different run of the id is refused."""
    spec = WorkflowSpec("graph", "end", {"end": end_node})
    runtime = stores.runtime(spec)
    runtime.start(spec, run_id="mine", vars={"n": 1})
    runtime.tick(spec, "mine")

    assert runtime.start(spec, run_id="mine", vars={"n": 2}) == "mine"
    assert runtime.get_state("mine").output["n"] == 1
    with pytest.raises(GraphError, match="letters"):
        runtime.start(spec, run_id="a/b")
    with pytest.raises(ValueError, match="session_id"):
        runtime.start(spec, run_id="mine", session_id="s")
    with pytest.raises(NotSerializableError, match=r"vars\.x"):
        runtime.start(spec, run_id="new", vars={"x": {1}})
    with pytest.raises(NoSuchRunError):
        runtime.get_state("new")


@pytest.mark.item(410)
def test_a_tick_calls_a_limited_number_of_nodes(stores: Stores) -> None:
    """The next tick continues; an ended run is not changed."""
    calls: list[str] = []

    def node(after: str | None) -> Callable[[RunState, Any], StepPlan]:
        def call(run: RunState, ctx: Any) -> StepPlan:
            calls.append(run.current_node)
            return StepPlan(run.current_node, next_node=after) if after else end_node(run, ctx)

        return call

    spec = WorkflowSpec("graph", "a", {"a": node("b"), "b": node("c"), "c": node(None)})
    runtime = stores.runtime(spec)
    run_id = runtime.start(spec)

    assert runtime.tick(spec, run_id, max_steps=0).current_node == "a"
    assert runtime.tick(spec, run_id, max_steps=2).current_node == "c"
    assert stores.reopen().runs.load(run_id).current_node == "c"
    assert runtime.tick(spec, run_id, step_gate=lambda: False).status is RunStatus.RUNNING
    ended = runtime.tick(spec, run_id)
    assert ended.status is RunStatus.COMPLETED
    assert runtime.tick(spec, run_id) == ended
    assert calls == ["a", "b", "c"]
    with pytest.raises(GraphError, match="other"):
        runtime.tick(WorkflowSpec("other", "a", {"a": end_node}), run_id)
    with pytest.raises(NoSuchRunError, match="nobody"):
        runtime.tick(spec, "nobody")


def odd(answer: Any) -> Callable[[RunState, Any], Any]:
    """Return a value that is no plan."""
    return lambda _run, _ctx: answer


async def coroutine_node(run: RunState, ctx: Any) -> StepPlan:
    """Return a plan too late."""
    return end_node(run, ctx)


def with_vars(**changed: Any) -> Callable[[RunState, Any], StepPlan]:
    """Return a node that changes the vars and moves on."""

    def call(run: RunState, _ctx: Any) -> StepPlan:
        run.vars |= changed
        return StepPlan("node", next_node="node")

    return call


LOOSE = Effect(EffectType.ANSWER_USER, {"message": "x"})


@pytest.mark.item(404)
@pytest.mark.parametrize(
    ("node", "problem"),
    [
        (odd(None), "returned a NoneType"),
        (odd({}), "returned a dict"),
        (coroutine_node, "no coroutine"),
        (odd(StepPlan("node")), "says nothing"),
        (odd(StepPlan("node", next_node="node", complete_output=1)), "stands alone"),
        (odd(StepPlan("node", effect=LOOSE, complete_output=1)), "stands alone"),
        (odd(StepPlan("node", next_node="nowhere")), "no node 'nowhere'"),
        (odd(StepPlan("node", effect="x", next_node="node")), "effect is a str"),  # type: ignore[arg-type]
        (odd(StepPlan("node", complete_output={"x": {1}})), r"output.x: a set"),
        (
            odd(StepPlan("node", effect=Effect(EffectType.LLM_CALL, {"x": {1}}))),
            r"effect.payload.x",
        ),
        (with_vars(x=float("nan")), r"vars.x: a float"),
        (with_vars(x=[object()]), r"vars.x[0]: a object"),
        (odd(StepPlan("node", effect=Effect(EffectType.ANSWER_USER, {}, "s.x"))), "'s' is a str"),
        (odd(StepPlan("node", effect=Effect(EffectType.ANSWER_USER, {}, "a..b"))), "empty"),
    ],
)
def test_an_invalid_plan_of_a_node_fails_its_run(stores: Stores, node: Any, problem: str) -> None:
    """The state and a record have the error. None of its effects happens."""
    spec = WorkflowSpec("graph", "node", {"node": node})
    runtime = stores.runtime(spec)
    run_id = runtime.start(spec, vars={"s": "scalar"})

    state = runtime.tick(spec, run_id)

    assert state.status is RunStatus.FAILED
    assert problem in (state.error or "")
    records = runtime.get_ledger(run_id)
    assert [record["status"] for record in records] == ["completed", "failed", "completed"]
    assert records[1]["error"] == state.error
    assert state.vars["s"] == "scalar"
    assert stores.reopen().runs.load(run_id).status is RunStatus.FAILED


@pytest.mark.item(404)
def test_a_node_that_raises_fails_its_run(stores: Stores) -> None:
    """Its changes of the vars are dropped; the run does not stay RUNNING."""

    def node(run: RunState, _ctx: Any) -> StepPlan:
        run.vars["half"] = True
        raise ValueError("on purpose")

    spec = WorkflowSpec("graph", "node", {"node": node})
    runtime = stores.runtime(spec)
    run_id = runtime.start(spec)

    state = runtime.tick(spec, run_id)

    assert state.status is RunStatus.FAILED
    assert "ValueError: on purpose" in (state.error or "")
    assert "half" not in state.vars
    assert runtime.get_ledger(run_id)[1]["error"] == state.error


def test_a_loop_without_an_end_fails_its_run(stores: Stores) -> None:
    """The same node with the same vars and no effect in between; a loop that counts continues."""

    def spin(run: RunState, _ctx: Any) -> StepPlan:
        run.vars["n"] = (run.vars["n"] + 1) % run.vars["most"]
        return StepPlan("spin", next_node="spin")

    spec = WorkflowSpec("graph", "spin", {"spin": spin})
    runtime = stores.runtime(spec)
    endless = runtime.start(spec, vars={"n": 0, "most": 3})
    counting = runtime.start(spec, vars={"n": 0, "most": 1000})

    state = runtime.tick(spec, endless)
    assert state.status is RunStatus.FAILED
    assert "endless loop" in (state.error or "")
    assert runtime.tick(spec, counting).status is RunStatus.RUNNING
    assert runtime.get_state(counting).vars["n"] == 100


@pytest.mark.item(399, 429, 476, 477)
def test_a_handler_of_the_host_executes(stores: Stores) -> None:
    """It gets the run as the node left it. Its result is recorded, and stored at its path in the vars."""
    seen: list[Any] = []

    def model(run: RunState, effect: Effect, next_node: str | None) -> EffectOutcome:
        seen.append((run.vars["asked"], effect.payload["prompt"], next_node))
        return EffectOutcome.completed({"content": "hi", "usage": {"total_tokens": 12}})

    def ask(run: RunState, _ctx: Any) -> StepPlan:
        run.vars["asked"] = True
        effect = Effect(EffectType.LLM_CALL, {"prompt": "hello"}, "answers.first")
        return StepPlan("ask", effect, next_node="end")

    spec = WorkflowSpec("graph", "ask", {"ask": ask, "end": end_node})
    runtime = stores.runtime(spec, effect_handlers={EffectType.LLM_CALL: model})
    run_id = runtime.start(spec)

    state = runtime.tick(spec, run_id)

    assert seen == [(True, "hello", "end")]
    assert state.output["answers"]["first"]["content"] == "hi"
    assert state.vars["_limits"]["estimated_tokens_used"] == 12
    assert runtime.get_ledger(run_id)[2]["result"]["content"] == "hi"


@pytest.mark.item(476)
def test_a_handler_takes_the_place_of_a_built_in_one(stores: Stores) -> None:
    """An effect without a handler fails the run; the error names the remedy."""
    spec = one_effect(EffectType.ANSWER_USER, {"message": "x"})
    other = one_effect(EffectType.LLM_CALL, {"prompt": "x"}, name="other")
    runtime = stores.runtime(
        effect_handlers={
            EffectType.ANSWER_USER: lambda _run, _effect: EffectOutcome.completed("mine")
        }
    )

    assert runtime.tick(spec, runtime.start(spec)).output["out"] == "mine"
    state = runtime.tick(other, runtime.start(other))
    assert state.status is RunStatus.FAILED
    assert "effect_handlers={EffectType.LLM_CALL: handler}" in (state.error or "")


@pytest.mark.item(477)
@pytest.mark.parametrize(
    ("outcome", "problem"),
    [
        ("text", "returned a str"),
        (None, "returned a NoneType"),
        (EffectOutcome.completed({"x": {1}}), "result of handler of llm_call.x: a set"),
        (EffectOutcome.failed("no luck"), "failed at its first attempt: no luck"),
        (EffectOutcome(StepStatus.WAITING), "waits for nothing"),
        (EffectOutcome("done"), "status 'done' is none of"),  # type: ignore[arg-type]
        (EffectOutcome.waiting(WaitState(WaitReason.JOB, "k", until="soon")), "ISO timestamp"),
    ],
)
def test_a_bad_outcome_fails_its_run(stores: Stores, outcome: Any, problem: str) -> None:
    """A record has the error."""
    spec = one_effect(EffectType.LLM_CALL, {})
    runtime = stores.runtime(effect_handlers={EffectType.LLM_CALL: lambda _run, _effect: outcome})
    run_id = runtime.start(spec)

    state = runtime.tick(spec, run_id)

    assert state.status is RunStatus.FAILED
    assert problem in (state.error or "")
    assert [record["status"] for record in runtime.get_ledger(run_id)] == [
        "completed",
        "started",
        "failed",
        "completed",
    ]


@pytest.mark.item(430)
def test_a_batch_of_tools_has_a_result_for_each(stores: Stores) -> None:
    """By id and in order. An error or an unknown tool does not fail the step."""

    def broken() -> None:
        raise OSError("no disk")

    calls = [
        {"name": "add", "arguments": {"a": 1, "b": 2}, "call_id": "c1"},
        {"name": "broken", "call_id": "c2"},
        {"name": "nobody"},
    ]
    spec = one_effect(EffectType.TOOL_CALLS, {"tool_calls": calls})
    tools = tool_calls({"add": lambda a, b: a + b, "broken": broken})
    runtime = stores.runtime(effect_handlers={EffectType.TOOL_CALLS: tools})

    state = runtime.tick(spec, runtime.start(spec))

    rows = state.output["out"]["results"]
    assert [row["call_id"] for row in rows] == ["c1", "c2", "2"]
    assert [row["success"] for row in rows] == [True, False, False]
    assert rows[0]["output"] == 3
    assert rows[1]["error"] == "OSError: no disk"
    assert "nobody" in rows[2]["error"]


@pytest.mark.item(392, 411, 412, 413, 416, 418, 480)
@pytest.mark.parametrize(
    ("kind", "payload", "reason"),
    [
        (EffectType.ASK_USER, {"prompt": "Well?", "wait_key": "k"}, WaitReason.USER),
        (EffectType.WAIT_EVENT, {"wait_key": "k"}, WaitReason.EVENT),
        (EffectType.TOOL_CALLS, {}, WaitReason.JOB),
    ],
)
def test_a_wait_is_answered_by_its_key(
    stores: Stores, kind: EffectType, payload: dict[str, Any], reason: WaitReason
) -> None:
    """A wrong key changes nothing. The answer is stored at its path, and the next node follows."""

    def job(_run: RunState, _effect: Effect) -> EffectOutcome:
        return EffectOutcome.waiting(WaitState(WaitReason.JOB, wait_key="k"))

    nodes = {"ask": effect_then(kind, payload, key="deep.answer", after="then")}
    spec = WorkflowSpec("graph", "ask", {**nodes, "then": end_node, "end": end_node})
    runtime = stores.runtime(effect_handlers={EffectType.TOOL_CALLS: job})
    run_id = runtime.start(spec)
    parked = runtime.tick(spec, run_id)

    assert parked.status is RunStatus.WAITING
    assert parked.waiting is not None
    assert (parked.waiting.reason, parked.waiting.wait_key) == (reason, "k")
    assert (parked.waiting.resume_to_node, parked.waiting.result_key) == ("then", "deep.answer")
    assert runtime.tick(spec, run_id) == parked
    other = stores.reopen().runtime(spec)
    for key in ("wrong", "", None):
        with pytest.raises(StaleResumeError, match="wait_key mismatch"):
            other.resume(spec, run_id, key, {"x": 1})
    with pytest.raises(NotSerializableError, match="payload"):
        other.resume(spec, run_id, "k", {1})
    assert other.get_state(run_id) == parked

    state = other.resume(spec, run_id, "k", {"yes": True})

    assert (state.status, state.current_node) == (RunStatus.COMPLETED, "then")
    assert state.output["deep"] == {"answer": {"yes": True}}
    with pytest.raises(StaleResumeError, match="not waiting"):
        other.resume(spec, run_id, "k", {"yes": True})


@pytest.mark.item(418)
def test_a_question_has_all_that_a_page_needs(stores: Stores) -> None:
    """In the state and in the record; without a prompt the step fails."""
    payload = {
        "prompt": "Refund?",
        "choices": ["yes", "no"],
        "allow_free_text": False,
        "details": {"e": 40},
    }
    spec = asking(EffectType.ASK_USER, payload)
    runtime = stores.runtime(spec)
    run_id = runtime.start(spec)
    wait = runtime.tick(spec, run_id).waiting
    assert wait is not None
    assert (wait.prompt, wait.choices, wait.allow_free_text) == ("Refund?", ["yes", "no"], False)
    assert wait.details == {"e": 40}
    assert runtime.get_ledger(run_id)[-1]["result"]["wait"] == wait.to_dict()
    bare = one_effect(EffectType.ASK_USER, {}, name="bare")
    assert "prompt" in (runtime.tick(bare, runtime.start(bare)).error or "")


@pytest.mark.item(419)
def test_an_answer_for_a_person_does_not_wait(stores: Stores) -> None:
    """Its result is the message; as the last node its result is the output."""
    spec = WorkflowSpec(
        "graph", "say", {"say": effect_then(EffectType.ANSWER_USER, {"message": "x"}, after=None)}
    )
    runtime = stores.runtime(spec)

    state = runtime.tick(spec, runtime.start(spec))

    assert state.output == {"success": True, "result": {"message": "x", "level": "message"}}


@pytest.mark.item(417)
@pytest.mark.parametrize("zone", ["+00:00", "+02:00", "-07:00", "Z"])
def test_an_instant_is_waited_for_in_any_zone(stores: Stores, zone: str) -> None:
    """A past instant does not wait; an invalid one fails."""
    hours = {"+02:00": 2, "-07:00": -7}.get(zone, 0)
    text = stores.clock.iso(60 + hours * 3600).removesuffix("+00:00") + zone
    spec = asking(EffectType.WAIT_UNTIL, {"until": text})
    runtime = stores.runtime(spec)
    run_id = runtime.start(spec)
    parked = runtime.tick(spec, run_id)

    assert parked.waiting is not None
    assert parked.waiting.until == stores.clock.iso(60)
    stores.clock.advance(59.9)
    assert runtime.tick(spec, run_id).status is RunStatus.WAITING
    stores.clock.advance(0.1)
    assert runtime.tick(spec, run_id).output["out"] == {"waited_until": stores.clock.iso()}
    past = runtime.start(spec)
    assert runtime.tick(spec, past).status is RunStatus.COMPLETED
    bad = one_effect(EffectType.WAIT_UNTIL, {"until": "soon"}, name="bad")
    assert "ISO timestamp" in (runtime.tick(bad, runtime.start(bad)).error or "")


def test_waits_for_instants_are_counted_until_another_effect(stores: Stores) -> None:
    """A run that wakes, looks and waits again is counted, in any process. Other work sets the count to 0."""

    def look(run: RunState, _ctx: Any) -> StepPlan:
        looks = run.vars["looks"] = run.vars.get("looks", 0) + 1
        return StepPlan("look", next_node="work" if looks == 3 else "rest")

    rest = effect_then(EffectType.WAIT_UNTIL, {"timeout_s": 5}, after="look")
    work = effect_then(EffectType.ANSWER_USER, {"message": "m"}, after="past")
    past = effect_then(EffectType.WAIT_UNTIL, {"until": stores.clock.iso()}, after="rest")
    spec = WorkflowSpec("poll", "rest", {"rest": rest, "look": look, "work": work, "past": past})
    run_id = stores.runtime().start(spec)
    counts = []
    for _ in range(4):
        state = stores.reopen().runtime().tick(spec, run_id)
        counts.append(state.vars["_runtime"]["wait_until_streak"])
        stores.clock.advance(5)

    assert counts == [1, 2, 3, 1]


def test_a_clock_that_goes_back_only_delays(stores: Stores) -> None:
    """A clock that jumps ahead wakes the run once."""
    spec = asking(EffectType.WAIT_UNTIL, {"timeout_s": 60})
    runtime = stores.runtime(spec)
    run_id = runtime.start(spec)
    runtime.tick(spec, run_id)
    stores.clock.advance(-3600)
    assert runtime.tick(spec, run_id).status is RunStatus.WAITING
    stores.clock.advance(86_400)
    assert runtime.tick(spec, run_id).status is RunStatus.COMPLETED


@pytest.mark.item(416)
def test_a_deadline_ends_a_wait(stores: Stores) -> None:
    """The answer has a flag for the timeout; an event before it is used."""
    spec = asking(EffectType.WAIT_EVENT, {"wait_key": "k", "until": stores.clock.iso(60)})
    runtime = stores.runtime(spec)
    late, early = runtime.start(spec), runtime.start(spec)
    runtime.tick(spec, late)
    runtime.tick(spec, early)
    assert runtime.resume(spec, early, "k", "here").output["out"] == "here"
    stores.clock.advance(60)

    state = runtime.tick(spec, late)

    assert state.output["out"] == {"timed_out": True, "until": stores.clock.iso()}
    with pytest.raises(StaleResumeError):
        runtime.resume(spec, late, "k", "too late")


@pytest.mark.item(427, 428)
def test_the_vars_can_be_read_by_path(stores: Stores) -> None:
    """By dots and indexes or by a pointer, or only the keys; a missing path is reported."""

    def rows(path: str, **more: Any) -> Any:
        spec = one_effect(EffectType.VARS_QUERY, {"path": path, **more})
        runtime = stores.runtime(spec)
        run_id = runtime.start(spec, vars={"a": {"b": [1, {"c/d": "ü"}]}})
        return runtime.tick(spec, run_id).output["out"]["results"][0]

    assert '"value": 1' in rows("a.b[0]")["output"]
    assert '"value": "ü"' in rows("/a/b/1/c~1d")["output"]
    assert '"keys": ["b"]' in rows("a", keys_only=True)["output"]
    assert rows("a.nope")["error"] == "Missing key 'nope' in 'a.nope'"
    assert rows("a.b[7]")["success"] is False
    assert rows("a..b")["success"] is False


@pytest.mark.item(460)
def test_traces_of_nodes_are_bounded(stores: Stores) -> None:
    """The last entries of each node are kept. A large one is cut, with a mark, and so is a deep one."""

    def loop(run: RunState, _ctx: Any) -> StepPlan:
        n = run.vars["n"] = run.vars.get("n", 0) + 1
        effect = Effect(EffectType.LLM_CALL, {"prompt": n})
        return StepPlan("loop", effect, next_node="loop" if n < 25 else "end")

    def answer(_run: RunState, effect: Effect) -> EffectOutcome:
        deep: Any = 1
        for _ in range(60):
            deep = [deep]
        return EffectOutcome.completed(
            {24: "x" * 9000, 25: deep}.get(effect.payload["prompt"], "ok")
        )

    spec = WorkflowSpec("graph", "loop", {"loop": loop, "end": end_node})
    runtime = stores.runtime(spec, effect_handlers={EffectType.LLM_CALL: answer})
    run_id = runtime.start(spec)
    runtime.tick(spec, run_id)

    trace = runtime.get_node_trace(run_id, "loop")
    assert [step["effect"]["payload"]["prompt"] for step in trace["steps"]] == [*range(21, 26)]
    assert trace["dropped"] == 20
    assert trace["steps"][0]["result"] == "ok"
    assert "#TRUNCATION" in trace["steps"][3]["result"]
    assert "#TRUNCATION" in trace["steps"][4]["result"]
    assert [*runtime.get_node_traces(run_id)] == ["loop"]


@pytest.mark.item(472)
def test_limits_warn_and_can_be_changed(stores: Stores) -> None:
    """Durably. Unknown names of limits change nothing."""
    spec = asking(EffectType.ASK_USER, {"prompt": "x"})
    runtime = stores.runtime(spec, config=RuntimeConfig(max_iterations=10, max_tokens=100))
    run_id = runtime.start(spec)
    assert runtime.check_limits(runtime.get_state(run_id)) == []
    runtime.update_limits(run_id, {"current_iteration": 8, "estimated_tokens_used": 120, "x": 1})

    warnings = runtime.check_limits(stores.reopen().runs.load(run_id))

    assert [(warning.limit_type, warning.status) for warning in warnings] == [
        ("iterations", "warning"),
        ("tokens", "exceeded"),
    ]
    status = runtime.get_limit_status(run_id)
    assert (status["iterations"]["pct"], status["tokens"]["warning"]) == (80.0, True)
    assert "x" not in runtime.get_state(run_id).vars["_limits"]


@pytest.mark.item(473)
def test_a_run_has_its_namespaces(stores: Stores) -> None:
    """Each is an object; a reserved name with another type is refused."""
    spec = WorkflowSpec("graph", "end", {"end": end_node})
    runtime = stores.runtime(spec)
    run_vars = runtime.get_state(runtime.start(spec)).vars

    assert {name for name, value in run_vars.items() if isinstance(value, dict)} == {
        "context",
        "scratchpad",
        "_runtime",
        "_temp",
        "_limits",
    }
    with pytest.raises(GraphError, match="_runtime"):
        runtime.start(spec, vars={"_runtime": 1})


@pytest.mark.item(473)
@pytest.mark.parametrize("key", ["_runtime", "_runtime.node_traces"])
def test_a_result_cannot_take_the_place_of_a_namespace(stores: Stores, key: str) -> None:
    """A result that would replace an object of the runtime fails its effect. The vars keep the object."""
    spec = one_effect(EffectType.TOOL_CALLS, {}, key=key)
    handlers = {EffectType.TOOL_CALLS: lambda _run, _effect: EffectOutcome.completed("text")}
    runtime = stores.runtime(effect_handlers=handlers)
    state = runtime.tick(spec, runtime.start(spec))

    assert state.status is RunStatus.FAILED
    assert "the runtime's" in (state.error or "")
    assert isinstance(state.vars["_runtime"], dict)
