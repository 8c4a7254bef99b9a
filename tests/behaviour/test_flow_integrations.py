"""Models, tools and knowledge of flows on hosts: decisions, client calls, and keys kept out of the log."""

from __future__ import annotations

import asyncio
import json
import operator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from actors._inmemory.knowledge import InMemoryGraphStore
from actors._kernel.agent.agent import ExecutionBudget
from actors._kernel.agent.tools import Risk, Tool
from actors._kernel.hidden import HiddenNames
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.secrets import Secret
from actors._kernel.workflow.errors import GraphError, StaleResumeError
from actors._runtime.verbs.model_calls import DirectToolInvoker
from actors._workflow.bundles import StoredBundles, open_workflow_bundle, packed_flow
from actors._workflow.integrations import (
    GraphStoreKnowledge,
    RemoteModel,
    hybrid_llm,
    local_llm,
    remote_llm,
)
from actors.testing import ScriptedModel
from actors.workflow import EffectType, RunStatus, StepPlan, WorkflowSpec
from compose._assembly.telemetry import Redaction
from tests.behaviour.agents import greeter
from tests.behaviour.flow_stage import asking, ending, single, staged
from tests.behaviour.test_traces import Backend
from tests.harness.chat_server import chat_server, said, wanting

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import RunId
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed
    from tests.behaviour.flow_stage import Stage

T = EffectType
KEY = "canary-51ab-of-a-key"
PAY = {"name": "pay", "arguments": {"order": 7}, "call_id": "c1"}


class Till:
    """A risky tool that counts its payments."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.holds = asyncio.Event()
        self.holds.set()

    async def pay(self, order: int) -> str:
        """Pay an order once the gate is open."""
        self.paid.append(order)
        await self.holds.wait()
        return f"paid {order}"

    def tools(self) -> list[Tool]:
        """Return the tool."""
        return [Tool("pay", "Pays.", self.pay, risk=Risk.HIGH)]


async def paying(bed: Bed, till: Till, *specs: WorkflowSpec) -> Stage:
    """Yield a stage of flows that pay."""
    flow_specs = specs or (single(T.TOOL_CALLS, {"tool_calls": [PAY]}),)
    handlers = local_llm(ScriptedModel(), till.tools()).effect_handlers
    return await staged(bed, *flow_specs, effect_handlers=handlers)


@pytest.mark.item(435)
async def test_an_approved_call_is_executed_once(bed: Bed) -> None:
    """Two decisions at once: one of them counts. A later host does not execute it again."""
    till = Till()
    stage = await paying(bed, till)
    run_id = await stage.runs.start("flow")
    (wait,) = await stage.waits(run_id)
    key = wait.wait_key or ""
    with pytest.raises(GraphError, match="about call 'c9'"):
        await stage.runs.resume(run_id, key, {"decisions": {"c9": True}})
    assert till.paid == []
    both = await asyncio.gather(
        *(stage.runs.resume(run_id, key, {"approved": True, "by": person}) for person in "ab"),
        return_exceptions=True,
    )
    assert sorted(type(outcome).__name__ for outcome in both) == ["NoneType", "StaleResumeError"]

    state = await stage.ended(run_id)

    assert state.status is RunStatus.COMPLETED, state.error
    assert (till.paid, state.output["out"]["results"][0]["output"]) == ([7], "paid 7")
    statuses = [
        ("work", status, 1)
        for status in ("started", "waiting", "completed", "started", "completed")
    ]
    assert await stage.node_statuses(run_id) == statuses
    await stage.restart()
    assert (await stage.runs.state(run_id)).output == state.output
    with pytest.raises(StaleResumeError):
        await stage.runs.resume(run_id, key, {"approved": True})
    assert till.paid == [7]


@pytest.mark.item(435)
async def test_a_denied_call_has_an_error(bed: Bed) -> None:
    """The run continues, and the step reads the reason."""
    till = Till()
    stage = await paying(bed, till)
    run_id = await stage.runs.start("flow")
    (wait,) = await stage.waits(run_id)
    await stage.restart()
    await stage.runs.resume(run_id, wait.wait_key or "", {"approved": False, "reason": "no"})
    (row,) = (await stage.ended(run_id)).output["out"]["results"]
    assert (row["success"], row["status"], row["error"]) == (False, "denied", "denied: no")
    assert till.paid == []


@pytest.mark.item(435)
async def test_a_host_that_dies_in_an_approved_call_leaves_it_in_doubt(bed: Bed) -> None:
    """It is never called again; an operator decides its outcome."""
    till = Till()
    till.holds.clear()
    stage = await paying(bed, till)
    run_id = await stage.runs.start("flow")
    (wait,) = await stage.waits(run_id)
    await stage.runs.resume(run_id, wait.wait_key or "", {"approved": True})
    await bed.until(lambda: till.paid == [7])
    await stage.restart()
    [doubt] = await stage.waits(run_id)
    value = {"mode": "executed", "results": []}
    await stage.runs.resume(run_id, str(doubt.wait_key), {"result": value})

    state = await stage.ended(run_id)

    assert (till.paid, state.output["out"]) == ([7], value)


@pytest.mark.item(435, 441)
async def test_a_call_executed_after_a_doubt_keeps_its_key(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the next host, and also after the second doubt."""
    keys: list[str] = []
    invoke = DirectToolInvoker.invoke

    async def spied(self: DirectToolInvoker, call: Any, **more: Any) -> Any:
        keys.append(more["idempotency_key"])
        return await invoke(self, call, **more)

    monkeypatch.setattr(DirectToolInvoker, "invoke", spied)
    till = Till()
    till.holds.clear()
    stage = await paying(bed, till)
    run_id = await stage.runs.start("flow")
    [wait] = await stage.waits(run_id)
    answer = {"approved": True}
    for paid in ([7], [7, 7]):
        await stage.runs.resume(run_id, str(wait.wait_key), answer)
        await bed.until(partial(operator.eq, till.paid, paid))
        await stage.restart()
        [wait] = await stage.waits(run_id)
        answer = {"execute": True}
    till.holds.set()
    await stage.runs.resume(run_id, str(wait.wait_key), answer)

    state = await stage.ended(run_id)

    assert (state.status, till.paid) == (RunStatus.COMPLETED, [7] * 3)
    assert (len(keys), len({*keys})) == (3, 1)


@pytest.mark.item(435)
async def test_branches_have_decisions_of_their_own(bed: Bed) -> None:
    """A replay opens the same calls in the same branches."""
    till = Till()
    nodes: dict[str, Any] = {
        f"b{n}": asking(
            T.TOOL_CALLS, {"tool_calls": [PAY | {"arguments": {"order": n}}]}, key=f"b{n}"
        )
        for n in range(3)
    }
    names = {node: node for node in nodes}
    nodes |= {"fork": lambda _run, _ctx: StepPlan("fork", parallel=names, next_node="end")}
    stage = await paying(bed, till, WorkflowSpec("flow", "fork", nodes | {"end": ending}))
    run_id = await stage.runs.start("flow")
    waits = {
        (wait.details or {})["tool_calls"][0]["arguments"]["order"]: wait
        for wait in await stage.waits(run_id, 3)
    }
    for order in range(3):
        await stage.runs.resume(run_id, waits[order].wait_key or "", {"approved": order != 1})
        if order == 0:  # a crash before the result of a call would leave it in doubt
            while ("b0", "completed", 1) not in await stage.node_statuses(run_id):  # noqa: ASYNC110 - rows
                await asyncio.sleep(0.01)
            await stage.restart()
    state = await stage.ended(run_id)
    assert sorted(till.paid) == [0, 2]
    successes = [state.output[f"b{n}"]["results"][0]["success"] for n in range(3)]
    assert successes == [True, False, True]


@pytest.mark.item(434)
async def test_a_client_executes_calls(bed: Bed) -> None:
    """Its results are matched by call id, also after a restart.

    A result for another call changes nothing.
    """
    payload = {"tool_calls": [PAY, {"name": "look", "call_id": "c2"}], "mode": "passthrough"}
    handlers = local_llm(ScriptedModel()).effect_handlers
    stage = await staged(bed, single(T.TOOL_CALLS, payload), effect_handlers=handlers)
    run_id = await stage.runs.start("flow")
    (wait,) = await stage.waits(run_id)
    key = wait.wait_key or ""
    assert [call["name"] for call in (wait.details or {})["tool_calls"]] == ["pay", "look"]
    for odd in ([{"call_id": "c9", "output": 1}], [{"call_id": "c1", "output": 1}]):
        with pytest.raises(GraphError, match="answer to"):
            await stage.runs.resume(run_id, key, {"results": odd})
    await stage.restart()
    right = [{"call_id": "c2", "output": {"n": 1}}, {"call_id": "c1", "error": "no money"}]
    await stage.runs.resume(run_id, key, {"results": right})

    rows = (await stage.ended(run_id)).output["out"]["results"]

    assert [(row["call_id"], row["success"], row["output"], row["error"]) for row in rows] == [
        ("c1", False, None, "no money"),
        ("c2", True, {"n": 1}, None),
    ]


@pytest.mark.item(434)
async def test_a_client_that_is_late_finds_the_run_gone_on(bed: Bed) -> None:
    """The deadline is a timer of the run; its host may die meanwhile."""
    payload = {"tool_calls": [PAY], "mode": "passthrough", "timeout_s": 1}
    handlers = local_llm(ScriptedModel()).effect_handlers
    stage = await staged(bed, single(T.TOOL_CALLS, payload), effect_handlers=handlers)
    run_id = await stage.runs.start("flow")
    (wait,) = await stage.waits(run_id)
    await stage.restart()

    out = (await stage.ended(run_id)).output["out"]

    (row,) = out["results"]
    assert (out["timed_out"], out["until"]) == (True, wait.until)
    assert (row["success"], row["error"]) == (False, "no result came in time")
    with pytest.raises(StaleResumeError):
        await stage.runs.resume(run_id, wait.wait_key or "", [{"call_id": "c1", "output": 1}])


def speaking(*names: str) -> list[WorkflowSpec]:
    """Return a flow that asks a model, then another flow that does, and so on."""
    specs = []
    for name, below in zip(names, (*names[1:], None), strict=True):
        nodes: dict[str, Any] = {
            "work": asking(T.LLM_CALL, {"prompt": "?"}, after="sub" if below else "end"),
            "end": ending,
        }
        if below:
            nodes["sub"] = asking(T.START_SUBWORKFLOW, {"workflow_id": below}, key="below")
        specs.append(WorkflowSpec(name, "work", nodes))
    return specs


async def started_below(stage: Stage, flow: str, most: int) -> tuple[RunId, RunId]:
    """Return the run of an agent with so many tokens, and that of a flow that it spawned."""

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        del inbox
        return await ctx.join(await ctx.spawn(stage.flows.app, {}, key=f"{flow}:1"))

    budget = ExecutionBudget(max_tokens=most)
    root = await stage.bed.submit(await stage.bed.serve(act), execution_budget=budget)
    await stage.bed.seen(root, K.CHILD_SPAWNED)
    ((child, *_), *_) = [await stage.bed.runtime.store.lists.children(root)]
    return root, child.run_id


@pytest.mark.item(431)
async def test_tokens_count_on_the_budget_of_the_root(bed: Bed) -> None:
    """Those of sub-graphs, too; when it is used up no model is asked, and the run says so."""
    model = greeter()  # ten tokens a call
    handlers = local_llm(model).effect_handlers
    stage = await staged(bed, *speaking("a", "b", "c"), effect_handlers=handlers)
    for most, calls in ((30, 3), (20, 2)):
        calls_before = model.calls
        root, run_id = await started_below(stage, "a", most)
        state = await stage.ended(run_id)
        assert model.calls - calls_before == calls
        assert (state.status is RunStatus.COMPLETED) is (calls == 3), state.error
        assert calls == 3 or f"has used up its budget (max_tokens {most})" in (state.error or "")
        assert await bed.runtime.store.reads.tokens_left(root) == 0


@pytest.mark.item(431)
async def test_tokens_of_a_recorded_call_count_once(bed: Bed) -> None:
    """A host that comes later counts nothing again."""
    model = greeter()
    nodes = {
        "work": asking(T.LLM_CALL, {"prompt": "?"}, after="ask"),
        "ask": asking(T.ASK_USER, {"prompt": "?", "wait_key": "k"}, key="said"),
        "end": ending,
    }
    handlers = local_llm(model).effect_handlers
    stage = await staged(bed, WorkflowSpec("flow", "work", nodes), effect_handlers=handlers)
    root, run_id = await started_below(stage, "flow", 15)
    await stage.waits(run_id)
    await stage.restart()
    await stage.runs.resume(run_id, "k", {"response": "yes"})
    assert (await stage.ended(run_id)).status is RunStatus.COMPLETED
    assert model.calls == 1
    assert await bed.runtime.store.reads.tokens_left(root) == 5


@pytest.mark.item(436)
async def test_knowledge_is_kept_by_a_bridge(bed: Bed) -> None:
    """One run asserts a fact, another run of its session reads it."""
    bridge = GraphStoreKnowledge(InMemoryGraphStore())
    fact = {"subject": "Ann", "predicate": "likes", "object": "Tea"}
    specs = [
        single(T.MEMORY_KG_ASSERT, {"scope": "session", "assertions": [fact]}, name="tell"),
        single(T.MEMORY_KG_QUERY, {"scope": "session", "subject": "ann"}, name="ask"),
        single(T.MEMORY_KG_RESOLVE, {"scope": "session", "label": "tea"}, name="find"),
    ]
    handlers = local_llm(ScriptedModel(), knowledge=bridge).effect_handlers
    stage = await staged(bed, *specs, effect_handlers=handlers)
    assert (await stage.play("tell", session_id="s")).output["out"]["count"] == 1
    (item,) = (await stage.play("ask", session_id="s")).output["out"]["items"]
    assert fact.items() <= item.items()
    (candidate,) = (await stage.play("find", session_id="s")).output["out"]["candidates"]
    assert candidate["label"] == "Tea"
    assert (await stage.play("ask", session_id="t")).output["out"]["items"] == []


async def stored_text_of(stage: Stage, run_id: RunId) -> str:
    """Return all that is stored of a run."""
    bed = stage.bed
    entries = [dict(entry.payload) for entry in await bed.log(run_id)]
    parts = [entries, await stage.runs.ledger(run_id), str(await bed.row(run_id))]
    snapshot = await stage.runs.snapshot(run_id, "s")
    return json.dumps([parts, snapshot.to_dict(), (await stage.runs.state(run_id)).vars])


async def flow_files_of(bed: Bed, packed: bytes) -> str:
    """Return all texts of a bundle that this host installs: as it is sent, and as its store gives it back."""
    store = bed.runtime.store
    bundles = StoredBundles(store.data.flow_bundles, store.data.artifacts, bed.name().tenant)
    record, _ = await bundles.install(packed)
    texts = [str(record)]
    for bundle in (open_workflow_bundle(packed), await bundles.load(record)):
        texts += [bundle.manifest.model_dump_json(), *map(str, bundle.files.values())]
    return str(texts)


PAYING: dict[str, Any] = {
    "flow": 1,
    "id": "paying",
    "version": "1",
    "start": "work",
    "nodes": {
        "work": {
            "effect": "llm_call",
            "with": {"prompt": "?", "provider": "acme", "tools": ["pay"]},
            "into": "asked",
            "next": "call",
        },
        "call": {
            "effect": "tool_calls",
            "with": {"tool_calls": "${vars.asked.tool_calls}"},
            "into": "paid",
            "next": "last",
        },
        "last": {"effect": "llm_call", "with": {"prompt": "done?"}, "into": "last", "next": "end"},
        "end": {"end": {"paid": "${vars.paid}", "last": "${vars.last}"}},
    },
}


@pytest.mark.nats
@pytest.mark.item(431, 433)
async def test_a_remote_model_and_its_keys(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A host asks a server over HTTP, executes what the model wants, and keeps no key anywhere."""
    for name in ("SERVER", "ACME"):
        monkeypatch.setenv(f"CALLBOARD_SECRET_{name}", f"{KEY}-{name}")
    till, backend = Till(), Backend(show=Redaction(HiddenNames("")))
    await bed.restart(tracing=backend.tracing)
    packed = packed_flow(json.dumps(PAYING).encode())
    with chat_server(wanting(("c1", "pay", '{"order": 7}')), said(f"with {KEY}-SERVER")) as server:
        remote = RemoteModel(
            server.url, api_key=Secret("SERVER"), provider_keys={"acme": Secret("ACME")}
        )
        llm = hybrid_llm(remote, till.tools())
        specs = open_workflow_bundle(packed).specs()
        stage = await staged(bed, *specs, effect_handlers=llm.effect_handlers)
        run_id = await stage.runs.start("paying@1")
        (wait,) = await stage.waits(run_id)
        await stage.runs.resume(run_id, wait.wait_key or "", {"approved": True})
        state = await stage.ended(run_id)
        await backend.root_span(bed, run_id)
        spans = "".join(span.to_json() for span in backend.spans)

    assert state.output["paid"]["results"][0]["output"] == "paid 7"
    assert state.output["last"]["content"] == "with [secret SERVER]"
    first, second = (request[2] for request in server.asked)
    assert (first["authorization"], first["x-provider-api-key"]) == (
        f"Bearer {KEY}-SERVER",
        f"{KEY}-ACME",
    )
    assert "x-provider-api-key" not in second
    stored_text = await stored_text_of(stage, run_id)
    flows = await flow_files_of(bed, packed)
    for text in (stored_text, spans):
        assert "paid 7" in text
        assert "[secret SERVER]" in text
    assert "done?" in flows
    assert KEY not in stored_text + spans + flows + caplog.text


@pytest.mark.nats
@pytest.mark.item(433)
async def test_a_host_names_a_missing_secret(bed: Bed) -> None:
    """The run fails, and nothing is sent."""
    with chat_server(said()) as server:
        llm = remote_llm(RemoteModel(server.url, api_key=Secret("NOWHERE")))
        handlers = llm.effect_handlers
        stage = await staged(bed, single(T.LLM_CALL, {"prompt": "?"}), effect_handlers=handlers)
        state = await stage.play("flow")
    assert "secret NOWHERE is not known on this host" in (state.error or "")
    assert server.asked == []
