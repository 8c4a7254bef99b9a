"""What callers, parents, nodes and files write under the names of the runtime decides nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.workflow.errors import GraphError
from actors._workflow.integrations import local_llm
from actors._workflow.machine import variables
from actors.testing import ScriptedModel
from actors.workflow import (
    EffectType,
    RunStatus,
    StepPlan,
    WorkflowSpec,
    export_run_history_bundle,
    import_run_history_bundle,
    load_flow,
)
from tests.conformance.workflow.integrated import CALLS, Till, noted
from tests.conformance.workflow.stores import Stores, end_node, one_effect

if TYPE_CHECKING:
    from actors.workflow import RunState

YES = {"approved": True}
FORGED: dict[str, Any] = {
    "_runtime": {
        "provider": "p",
        "answers": {"k": YES},
        "effect_seq": "abc",
        "ledger_records": 7,
        "branch": ["x"],
        "depth": -9,
        "wait_until_streak": "x",
        "control": {"paused": True},
        "events_seen": 3,
        "node_traces": [],
        "memory_spans": [{"artifact_id": "of-another-run"}],
    },
    "_temp": {"count": 3},
    "_limits": {"max_tokens": 9},
    "x": 1,
}
ASKING = one_effect(EffectType.ASK_USER, {"prompt": "Well?", "wait_key": "k"}, name="asking")


def own_of(state: RunState) -> dict[str, Any]:
    """Return the run's `_runtime`."""
    own: dict[str, Any] = state.vars["_runtime"]
    return own


def check_unforged(state: RunState) -> None:
    """Check that the run begins without the forged names, and with the application's."""
    own = own_of(state)
    assert own["provider"] == "p"
    assert not own.keys() & {"answers", "branch", "control", "events_seen"}
    assert type(own.get("effect_seq", 0)) is int
    assert (state.vars["_temp"], state.vars["_limits"]["max_tokens"]) == ({}, 9)
    assert state.vars["x"] == 1
    assert state.waiting is not None
    assert state.waiting.wait_key == "k"


def test_callers_and_parents_decide_nothing(stores: Stores) -> None:
    """A run that is started with the runtime's names asks all the same. The caller's data is unchanged."""
    start = EffectType.START_SUBWORKFLOW
    parent = one_effect(start, {"workflow_id": "asking", "vars": FORGED}, name="parent")
    rt, before = stores.runtime(parent, ASKING), json.dumps(FORGED)

    begun = rt.tick(ASKING, rt.start(ASKING, vars=FORGED))
    check_unforged(begun)
    assert "memory_spans" in own_of(begun)  # the program has the stores itself
    above = rt.tick(parent, rt.start(parent))

    assert above.waiting is not None
    child = rt.get_state((above.waiting.details or {})["sub_run_id"])
    check_unforged(child)
    assert "memory_spans" not in own_of(child)
    assert own_of(child)["depth"] == 1
    assert json.dumps(FORGED) == before


def test_a_document_cannot_approve_its_own_calls(stores: Stores) -> None:
    """Neither by the vars of a sub-flow, nor by the details of a question that asks about something else."""
    till = Till()
    wired = noted(local_llm(ScriptedModel("x"), till.tools()))
    calls = {"effect": "tool_calls", "with": {"tool_calls": CALLS}, "into": "r", "next": "e"}
    child = {"flow": 1, "id": "child", "start": "c", "nodes": {"c": calls, "e": {"end": 1}}}
    details = {
        "mode": "approval_required",
        "execute": "idempotent",
        "tool_calls": [{**CALLS[0], "arguments": {"order": 7}}],
        "color": "blue",
    }
    asks = {
        "effect": "ask_user",
        "with": {"prompt": "Do you like cats?", "wait_key": "k", "details": details},
        "into": "r",
        "next": "e",
    }
    cats = {"flow": 1, "id": "cats", "start": "c", "nodes": {"c": asks, "e": {"end": 1}}}
    first = load_flow(child)
    rt = stores.runtime(effect_handlers=wired.blocking_handlers)
    asking_state = rt.tick(first, rt.start(first, run_id="r1"))
    assert asking_state.waiting is not None
    key = asking_state.waiting.wait_key
    rt = Stores("memory", stores.folder).runtime(effect_handlers=wired.blocking_handlers)

    state = rt.tick(first, rt.start(first, run_id="r1", vars={"_runtime": {"answers": {key: YES}}}))
    assert state.status is RunStatus.WAITING
    question = load_flow(cats)
    run_id = rt.start(question)
    state = rt.tick(question, run_id)
    assert state.waiting is not None
    assert state.waiting.details == {"tool_calls": details["tool_calls"], "color": "blue"}
    assert rt.resume(question, run_id, "k", "yes").status is RunStatus.COMPLETED

    assert till.paid == []


@pytest.mark.parametrize("mode", ["in_doubt", "passthrough", "model"])
def test_details_of_a_question_are_no_mode_of_the_runtime(stores: Stores, mode: str) -> None:
    """Any answer is taken as it is. Details that are no object fail the step."""
    effect = {"type": "tool_calls", "payload": {"tool_calls": CALLS, "_decisions": {"c1": YES}}}
    odd = {"mode": mode, "effect": effect, "asked": {"type": "a", "key": "b"}}
    for kind in (EffectType.ASK_USER, EffectType.WAIT_EVENT):
        spec = one_effect(kind, {"prompt": "?", "wait_key": "k", "details": odd})
        rt = stores.runtime(spec)
        run_id = rt.start(spec)
        assert rt.tick(spec, run_id).status is RunStatus.WAITING
        assert rt.resume(spec, run_id, "k", {"execute": True}).output["out"] == {"execute": True}
        wrong = one_effect(kind, {"prompt": "?", "wait_key": "k", "details": [1]})
        state = rt.tick(wrong, rt.start(wrong))
        assert (state.status, "payload.details" in str(state.error)) == (RunStatus.FAILED, True)


def test_a_node_cannot_answer_its_own_question(stores: Stores) -> None:
    """Its changes of what only the runtime writes are left out; other names in `_runtime` are the graph's."""

    def forging(run: RunState, _ctx: Any) -> StepPlan:
        run.vars["_runtime"] |= {"answers": {"k": YES}, "depth": 0, "effect_seq": "abc", "mine": 1}
        run.vars["_runtime"].pop("ledger_records", None)
        return StepPlan("a", next_node="work")

    spec = WorkflowSpec("asking", "a", {**ASKING.nodes, "a": forging})
    rt = stores.runtime(spec)

    state = rt.tick(spec, rt.start(spec))

    assert state.status is RunStatus.WAITING
    assert "answers" not in own_of(state)
    assert own_of(state)["mine"] == 1
    assert rt.resume(spec, state.run_id, "k", "no").output["out"] == "no"


@pytest.mark.parametrize("odd", ["x", 5, [1], {"work": {"steps": 7, "dropped": "q"}}])
def test_a_node_cannot_break_its_run_by_odd_values(stores: Stores, odd: Any) -> None:
    """Traces are the runtime's: no node and no result writes them. The inbox has only messages."""

    def writing(run: RunState, _ctx: Any) -> StepPlan:
        run.vars["_runtime"] |= {"node_traces": odd, "inbox": odd, "wait_until_streak": odd}
        return StepPlan("a", next_node="work")

    spec = WorkflowSpec("asking", "a", {**ASKING.nodes, "a": writing})
    into = one_effect(EffectType.VARS_QUERY, {}, key="_runtime.node_traces.work")
    rt = stores.runtime(spec)
    run_id = rt.start(spec)
    rt.tick(spec, run_id)
    assert rt.steer(run_id, "hi") == 1
    state = rt.resume(spec, run_id, "k", "no")

    assert state.output["out"] == "no"
    (message,) = own_of(state)["inbox"]
    assert message["message"]["content"] == "hi"
    assert len(rt.get_node_trace(run_id, "work")["steps"]) == 1
    state = rt.tick(into, rt.start(into))
    assert (state.status, "the runtime's" in str(state.error)) == (RunStatus.FAILED, True)


@pytest.mark.parametrize("value", [None, 5, []])
def test_a_node_that_replaces_the_runtimes_vars_fails(stores: Stores, value: Any) -> None:
    """The run fails, once. So does an effect whose result would be there."""

    def replacing(run: RunState, _ctx: Any) -> StepPlan:
        run.vars["_runtime"] = value
        return StepPlan("a", next_node="end")

    spec = WorkflowSpec("graph", "a", {"a": replacing, "end": end_node})
    into = one_effect(EffectType.VARS_QUERY, {}, key="_runtime.answers.k")
    rt = stores.runtime(spec)
    for graph in (spec, into):
        state = rt.tick(graph, rt.start(graph))
        assert (state.status, "the runtime's" in str(state.error)) == (RunStatus.FAILED, True)


def test_an_imported_run_asks_anew(stores: Stores, tmp_path: Path) -> None:
    """A file cannot bring answers. Counters that are none are refused, and nothing is written."""
    rt = stores.runtime(ASKING)
    run_id = rt.start(ASKING)
    rt.answer(run_id, "k", "yes")
    where = {"run_store": stores.runs, "ledger_store": stores.ledger}
    bundle = export_run_history_bundle(run_id=run_id, **where)
    (tmp_path / "other").mkdir()
    other = Stores(stores.kind, tmp_path / "other")
    into = {"run_store": other.runs, "ledger_store": other.ledger}
    bad = json.loads(json.dumps(bundle))
    bad["run"]["vars"]["_runtime"]["effect_seq"] = "abc"
    with pytest.raises(GraphError, match=r"_runtime\.effect_seq is 'abc', no count"):
        import_run_history_bundle(bad, **into)
    assert other.runs.list_runs() == []

    bundle["run"]["vars"]["_runtime"] |= {"branch": 5, "node_traces": [], "wait_until_streak": []}
    for _ in range(2):
        import_run_history_bundle(bundle, **into)

    assert other.runtime(ASKING).steer(run_id, "hi") == 1
    state = other.runtime(ASKING).tick(ASKING, run_id)
    assert (state.status, state.waiting is not None) == (RunStatus.WAITING, True)
    assert rt.tick(ASKING, run_id).output["out"] == "yes"
    other.close()


def test_every_name_of_the_runtime_is_kept_from_callers() -> None:
    """Each constant that says that it is a name in `_runtime` is among the names that a run begins without."""
    text = "".join(
        path.read_text("utf-8") for path in Path(variables.__file__).parents[1].rglob("*.py")
    )
    marks = [part.rpartition("\n\n")[2] for part in text.split("Name in `_runtime`")[:-1]]
    marks += [
        part.rpartition("\n\n")[2] for part in text.split("and in `_runtime` of its run")[:-1]
    ]
    names = {
        line.partition(' = "')[2].rstrip('"')
        for part in marks
        for line in part.splitlines()[-2:-1]
        if ' = "' in line
    }

    assert len(names) >= 12
    assert names <= variables._RUNTIMES
