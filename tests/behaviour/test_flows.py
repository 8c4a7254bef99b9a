"""Flows on agents: steps, effects, attempts, doubts, failures, limits and records."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import pytest

from actors import idempotency_key
from actors._kernel.runtime.ids import RunId
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.scheduler import RunStatus as RowStatus
from actors._kernel.workflow.errors import GraphError, NoSuchRunError, StaleResumeError
from actors._workflow.hosted import graph_run
from actors._workflow.machine.variables import check_limits
from actors.errors import NotSerializableError, RegistrationError
from actors.workflow import (
    Effect,
    EffectMode,
    EffectOutcome,
    EffectType,
    FlowRuns,
    Flows,
    InMemoryArtifactStore,
    NoRetryPolicy,
    RetryPolicy,
    RunStatus,
    RuntimeConfig,
    StepPlan,
    WorkflowSpec,
    artifact_ref,
    tool_calls,
    verify_ledger_chain,
)
from tests.behaviour.bed import LIMIT_S
from tests.behaviour.flow_stage import asking, completing, ending, single, staged

if TYPE_CHECKING:
    from actors.workflow import RunState
    from tests.behaviour.bed import Bed

T = EffectType
FAST = RetryPolicy(backoff_base=0.01, backoff_max=0.02)


def setting(after: str = "end", **values: Any) -> Any:
    """Return a node that changes vars."""

    def node(run: RunState, _ctx: Any) -> StepPlan:
        run.vars.update(values)
        return StepPlan(run.current_node, next_node=after)

    return node


@pytest.mark.item(391, 398, 399, 401, 402, 403, 405, 408, 410, 412, 415, 429, 440, 459, 474, 477)
async def test_a_flow_goes_through_its_nodes(bed: Bed) -> None:
    """A move, an effect with a dotted result_key, and the end; each has its record."""
    nodes = {"a": setting("b", x=1), "b": asking(T.LLM_CALL, {"q": 1}, key="got.it"), "end": ending}
    spec = WorkflowSpec("flow", "a", nodes)
    stage = await staged(bed, spec, effect_handlers={T.LLM_CALL: completing({"n": 5})})
    run_id = await stage.runs.start("flow", vars={"y": 2}, id="r", actor_id="ann", session_id="s")

    state = await stage.ended(run_id)

    assert state.output == {"y": 2, "x": 1, "got": {"it": {"n": 5}}}
    assert (state.actor_id, state.session_id, state.workflow_id) == ("ann", "s", "flow")
    assert await bed.result(run_id) == state.output
    statuses = [("a", "completed", 1), ("b", "started", 1), ("b", "completed", 1)]
    assert await stage.node_statuses(run_id) == statuses
    records = await stage.runs.ledger(run_id)
    begun, done = records[2:4]
    assert begun["idempotency_key"] == done["idempotency_key"]
    assert begun["step_id"] == done["step_id"]
    assert done["result"] == {"n": 5}
    assert {(record["run_id"], record["actor_id"], record["session_id"]) for record in records} == {
        (run_id, "ann", "s")
    }
    assert [record["step_id"] for record in records] == [
        record["step_id"] for record in await stage.runs.ledger(run_id)
    ]


@pytest.mark.item(391)
async def test_an_id_names_one_run_for_all_clients_of_a_tenant(bed: Bed) -> None:
    """From any process and under any client's name. Another tenant's run of that id is a different run."""
    stage = await staged(bed, WorkflowSpec("flow", "end", {"end": ending}))
    async with bed.client("a") as first, bed.client("b") as second:
        flow_runs = [FlowRuns(client, stage.flows.app) for client in (first, second, bed.runtime)]
        run_ids = {
            await runs.start("flow", id="r", vars={"n": n}) for n, runs in enumerate(flow_runs)
        }
        other = await FlowRuns(first, stage.flows.app, tenant="t2").start("flow", id="r")

    (run_id,) = run_ids
    assert (await stage.ended(run_id)).output == {"n": 0}
    with pytest.raises(NoSuchRunError):
        await stage.runs.state(other)


@pytest.mark.item(415, 440, 472)
async def test_a_handler_cannot_change_what_is_recorded(bed: Bed) -> None:
    """A handler changes its effect while the record of its start rides. The chain and the next attempt stay."""
    payloads: list[Any] = []

    def handle(run: RunState, effect: Effect) -> EffectOutcome:
        payloads.append({**effect.payload, "n": [*effect.payload["n"]]})
        effect.payload["n"].append("changed")
        effect.payload["new"] = effect.result_key = "changed"
        return EffectOutcome.failed("again") if len(payloads) == 1 else EffectOutcome.completed(1)

    spec = single(T.TOOL_CALLS, {"n": [1]})
    stage = await staged(bed, spec, effect_handlers={T.TOOL_CALLS: handle}, effect_policy=FAST)
    run_id = await stage.runs.start("flow")
    state = await stage.ended(run_id)

    assert (state.output, payloads) == ({"out": 1}, [{"n": [1]}] * 2)
    effects = [record["effect"] for record in (await stage.runs.ledger(run_id))[1:5]]
    assert effects == [{"type": "tool_calls", "payload": {"n": [1]}, "result_key": "out"}] * 4


@pytest.mark.item(437, 438, 439, 440)
@pytest.mark.parametrize("fails", [1, 2])
async def test_a_failed_attempt_is_followed_by_another(bed: Bed, fails: int) -> None:
    """By a timer, also over a crash. Tools are tried twice under one key, and each attempt has a record."""
    calls: list[str] = []

    def handle(run: RunState, effect: Effect) -> EffectOutcome:
        calls.append(run.run_id)
        return EffectOutcome.failed("no") if len(calls) <= fails else EffectOutcome.completed(1)

    stage = await staged(
        bed, single(T.TOOL_CALLS, {}), effect_handlers={T.TOOL_CALLS: handle}, effect_policy=FAST
    )
    run_id = await stage.runs.start("flow")
    state = await stage.ended(run_id)

    ends = ["failed", "completed" if fails == 1 else "failed"]
    statuses = [("work", "started", 1), ("work", ends[0], 1), ("work", "started", 2)]
    assert await stage.node_statuses(run_id) == [*statuses, ("work", ends[1], 2)][
        : 4 if fails == 1 else 3
    ] or (fails == 2)
    assert len(calls) == 2
    records = [record for record in await stage.runs.ledger(run_id) if record["idempotency_key"]][
        :4
    ]
    assert [record["attempt"] for record in records] == [1, 1, 2, 2]
    assert len({record["idempotency_key"] for record in records}) == 1
    assert records[1]["error"] == "no"
    assert len(await bed.log(run_id, K.TIMER_FIRED)) == 1
    if fails == 1:
        assert state.output == {"out": 1}
    else:
        assert state.status is RunStatus.FAILED
        assert "failed after 2 attempts: no" in str(state.error)


@pytest.mark.item(438)
async def test_without_retries_the_first_failure_is_final(bed: Bed) -> None:
    """Also after an exception of the handler; an at-most-once effect is never retried."""
    calls: list[str] = []

    def handle(run: RunState, effect: Effect) -> EffectOutcome:
        calls.append(run.workflow_id)
        raise OSError("down")

    once = single(T.LLM_CALL, {}, name="once", mode=EffectMode.AT_MOST_ONCE)
    first = await staged(
        bed,
        single(T.LLM_CALL, {}),
        effect_handlers={T.LLM_CALL: handle},
        effect_policy=NoRetryPolicy(),
    )
    second = await staged(bed, once, effect_handlers={T.LLM_CALL: handle}, effect_policy=FAST)

    states = [await first.play("flow"), await second.play("once")]

    assert calls == ["flow", "once"]
    assert all("at its first attempt: OSError: down" in str(state.error) for state in states)


@pytest.mark.item(439, 441)
async def test_a_node_that_requests_an_effect_again_executes_it_again(bed: Bed) -> None:
    """In a loop, under another key. A recorded execution is not repeated after a crash."""
    keys: list[str] = []

    async def handle(run: RunState, effect: Effect) -> EffectOutcome:
        keys.append(str(run.vars["n"]))
        return EffectOutcome.completed(len(keys))

    def loop(run: RunState, _ctx: Any) -> StepPlan:
        run.vars["n"] = run.vars.get("n", 0) + 1
        if run.vars["n"] > 3:
            return StepPlan("loop", next_node="ask")
        return StepPlan("loop", Effect(T.TOOL_CALLS, {}, "got"), next_node="loop")

    ask = asking(T.ASK_USER, {"prompt": "?", "wait_key": "k"})
    stage = await staged(
        bed,
        WorkflowSpec("flow", "loop", {"loop": loop, "ask": ask, "end": ending}),
        effect_handlers={T.TOOL_CALLS: handle},
    )
    run_id = await stage.runs.start("flow")
    await stage.waits(run_id)
    await stage.restart()
    await stage.runs.resume(run_id, "k", "go")

    assert (await stage.ended(run_id)).output == {"n": 4, "got": 3, "out": "go"}
    assert keys == ["1", "2", "3"]
    records = await stage.runs.ledger(run_id)
    effect_records = [
        record for record in records if (record["effect"] or {}).get("type") == "tool_calls"
    ]
    assert len({record["idempotency_key"] for record in effect_records}) == 3


async def test_steps_are_committed_with_the_next_idempotent_effect(bed: Bed) -> None:
    """They are durable before an at-most-once effect, and while a long effect executes."""
    positions: list[tuple[str, str, str]] = []

    async def look(run: RunState) -> None:
        last = (await stage.runs.ledger(RunId(run.run_id)))[-1]
        positions.append((run.current_node, last["node_id"], last["status"]))

    async def handle(run: RunState, effect: Effect) -> EffectOutcome:
        await look(run)
        async with asyncio.timeout(LIMIT_S):
            while effect.payload["slow"] and positions[-1][1] != run.current_node:
                await asyncio.sleep(0.01)
                await look(run)
        return EffectOutcome.completed()

    def work(after: str, mode: EffectMode = EffectMode.IDEMPOTENT) -> Any:
        return asking(T.TOOL_CALLS, {"slow": after == "once"}, after=after, mode=mode)

    nodes = {
        "a": work("b"),
        "b": setting("c"),
        "c": work("slow"),
        "slow": work("once"),
        "end": ending,
    }
    spec = WorkflowSpec("flow", "a", nodes | {"once": work("end", EffectMode.AT_MOST_ONCE)})
    stage = await staged(bed, spec, effect_handlers={T.TOOL_CALLS: handle})

    await stage.play("flow")

    steps = list(dict.fromkeys(positions))
    durable = [("slow", "slow", "started"), ("once", "once", "started")]
    if bed.backend == "memory":
        assert steps[:3] == [("a", "a", "started"), ("c", "a", "started"), ("slow", "c", "started")]
    # A busy machine may look only after the commit that a long effect causes.
    assert steps[-2:] == durable


@pytest.mark.item(441)
@pytest.mark.parametrize(
    ("decision", "ends"),
    [
        ({"result": {"n": 7}}, ("completed", {"out": {"n": 7}}, 1)),
        ({"execute": True}, ("completed", {"out": 9}, 2)),
        ({"error": "card expired"}, ("failed", None, 1)),
    ],
    ids=["result", "execute", "error"],
)
async def test_an_effect_in_doubt_is_decided_by_an_operator(
    bed: Bed, decision: dict[str, Any], ends: tuple[str, Any, int]
) -> None:
    """Its run waits, whichever host takes over. The first decision counts, and is in the ledger."""
    begun, keys = asyncio.Event(), list[str]()

    async def handle(run: RunState, effect: Effect) -> EffectOutcome:
        keys.append(idempotency_key())
        if len(keys) == 1:
            begun.set()
            await asyncio.Event().wait()
        return EffectOutcome.completed(9)

    spec = single(T.TOOL_CALLS, {"order": 7}, mode=EffectMode.AT_MOST_ONCE)
    stage = await staged(bed, spec, effect_handlers={T.TOOL_CALLS: handle})
    run_id = await stage.runs.start("flow")
    await begun.wait()
    await stage.restart()
    [wait] = await stage.waits(run_id)
    for word in ("tool_calls", "'work'", "at_most_once", keys[0]):
        assert word in str(wait.prompt)
    assert (wait.reason, (wait.details or {})["effect"]["payload"]) == ("job", {"order": 7})
    await stage.restart()
    assert (await stage.waits(run_id), len(keys)) == ([wait], 1)
    key = str(wait.wait_key)
    for wrong in (None, {}, {"result": 1, "error": "x"}, {"execute": False}, {"error": ""}):
        with pytest.raises(GraphError, match='"execute": true'):
            await stage.runs.resume(run_id, key, wrong)

    await stage.runs.resume(run_id, key, decision)
    for late in ({"execute": True}, {"result": "another"}):
        with pytest.raises(StaleResumeError):
            await stage.runs.resume(run_id, key, late)

    state = await stage.ended(run_id)
    assert (state.status.value, state.output, len(keys)) == ends
    assert len({*keys}) == 1
    records = (await stage.runs.ledger(run_id))[1:]
    assert [record["status"] for record in records[:2]] == ["started", "waiting"]
    [resume_record] = [
        record for record in records if (record["effect"] or {}).get("type") == "resume"
    ]
    if "error" in decision:
        assert (resume_record["status"], resume_record["result"]) == ("failed", decision)
        assert "card expired" in str(state.error)
    else:
        assert resume_record["result"] == decision.get("result", decision)


def _raises(_run: RunState, _ctx: Any) -> StepPlan:
    raise ValueError("on purpose")


async def _coroutine(_run: RunState, _ctx: Any) -> StepPlan:
    return StepPlan("work", next_node="end")


def _not_json(run: RunState, _ctx: Any) -> StepPlan:
    run.vars["deep"] = {"x": [object()]}
    return StepPlan("work", next_node="end")


def _no_vars(run: RunState, _ctx: Any) -> StepPlan:
    run.vars = []  # type: ignore[assignment]
    return StepPlan("work", next_node="end")


_NODES: Final[dict[str, tuple[Any, str]]] = {
    "raises": (_raises, "raised ValueError: on purpose"),
    "coroutine": (_coroutine, "a node is no coroutine"),
    "not_json": (_not_json, "vars.deep.x[0]"),
    "no_vars": (_no_vars, "left a list"),
    "no_plan": (lambda _run, _ctx: None, "returned a NoneType"),
    "no_words": (lambda _run, _ctx: StepPlan("work"), "says nothing"),
    "gone": (lambda _run, _ctx: StepPlan("work", next_node="gone"), "has no node 'gone'"),
    "output": (lambda _run, _ctx: StepPlan("work", complete_output={1: 2}), "keys must be str"),
    "key": (asking(T.ASK_USER, {"prompt": "?"}, key="x..y"), "a part of it is empty"),
    "payload": (asking(T.TOOL_CALLS, {"x": float("nan")}), "effect.payload.x"),
}


@pytest.mark.item(396, 400, 404)
async def test_a_bad_node_fails_its_run(bed: Bed) -> None:
    """With an error that names the node, and a record.

    The run does not stay RUNNING, and is not retried.
    """
    nodes = {name: {"work": node, "end": ending} for name, (node, _) in _NODES.items()}
    stage = await staged(bed, *(WorkflowSpec(name, "work", graph) for name, graph in nodes.items()))

    for name, (_, error) in _NODES.items():
        state = await stage.play(name)

        assert state.status is RunStatus.FAILED
        assert "'work'" in str(state.error)
        assert error in str(state.error)
        run_id = RunId(state.run_id)
        record = (await stage.runs.ledger(run_id))[-2]
        assert (record["status"], record["error"]) == ("failed", state.error)
        assert not await bed.log(run_id, K.RUN_ATTEMPT_FAILED)


def _leaves(_run: RunState, _effect: Effect) -> EffectOutcome:
    raise SystemExit(3)


def _odd() -> Any:
    outcome_type: Any = EffectOutcome
    return outcome_type("odd")


_HANDLERS: Final[dict[T, tuple[Any, str]]] = {
    T.LLM_CALL: (lambda _run, _effect: 3, "returned a int. Return an EffectOutcome"),
    T.ANSWER_USER: (lambda _run, _effect: _odd(), "status 'odd' is none of"),
    T.VARS_QUERY: (lambda _run, _effect: EffectOutcome.completed(object()), "not JSON data"),
    T.WAIT_EVENT: (
        lambda _run, _effect: EffectOutcome.failed("no", retryable=False),
        "attempt: no",
    ),
    T.WAIT_UNTIL: (_leaves, "attempt: 3"),
}


@pytest.mark.item(404, 429, 476, 477)
async def test_a_bad_handler_fails_the_run(bed: Bed) -> None:
    """Its exception is a failed attempt with a record; a missing handler is named."""
    errors = {kind: error for kind, (_, error) in _HANDLERS.items()}
    errors[T.TOOL_CALLS] = "no handler is registered for effect 'tool_calls'"
    stage = await staged(
        bed,
        *(single(kind, {}, name=kind.value) for kind in errors),
        effect_handlers={kind: handler for kind, (handler, _) in _HANDLERS.items()},
    )

    for kind, error in errors.items():
        state = await stage.play(kind.value)

        assert state.status is RunStatus.FAILED
        assert error in str(state.error)
        record = (await stage.runs.ledger(RunId(state.run_id)))[-2]
        assert (record["status"], record["error"]) == ("failed", state.error)


@pytest.mark.item(419, 427, 430, 476)
async def test_effects_without_a_wait(bed: Bed) -> None:
    """A batch of tools, a message for a person, a read of the vars. A handler replaces a built-in one."""
    calls = [{"name": "add", "arguments": {"a": 1}, "call_id": "c1"}, {"name": "gone"}]
    nodes = {
        "a": asking(T.TOOL_CALLS, {"tool_calls": calls}, key="batch", after="b"),
        "b": asking(T.VARS_QUERY, {"path": "deep.x"}, key="look", after="c"),
        "c": asking(T.ANSWER_USER, {"message": "hi"}, key="said"),
        "end": ending,
    }
    tools = tool_calls({"add": lambda a: a + 1})
    stage = await staged(
        bed, WorkflowSpec("flow", "a", nodes), effect_handlers={T.TOOL_CALLS: tools}
    )
    other = await staged(
        bed,
        single(T.ANSWER_USER, {"message": "hi"}),
        effect_handlers={T.ANSWER_USER: completing("mine")},
    )

    output = (await stage.play("flow", vars={"deep": {"x": 5}})).output

    first, second = output["batch"]["results"]
    assert (first["call_id"], first["output"], first["success"]) == ("c1", 2, True)
    assert (second["call_id"], second["success"]) == ("1", False)
    assert output["said"] == {"message": "hi", "level": "message"}
    assert '"value": 5' in output["look"]["results"][0]["output"]
    assert (await other.play("flow")).output == {"out": "mine"}


@pytest.mark.item(409, 460, 472, 473)
async def test_a_run_has_limits_namespaces_and_traces(bed: Bed) -> None:
    """Limits come from the app's config unless the vars have them.

    Tokens are counted; traces are bounded.
    """

    def loop(run: RunState, _ctx: Any) -> StepPlan:
        run.vars["_limits"]["current_iteration"] += 1
        if run.vars["_limits"]["current_iteration"] > 8:
            return StepPlan("work", complete_output={**run.vars["_limits"]})
        return StepPlan("work", Effect(T.LLM_CALL, {}, "_temp.got"), next_node="work")

    usage = {"usage": {"total_tokens": 77}, "text": "x" * 9000}
    stage = await staged(
        bed,
        WorkflowSpec("flow", "work", {"work": loop}),
        effect_handlers={T.LLM_CALL: completing(usage)},
        config=RuntimeConfig(max_iterations=10, max_tokens=100),
    )

    state = await stage.play("flow", vars={"_limits": {"max_tokens": 80}})

    assert (state.output["max_iterations"], state.output["max_tokens"]) == (10, 80)
    assert state.output["estimated_tokens_used"] == 77
    assert {"context", "scratchpad", "_runtime", "_temp", "_limits"} <= {*state.vars}
    assert {limit.limit_type for limit in check_limits(state)} == {"iterations", "tokens"}
    trace = state.vars["_runtime"]["node_traces"]["work"]
    assert (len(trace["steps"]), trace["dropped"]) == (5, 3)
    assert "#TRUNCATION" in trace["steps"][0]["result"]


@pytest.mark.item(397)
async def test_nodes_have_the_artifacts_of_the_host(bed: Bed) -> None:
    """A large value is stored, and the vars have its reference."""

    def keep(run: RunState, ctx: Any) -> StepPlan:
        artifact = ctx.artifacts.store(b"x" * 100_000, run_id=run.run_id)
        run.vars["big"] = artifact_ref(artifact.artifact_id)
        return StepPlan("keep", next_node="end")

    artifacts = InMemoryArtifactStore()
    spec = WorkflowSpec("flow", "keep", {"keep": keep, "end": ending})
    stage = await staged(bed, spec, artifact_store=artifacts)

    state = await stage.play("flow")

    (id_,) = state.output["big"].values()
    artifact = artifacts.load(id_)
    assert artifact is not None
    assert len(artifact.content) == 100_000


@pytest.mark.item(396)
async def test_vars_that_are_too_large_or_no_json_start_no_run(bed: Bed) -> None:
    """The caller gets an error. A large state, result or output of a run is stored."""

    def grow(run: RunState, _ctx: Any) -> StepPlan:
        run.vars["big"] = "x" * 400_000
        return StepPlan("work", Effect(T.TOOL_CALLS, {}, "got"), next_node="end")

    stage = await staged(
        bed,
        WorkflowSpec("flow", "work", {"work": grow, "end": ending}),
        effect_handlers={T.TOOL_CALLS: completing("y" * 400_000)},
    )
    with pytest.raises(NotSerializableError, match=r"vars\.x"):
        await stage.runs.start("flow", vars={"x": object()}, id="r")

    state = await stage.play("flow", id="r")

    assert (len(state.output["big"]), len(state.output["got"])) == (400_000, 400_000)


@pytest.mark.item(391, 398, 441, 446, 447)
@pytest.mark.parametrize("is_pure", [False, True], ids=["effects", "pure"])
async def test_a_long_run_continues_as_new(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, is_pure: bool
) -> None:
    """Its state, its chain and the numbers of its waits continue; its ledger has all generations."""
    monkeypatch.setattr(graph_run, "ENTRIES_KEPT", 4)
    rounds = 300 if is_pure else 12
    done: list[int] = []

    def handle(run: RunState, effect: Effect) -> EffectOutcome:
        done.append(run.vars["n"])
        return EffectOutcome.completed(run.vars["n"])

    def loop(run: RunState, _ctx: Any) -> StepPlan:
        run.vars["n"] = run.vars.get("n", 0) + 1
        if run.vars["n"] > rounds:
            return StepPlan("loop", next_node="end")
        asks = Effect(T.ASK_USER, {"prompt": "?", "wait_key": "k"}, "got")
        if run.vars["n"] in {rounds // 2, rounds - 1}:
            return StepPlan("loop", asks, next_node="loop")
        effect = None if is_pure else Effect(T.TOOL_CALLS, {}, "did")
        return StepPlan("loop", effect, next_node="loop")

    stage = await staged(
        bed,
        WorkflowSpec("flow", "loop", {"loop": loop, "end": ending}),
        effect_handlers={T.TOOL_CALLS: handle},
    )
    run_id = await stage.runs.start("flow")
    for answer in ("one", "two"):
        await stage.waits(run_id)
        await stage.restart()
        await stage.runs.resume(run_id, "k", answer)

    state = await stage.ended(run_id)

    assert (state.output["n"], state.output["got"]) == (rounds + 1, "two")
    assert len(done) == len({*done}) == (0 if is_pure else rounds - 2)
    assert len(await bed.log(run_id, K.RUN_CONTINUED)) >= 2
    seqs = [
        record["delta"]["seq"]
        for record in await stage.runs.ledger(run_id)
        if "seq" in (record["delta"] or {})
    ]
    assert seqs == [*range(len(seqs))]


async def test_a_loaded_run_counts_its_log_as_one_in_memory_does(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each entry the size is the same in a replay, so both continue as new after the same step."""
    sizes: dict[int, list[int]] = {}
    checkpoint = graph_run.GraphRun._checkpoint

    async def noting(run: graph_run.GraphRun) -> None:
        decisions = run._decisions
        sizes.setdefault(decisions.entries, []).append(decisions.size_bytes)
        await checkpoint(run)

    monkeypatch.setattr(graph_run.GraphRun, "_checkpoint", noting)

    def loop(run: RunState, _ctx: Any) -> StepPlan:
        run.vars["n"] = run.vars.get("n", 0) + 1
        if run.vars["n"] > 4:
            return StepPlan("loop", next_node="end")
        effect = Effect(T.TOOL_CALLS, {"text": "y" * 500}, "did")
        if run.vars["n"] == 4:
            effect = Effect(T.ASK_USER, {"prompt": "?", "wait_key": "k"}, "got")
        return StepPlan("loop", effect, next_node="loop")

    stage = await staged(
        bed,
        WorkflowSpec("flow", "loop", {"loop": loop, "end": ending}),
        effect_handlers={T.TOOL_CALLS: completing("x" * 2_000)},
    )
    run_id = await stage.runs.start("flow")
    await stage.waits(run_id)
    await stage.restart()
    await stage.runs.resume(run_id, "k", "yes")
    await stage.ended(run_id)

    assert len(sizes) >= 6
    assert any(len(counted) > 1 for counted in sizes.values()), "nothing was replayed"
    assert [len({*counted}) for counted in sizes.values()] == [1] * len(sizes)


@pytest.mark.item(446, 447)
async def test_a_tampered_record_is_found(bed: Bed) -> None:
    """The check names the place of a record that was changed, removed or moved."""
    stage = await staged(
        bed, single(T.TOOL_CALLS, {}), effect_handlers={T.TOOL_CALLS: completing(1)}
    )
    state = await stage.play("flow")
    records = await stage.runs.ledger(RunId(state.run_id))
    changed = [{**record} for record in records]
    changed[2]["result"] = 2

    assert verify_ledger_chain(records)["ok"]
    for wrong in (changed, records[:2] + records[3:], [*records[:1], records[2], records[1]]):
        assert not verify_ledger_chain(wrong)["ok"]


@pytest.mark.item(404, 405, 411)
async def test_a_cancelled_flow_run_has_ended(bed: Bed) -> None:
    """Also while it waits; an answer is refused afterwards."""
    stage = await staged(bed, single(T.ASK_USER, {"prompt": "?", "wait_key": "k"}))
    run_id = await stage.runs.start("flow")
    await stage.waits(run_id)

    await stage.runs.cancel(run_id, reason="enough")

    assert (await bed.ended(run_id)).status is RowStatus.CANCELLED
    state = await stage.runs.state(run_id)
    assert (state.status, state.error, state.waiting) == (RunStatus.CANCELLED, "enough", None)
    assert await stage.runs.waits(run_id) == []


@pytest.mark.item(454)
def test_flows_of_an_app_have_unique_names() -> None:
    """Names must be unique, and valid as parts of an id."""
    spec = single(T.TOOL_CALLS, {})
    assert [*Flows("app", [spec]).specs] == ["flow"]
    with pytest.raises(RegistrationError, match="two flows"):
        Flows("app", [spec, spec])
    with pytest.raises(RegistrationError, match="colon"):
        Flows("app", [single(T.TOOL_CALLS, {}, name="a:b")])
