"""The turns, times and actions of a bundle, on every store."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.workflow.stores import metrics_of
from actors.workflow import (
    EffectOutcome,
    EffectType,
    OffloadingRunStore,
    RunState,
    RunStatus,
    StepPlan,
    WorkflowSpec,
    artifact_ref,
    export_run_history_bundle,
)
from tests.conformance.workflow.stores import RunningClock, effect_then, end_node, one_effect

if TYPE_CHECKING:
    from tests.conformance.workflow.stores import Stores

ENVELOPE = '<runtime_metadata>{"zone":"Paris"}</runtime_metadata>\n'
USED = {"prompt_tokens": 7, "completion_tokens": 3}
ACTION = {"action_id": "generate_text", "kind": "generate"}


def turn_of(stores: Stores, **parts: Any) -> dict[str, Any]:
    """Return the only turn of a session whose only run has these stored parts."""
    run = RunState.new(workflow_id="graph", entry_node="a", session_id="s", run_id="r1")
    for name, value in parts.items():
        setattr(run, name, value)
    stores.runs.save(run)
    (turn,) = turns(stores, "r1")
    return turn


def turns(stores: Stores, run_id: str, **more: Any) -> list[dict[str, Any]]:
    """Return the turns in a bundle of a run."""
    bundle = export_run_history_bundle(
        run_id=run_id,
        run_store=stores.runs,
        ledger_store=stores.ledger,
        artifact_store=stores.artifacts,
        include_session=True,
        **more,
    )
    assert json.loads(json.dumps(bundle, allow_nan=False)) == bundle
    session_turns: list[dict[str, Any]] = bundle["session"]["turns"]
    return session_turns


@pytest.mark.item(463)
def test_a_bundle_has_the_turns_of_a_session(stores: Stores) -> None:
    """Questions, answers, tokens and artifacts; also those of child runs, which are no turns themselves."""

    def model(_run: RunState, _effect: Any) -> EffectOutcome:
        facts = {"usage": USED, "metadata": {"_runtime_resolved_action": ACTION}}
        return EffectOutcome.completed({"content": "x", **facts})

    def keep(run: RunState, ctx: Any) -> StepPlan:
        ctx.artifacts.store(b"x", run_id=run.run_id, artifact_id=f"of-{run.run_id}")
        return StepPlan("keep", next_node="think")

    nodes = {"keep": keep, "think": effect_then(EffectType.LLM_CALL, {"prompt": "p"})}
    child = WorkflowSpec("child", "keep", {**nodes, "end": end_node})
    say = effect_then(EffectType.ANSWER_USER, {"message": "It rains."}, after="call")
    calls = {"tool_calls": [{"name": "a"}, {"name": "b"}]}
    call = effect_then(EffectType.TOOL_CALLS, calls, after="below")
    below = effect_then(EffectType.START_SUBWORKFLOW, {"workflow_id": "child"})
    steps = {"say": say, "call": call, "below": below, "end": end_node}
    chat = WorkflowSpec("chat", "say", steps)
    handlers = {
        EffectType.LLM_CALL: model,
        EffectType.TOOL_CALLS: lambda _run, _effect: EffectOutcome.completed(None),
    }
    runtime = stores.runtime(chat, child, effect_handlers=handlers)
    for n, name in enumerate(("first", "second", "third")):
        message = {"role": "user", "content": f"{ENVELOPE}question {n}"}
        talk = {
            "messages": [{"role": "user", "content": "old"}, message],
            "attachments": [{"n": n}],
        }
        runtime.start(chat, run_id=name, session_id="s", vars={"context": talk})
        runtime.tick(chat, name)
        stores.clock.advance(1)
    runtime.start(chat, run_id="elsewhere", session_id="other")

    session_turns = turns(stores, "second")

    assert [turn["run_id"] for turn in session_turns] == ["first", "second"]
    second = session_turns[-1]
    assert (second["kind"], second["status"]) == ("chat", "completed")
    assert second["prompt"] == "question 1"
    assert second["prompt_verbatim"] == f"{ENVELOPE}question 1"
    assert second["prompt_metadata"] == {"zone": "Paris"}
    assert (second["attachments"], second["answer"]) == ([{"n": 1}], "It rains.")
    assert (second["stats"]["llm_calls"], second["stats"]["tool_calls"]) == (1, 2)
    assert second["stats"]["usage"] == {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10}
    (artifact,) = second["artifacts"]
    (below_run,) = stores.runs.list_children(parent_run_id="second")
    assert artifact["artifact_id"] == f"of-{below_run.run_id}"
    assert [turn["run_id"] for turn in turns(stores, "third", session_turn_limit=2)] == [
        "second",
        "third",
    ]


@pytest.mark.item(463)
def test_a_bundle_has_times_and_actions(stores: Stores) -> None:
    """Of all its runs, in one order; each action has its run."""
    child = one_effect(EffectType.LLM_CALL, {"prompt": "p"}, name="child")
    spec = one_effect(EffectType.START_SUBWORKFLOW, {"workflow_id": "child"})
    answer = {"metadata": {"_runtime_resolved_action": ACTION}}
    handlers = {EffectType.LLM_CALL: lambda _run, _effect: EffectOutcome.completed(answer)}
    stores.clock = RunningClock()
    runtime = stores.runtime(spec, child, effect_handlers=handlers)
    run_id = runtime.start(spec)
    runtime.tick(spec, run_id)
    where: dict[str, Any] = {"run_store": stores.runs, "ledger_store": stores.ledger}

    bundle = export_run_history_bundle(run_id=run_id, **where)

    (below,) = bundle["subruns"]
    assert bundle["resolved_actions"] == [{"run_id": below["run_id"], **ACTION}]
    times = [row["started_at"] for row in bundle["timeline"]]
    assert times == sorted(times)
    assert {row["run_id"] for row in bundle["timeline"]} == {run_id, below["run_id"]}
    owners = [row["run_id"] for row in bundle["timeline"]]
    assert owners[0] == owners[-1] == run_id
    calls = [row for row in bundle["timeline"] if row["effect_type"] == "llm_call"]
    assert [(call["node_id"], call["status"]) for call in calls] == [
        ("work", "started"),
        ("work", "completed"),
    ]
    assert calls[0]["duration_ms"] == 0.0
    assert calls[1]["started_at"] == calls[0]["started_at"] < calls[1]["ended_at"]
    assert export_run_history_bundle(run_id=run_id, detail="replay", **where)["timeline"] == []
    for ledger in bundle["ledgers"].values():
        assert ledger["cursor_end"] == ledger["items"][-1]["cursor"] == ledger["total"]


@pytest.mark.item(463)
@pytest.mark.parametrize(
    ("parts", "prompt", "answer"),
    [
        ({"vars": {"prompt": " hi ", "task": "no"}, "output": "there"}, "hi", "there"),
        ({"vars": {"context": {"message": "hi"}}, "output": {"result": {"text": "a"}}}, "hi", "a"),
        ({"vars": {"task": "hi"}, "output": {"output": {"answer": "a"}, "answer": 1}}, "hi", "a"),
        ({"vars": {"context": {"messages": "x", "attachments": 1}}, "output": [1]}, None, None),
        ({"vars": {"context": {"messages": [1, {"role": "user", "content": 1}]}}}, None, None),
        ({"vars": {"prompt": "<runtime_metadata>{no</runtime_metadata>x"}}, "x", None),
        ({"vars": {"prompt": '<runtime_metadata>{"a":NaN}</runtime_metadata>x'}}, "x", None),
        ({"vars": {"prompt": f"<runtime_metadata>{'[' * 99_999}</runtime_metadata>x"}}, "x", None),
    ],
)
def test_a_turn_with_odd_values_is_in_the_bundle(
    stores: Stores, parts: dict[str, Any], prompt: str | None, answer: str | None
) -> None:
    """A missing value is None; no stored value breaks a bundle."""
    turn = turn_of(stores, status=RunStatus.COMPLETED, **parts)

    assert (turn["prompt"], turn["answer"]) == (prompt, answer)
    assert turn["prompt_metadata"] is None
    assert turn["stats"]["duration_ms"] == 0


@pytest.mark.item(463)
def test_large_values_of_a_turn_are_read(stores: Stores) -> None:
    """Values of the run itself. A reference to another run's value stays a reference."""
    runs = OffloadingRunStore(stores.runs, artifact_store=stores.artifacts, max_inline_bytes=200)
    run = RunState.new(workflow_id="g", entry_node="a", session_id="s", run_id="r1")
    talk = [{"role": "user", "content": "q" * 300, "runtime_metadata": {"user": "ada"}}]
    run.vars, run.output = {"context": {"messages": talk}}, {"response": "a" * 300}
    runs.save(run)
    (turn,) = turns(stores, "r1")
    assert (turn["prompt"], turn["answer"]) == ("q" * 300, "a" * 300)
    assert (turn["kind"], turn["prompt_metadata"]) == ("chat", {"user": "ada"})

    foreign = artifact_ref(stores.artifacts.store_text("secret", run_id="r2").artifact_id)
    run.vars, run.output = {"prompt": foreign}, {"answer": foreign}
    stores.runs.save(run)
    (turn,) = turns(stores, "r1")
    assert (turn["prompt"], turn["answer"]) == (None, None)


@pytest.mark.item(463)
def test_counts_of_odd_results_are_zero() -> None:
    """Handlers return any JSON data."""
    odd: list[dict[str, Any]] = [
        {"status": "completed", "effect": {"type": "llm_call"}, "result": {"usage": usage}}
        for usage in ("x", {"total_tokens": "many"}, {"total_tokens": True}, [1])
    ]
    calls = {"type": "tool_calls", "payload": {"tool_calls": 3}}

    counts = metrics_of([*odd, {"status": "completed", "effect": calls, "result": None}])

    assert counts == {"steps": 5, "llm_calls": 4, "tool_calls": 0, "tokens_total": 0}
