"""Tool calls that wait for a person or a client, and knowledge, on every store."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from actors._inmemory.knowledge import InMemoryGraphStore
from actors._kernel.agent.tools import ApprovalPolicy, Tool
from actors._kernel.workflow.errors import GraphError, StaleResumeError
from actors._runtime.verbs.model_calls import DirectToolInvoker
from actors._workflow.integrations import GraphStoreKnowledge, RemoteModel, local_llm, remote_llm
from actors.testing import ScriptedModel
from actors.workflow import EffectType, RunStatus, StepPlan, WaitReason, WorkflowSpec, open_waits
from tests.conformance.workflow.integrated import CALLS, Till, noted, played
from tests.conformance.workflow.stores import effect_then, end_node, one_effect
from tests.conformance.workflow.test_effects import Deaths, Dying

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.conformance.workflow.stores import Stores

T = EffectType


def approving(stores: Stores, till: Till, **more: Any) -> tuple[Any, WorkflowSpec, str, Any]:
    """Return runtime, graph, run and wait of calls that need an approval."""
    integration = noted(local_llm(ScriptedModel(), till.tools()))
    rt = stores.runtime(effect_handlers=integration.blocking_handlers, **more)
    spec = one_effect(T.TOOL_CALLS, {"tool_calls": CALLS})
    run_id = rt.start(spec)
    state = rt.tick(spec, run_id)
    assert till.paid == []
    return rt, spec, run_id, state.waiting


@pytest.mark.item(435)
@pytest.mark.parametrize("answer", [{"approved": True}, {"response": "Approve"}, True])
def test_an_approved_call_is_executed_once(stores: Stores, answer: Any) -> None:
    """After one decision. A second one is refused, and so is one about another call."""
    till = Till()
    rt, spec, run_id, wait = approving(stores, till)
    assert (wait.reason, wait.details["risks"]) == (WaitReason.USER, {"c1": "high"})
    for odd in ({"approved": "maybe"}, {}, None, {"decisions": {"c9": True}}):
        with pytest.raises(GraphError, match="answer to"):
            rt.resume(spec, run_id, wait.wait_key, odd)

    state = rt.resume(spec, run_id, wait.wait_key, answer)

    assert till.paid == [7]
    rows = state.output["out"]["results"]
    assert [(row["call_id"], row["success"], row["output"]) for row in rows] == [
        ("c1", True, "paid 7"),
        ("c2", True, {"paid": 1}),
    ]
    with pytest.raises(StaleResumeError):
        rt.resume(spec, run_id, wait.wait_key, answer)
    rt.tick(spec, run_id)
    assert till.paid == [7]
    steps = [
        (record["status"], (record["effect"] or {}).get("type")) for record in rt.get_ledger(run_id)
    ]
    assert steps[1:-2] == [
        ("started", "tool_calls"),
        ("waiting", "tool_calls"),
        ("completed", "resume"),
        ("started", "tool_calls"),
        ("completed", "tool_calls"),
    ]


@pytest.mark.item(435)
def test_a_denied_call_has_an_error(stores: Stores) -> None:
    """One of two may be denied; without a decision in time all are denied."""
    till = Till()
    rt, spec, run_id, wait = approving(stores, till)
    decisions = {"decisions": {"c1": False, "c2": True}, "reason": "too much"}
    state = rt.resume(spec, run_id, wait.wait_key, decisions)
    denied, looked = state.output["out"]["results"]
    assert (denied["success"], denied["status"], denied["error"]) == (
        False,
        "denied",
        "denied: too much",
    )
    assert looked["output"] == {"paid": 0}
    assert till.paid == []


@pytest.mark.item(435)
def test_a_call_without_a_decision_in_time_is_denied(stores: Stores) -> None:
    """At the instant of the policy, and not before."""
    till = Till()
    policy = ApprovalPolicy(timeout_s=60)
    integration = noted(local_llm(ScriptedModel(), till.tools(), approvals=policy))
    rt = stores.runtime(effect_handlers=integration.blocking_handlers)
    spec = one_effect(T.TOOL_CALLS, {"tool_calls": CALLS})
    run_id = rt.start(spec)
    rt.tick(spec, run_id)
    stores.clock.advance(59)
    assert rt.tick(spec, run_id).status is RunStatus.WAITING
    stores.clock.advance(1)

    rows = rt.tick(spec, run_id).output["out"]["results"]

    assert [row["error"] for row in rows] == ["denied: nobody decided in time"] * 2
    assert till.paid == []


@pytest.mark.item(431)
def test_a_tool_that_drives_its_own_integration_is_refused(stores: Stores) -> None:
    """Its thread would wait for itself; in another thread it may."""
    spec, inner = (
        one_effect(T.TOOL_CALLS, {"tool_calls": [{"name": name}]}, name=name)
        for name in ("outer", "inner")
    )
    rt: Any = None

    def drive() -> Any:
        return rt.tick(inner, rt.start(inner)).error

    async def drive_here() -> Any:
        return drive()

    async def look() -> str:
        return "seen"

    outputs = []
    for tool in (Tool("outer", "", drive_here), Tool("outer", "", drive, thread=True)):
        integration = noted(local_llm(ScriptedModel(), [tool, Tool("inner", "", look)]))
        rt = stores.runtime(effect_handlers=integration.blocking_handlers)
        state = rt.tick(spec, rt.start(spec))
        outputs.append(state.output["out"]["results"][0]["output"])
    assert "drives a run of its own integration" in outputs[0]
    assert outputs[1] is None


@pytest.mark.item(435)
@pytest.mark.parametrize("point", ["resumed", "started", "executed", "saved"])
def test_a_crash_after_a_decision_executes_the_call_at_most_once(
    stores: Stores, point: str
) -> None:
    """A crash before the call: the next driver makes it. A crash in its middle: it is in doubt."""
    till = Till()
    _, spec, run_id, wait = approving(stores, till)
    integration = noted(local_llm(ScriptedModel(), till.tools()))
    dying = stores.runtime(effect_handlers=integration.blocking_handlers, fault=Dying(point))
    with pytest.raises(Deaths):
        dying.resume(spec, run_id, wait.wait_key, {"approved": True})
    rt = stores.reopen().runtime(effect_handlers=integration.blocking_handlers)

    state = rt.tick(spec, run_id)

    in_doubt = point in {"started", "executed"}
    assert till.paid == ([] if point == "started" else [7])
    assert (state.status is RunStatus.WAITING) is in_doubt
    if state.waiting is not None:
        assert state.waiting.reason is WaitReason.JOB
        state = rt.resume(spec, run_id, state.waiting.wait_key, {"result": {"results": []}})
    assert state.status is RunStatus.COMPLETED
    with pytest.raises(StaleResumeError):
        rt.resume(spec, run_id, wait.wait_key, {"approved": True})


@pytest.mark.item(435, 441)
def test_a_call_executed_after_a_doubt_keeps_its_key(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after the second doubt. A service that got the first call knows it again."""
    keys: list[str] = []
    invoke = DirectToolInvoker.invoke

    async def spied(self: DirectToolInvoker, call: Any, **more: Any) -> Any:
        keys.append(more["idempotency_key"])
        return await invoke(self, call, **more)

    monkeypatch.setattr(DirectToolInvoker, "invoke", spied)
    till = Till()
    rt, spec, run_id, wait = approving(stores, till)
    integration = noted(local_llm(ScriptedModel(), till.tools()))
    key, answer = wait.wait_key, {"approved": True}
    for _ in range(2):
        dying = stores.reopen().runtime(
            effect_handlers=integration.blocking_handlers, fault=Dying("executed")
        )
        with pytest.raises(Deaths):
            dying.resume(spec, run_id, key, answer)
        rt = stores.reopen().runtime(effect_handlers=integration.blocking_handlers)
        [doubt] = open_waits(rt.tick(spec, run_id))
        key, answer = doubt.wait_key, {"execute": True}
    state = rt.resume(spec, run_id, key, answer)

    assert (state.status, till.paid) == (RunStatus.COMPLETED, [7] * 3)
    assert len(keys) == 2 * 3
    assert len({*keys}) == 2, "each of the two calls has one key"


@pytest.mark.item(435)
def test_a_decision_in_a_payload_is_ignored(stores: Stores) -> None:
    """A payload that contains a decision waits, too."""
    till = Till()
    payload = {"tool_calls": CALLS, "_decisions": {"c1": {"approved": True}}}
    state = played(stores, local_llm(ScriptedModel(), till.tools()), T.TOOL_CALLS, payload)
    assert (state.status, till.paid) == (RunStatus.WAITING, [])


def branches(kind: EffectType, payloads: Sequence[dict[str, Any]]) -> WorkflowSpec:
    """Return a graph whose branches have one effect each."""
    names = [f"b{n}" for n in range(len(payloads))]
    nodes: dict[str, Any] = {
        name: effect_then(kind, payload, key=name)
        for name, payload in zip(names, payloads, strict=True)
    }
    nodes["fork"] = lambda _run, _ctx: StepPlan(
        "fork", parallel={name: name for name in names}, next_node="end"
    )
    return WorkflowSpec("graph", "fork", nodes | {"end": end_node})


@pytest.mark.item(435)
def test_branches_have_decisions_of_their_own(stores: Stores) -> None:
    """Each wait is answered by its own key, in another process."""
    till = Till()
    integration = noted(local_llm(ScriptedModel(), till.tools()))
    calls = [{"tool_calls": [CALLS[0] | {"arguments": {"order": n}}]} for n in range(3)]
    spec = branches(T.TOOL_CALLS, calls)
    rt = stores.runtime(effect_handlers=integration.blocking_handlers)
    run_id = rt.start(spec)
    rt.tick(spec, run_id)
    keys = [w.wait_key or "" for w in open_waits(rt.get_state(run_id))]
    for key, is_right in zip(keys, (True, False, True), strict=True):
        rt.answer(run_id, key, {"approved": is_right})
    assert till.paid == []
    state = (
        stores.reopen().runtime(effect_handlers=integration.blocking_handlers).tick(spec, run_id)
    )
    assert state.status is RunStatus.COMPLETED, state.error
    assert sorted(till.paid) == [0, 2]
    successes = [state.output[f"b{n}"]["results"][0]["success"] for n in range(3)]
    assert successes == [True, False, True]


@pytest.mark.item(434)
def test_a_client_executes_calls(stores: Stores) -> None:
    """Its results are matched by call id; unknown ids, a partial answer and a second one are refused."""
    spec = one_effect(T.TOOL_CALLS, {"tool_calls": CALLS, "mode": "passthrough"})
    integration = noted(local_llm(ScriptedModel()))
    rt = stores.runtime(effect_handlers=integration.blocking_handlers)
    run_id = rt.start(spec)
    wait = rt.tick(spec, run_id).waiting
    assert wait is not None
    assert (wait.details or {})["tool_calls"] == CALLS
    right = [{"call_id": "c2", "output": 2}, {"call_id": "c1", "error": "no money"}]
    for odd, match in (
        ({"results": [{"call_id": "c9", "output": 1}]}, "about call 'c9'"),
        ({"results": right[:1]}, "one result for each"),
        ({"results": [*right, right[0]]}, "one result for each"),
        ("done", "give results"),
    ):
        with pytest.raises(GraphError, match=match):
            rt.resume(spec, run_id, wait.wait_key, odd)

    state = rt.resume(spec, run_id, wait.wait_key, {"results": right})

    assert state.output["out"] == {
        "mode": "executed",
        "results": [
            {"call_id": "c1", "name": "pay", "success": False, "output": None, "error": "no money"},
            {"call_id": "c2", "name": "look", "success": True, "output": 2, "error": None},
        ],
    }
    with pytest.raises(StaleResumeError):
        rt.resume(spec, run_id, wait.wait_key, {"results": right})


@pytest.mark.item(434)
@pytest.mark.parametrize("more", [{"timeout_s": 60}, {"until": 60}, {}], ids=str)
def test_a_client_may_have_a_deadline(stores: Stores, more: dict[str, Any]) -> None:
    """Of the payload, else of the integration; behind it the calls have no results, and none is taken."""
    payload = {"tool_calls": CALLS} | more
    if "until" in more:
        payload["until"] = (stores.clock.now() + timedelta(seconds=60)).isoformat()
    remote = RemoteModel("http://127.0.0.1:9/v1")
    integration = noted(remote_llm(remote, timeout_s=9 if more else 60))
    rt, spec = (
        stores.runtime(effect_handlers=integration.blocking_handlers),
        one_effect(T.TOOL_CALLS, payload),
    )
    run_id = rt.start(spec)
    wait = rt.tick(spec, run_id).waiting
    assert wait is not None
    stores.clock.advance(59)
    assert rt.tick(spec, run_id).status is RunStatus.WAITING
    stores.clock.advance(1)

    out = rt.tick(spec, run_id).output["out"]

    assert (out["timed_out"], out["until"]) == (True, wait.until)
    assert [row["error"] for row in out["results"]] == ["no result came in time"] * 2
    with pytest.raises(StaleResumeError):
        rt.resume(spec, run_id, wait.wait_key, {"results": []})


@pytest.mark.item(434)
def test_a_deadline_that_cannot_be_read_fails_by_name(stores: Stores) -> None:
    """Before anybody waits."""
    payload = {"tool_calls": CALLS, "mode": "passthrough", "timeout_s": "soon"}
    state = played(stores, local_llm(ScriptedModel()), T.TOOL_CALLS, payload)
    assert "payload.timeout_s: 'soon' is not a number" in (state.error or "")


FACTS: list[dict[str, Any]] = [
    {"subject": "Ann", "predicate": "works_at", "object": "ACME", "confidence": 0.9},
    {"subject": "Bob", "predicate": "works_at", "object": "ACME"},
    {"subject": "Ann", "predicate": "likes", "object": "Tea"},
]


@pytest.mark.item(436)
def test_knowledge_is_kept_by_a_bridge(stores: Stores) -> None:
    """Facts by their parts, ignoring case, once each, and within their scope."""
    bridge = GraphStoreKnowledge(InMemoryGraphStore())

    def run_effect(kind: EffectType, **payload: Any) -> dict[str, Any]:
        integration = local_llm(ScriptedModel(), knowledge=bridge)
        state = played(stores, integration, kind, {"scope": "session", **payload})
        assert state.status is RunStatus.COMPLETED, state.error
        return dict(state.output["out"])

    first = run_effect(T.MEMORY_KG_ASSERT, assertions=FACTS)
    assert first["count"] == 3
    assert run_effect(T.MEMORY_KG_ASSERT, assertions=FACTS) == first

    def find_facts(**parts: Any) -> list[tuple[str, str, str]]:
        items = run_effect(T.MEMORY_KG_QUERY, **parts)["items"]
        return sorted((item["subject"], item["predicate"], item["object"]) for item in items)

    whole = sorted((fact["subject"], fact["predicate"], fact["object"]) for fact in FACTS)
    assert find_facts() == whole
    assert find_facts(subject="ann") == [whole[0], whole[1]]
    assert find_facts(object="acme", predicate="works_at") == [whole[1], whole[2]]
    assert find_facts(predicate="likes") == [whole[0]]
    assert find_facts(subject="Zoe") == []
    assert len(find_facts(limit=2)) == 2
    assert find_facts(scope="global") == []
    (ann, *_) = run_effect(T.MEMORY_KG_RESOLVE, label="ann ")["candidates"]
    assert (ann["label"], ann["score"]) == ("Ann", 1.0)
    assert [
        candidate["label"]
        for candidate in run_effect(T.MEMORY_KG_RESOLVE, label="cm")["candidates"]
    ] == ["ACME"]


@pytest.mark.item(436)
@pytest.mark.parametrize(
    ("kind", "payload", "problem"),
    [
        (T.MEMORY_KG_ASSERT, {"assertions": [{"subject": "a"}]}, "assertions[0].predicate"),
        (T.MEMORY_KG_ASSERT, {"assertions": "x"}, "assertions[0]"),
        (T.MEMORY_KG_QUERY, {"scope": "mine"}, "scope"),
        (T.MEMORY_KG_QUERY, {"limit": 0}, "limit"),
        (T.MEMORY_KG_RESOLVE, {}, "label"),
    ],
)
def test_knowledge_that_cannot_be_read_fails_by_name(
    stores: Stores, kind: EffectType, payload: dict[str, Any], problem: str
) -> None:
    """Without a retry."""
    bridge = GraphStoreKnowledge(InMemoryGraphStore())
    state = played(stores, local_llm(ScriptedModel(), knowledge=bridge), kind, payload)
    assert state.status is RunStatus.FAILED
    assert f"{kind.value}: {problem}" in (state.error or "")
