"""Flows over HTTP: runs, waits, ledgers and events, in any process."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from actors._kernel.runtime.ids import RunId
from actors._workflow.hosted import graph_run, ledger_feed
from actors.errors import RegistrationError
from actors.workflow import (
    Effect,
    EffectMode,
    EffectOutcome,
    EffectType,
    Flows,
    StepPlan,
    WorkflowSpec,
    verify_ledger_chain,
)
from compose._host.loader import serve_all, serve_app
from compose.web import app
from tests.behaviour.bed import LIMIT_S
from tests.behaviour.flow_stage import asking
from tests.behaviour.guarded import Guarded, guarded_on
from tests.behaviour.talks import Echo
from tests.behaviour.web import WebClient, pages_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors._runtime import Runtime
    from actors.workflow import RunState
    from tests.behaviour.bed import Bed


def ask(_run: RunState, _ctx: Any) -> StepPlan:
    """Ask a person."""
    payload = {"prompt": "Refund?", "choices": ["yes", "no"], "wait_key": "ok/1"}
    return StepPlan("ask", Effect(EffectType.ASK_USER, payload, "answer"), next_node="pay")


def pay(run: RunState, _ctx: Any) -> StepPlan:
    """Pay."""
    effect = Effect(EffectType.TOOL_CALLS, {"order": run.vars.get("order")}, "paid")
    return StepPlan("pay", effect, next_node="end")


def hear(run: RunState, _ctx: Any) -> StepPlan:
    """Wait for an event."""
    payload = {"name": "paid", "scope": run.vars["scope"]}
    return StepPlan("hear", Effect(EffectType.WAIT_EVENT, payload, "paid"), next_node="end")


def count(run: RunState, _ctx: Any) -> StepPlan:
    """Count without end, and pay at times."""
    run.vars["n"] = n = run.vars.get("n", 0) + 1
    effect = Effect(EffectType.TOOL_CALLS, {"order": n}, "paid") if n % 40 == 0 else None
    return StepPlan("count", effect, next_node="count" if n < 120 else "ask")


def end(run: RunState, _ctx: Any) -> StepPlan:
    """End."""
    return StepPlan("end", complete_output=run.vars["paid"])


async def pay_out(_run: RunState, effect: Effect) -> EffectOutcome:
    """Execute a payment."""
    return EffectOutcome.completed(f"order {effect.payload['order']} paid")


REFUND = WorkflowSpec("refund", "ask", {"ask": ask, "pay": pay, "end": end})
HEARD = WorkflowSpec("heard", "hear", {"hear": hear, "end": end})
COUNTED = WorkflowSpec("counted", "count", {"count": count, "ask": ask, "pay": pay, "end": end})


def flows_at(name: str, *specs: WorkflowSpec) -> Flows:
    """Return the flows of an app."""
    return Flows(
        name, specs or (REFUND, HEARD, COUNTED), effect_handlers={EffectType.TOOL_CALLS: pay_out}
    )


@asynccontextmanager
async def flowing(bed: Bed) -> AsyncIterator[tuple[WebClient, WebClient, Flows]]:
    """Yield a client of the host that executes flows, one of a process that executes nothing, and the flows."""
    flows = flows_at(bed.name().type)
    await flows.register(bed.runtime)
    async with bed.client("serve") as elsewhere:
        await flows.register(elsewhere)
        yield WebClient(app(bed.runtime)), WebClient(app(elsewhere)), flows


async def started(web: WebClient, flow: str = "refund", **variables: Any) -> str:
    """Start a run, and return its path."""
    run = await web.post(f"/v1/flows/{flow}/runs", {"vars": variables})
    return f"/v1/graph-runs/{run['run']}"


def run_of(path: str) -> RunId:
    """Return the run of a path."""
    return RunId(path.rpartition("/")[2])


async def waiting_at(web: WebClient, path: str) -> Any:
    """Return a run's representation when it waits."""
    async with asyncio.timeout(LIMIT_S):
        while (view := await web.get(path))["wait"] is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return view


async def ended(bed: Bed, web: WebClient, path: str) -> Any:
    """Return a run's representation after its end."""
    await bed.ended(run_of(path))
    return await web.get(path)


@pytest.mark.item(414, 441)
async def test_an_effect_in_doubt_is_decided_once(bed: Bed) -> None:
    """The run and its page show the question. Another form of answer is refused, and a second one is late."""
    begun, calls = asyncio.Event(), list[int]()

    async def pay_once(run: RunState, effect: Effect) -> EffectOutcome:
        calls.append(1)
        begun.set()
        await asyncio.Event().wait()
        return await pay_out(run, effect)

    node = asking(EffectType.TOOL_CALLS, {"order": 7}, key="paid", mode=EffectMode.AT_MOST_ONCE)
    spec = WorkflowSpec("once", "pay", {"pay": node, "end": end})
    flows = Flows(bed.name().type, [spec], effect_handlers={EffectType.TOOL_CALLS: pay_once})
    await flows.register(bed.runtime)
    path = await started(WebClient(app(bed.runtime)), "once")
    await asyncio.wait_for(begun.wait(), LIMIT_S)
    await bed.restart()
    await flows.register(bed.runtime)
    web = WebClient(app(bed.runtime))

    wait = (await waiting_at(web, path))["wait"]
    assert wait["reason"] == "job"
    for word in ("tool_calls", "'pay'", "at_most_once"):
        assert word in wait["prompt"]
    page = (await web("GET", f"/graph-runs/{run_of(path)}", accept="text/html")).body.decode()
    assert wait["key"] in page
    assert "Did effect tool_calls of node" in page
    answer = f"{path}/waits/{quote(wait['key'], safe='')}"
    refused = await web("POST", answer, {"payload": {"response": "yes"}})
    assert (refused.status, '"execute": true' in refused.data["detail"]) == (422, True)
    assert (await web("POST", answer, {"payload": {"result": "order 7 paid"}})).status == 200
    late = await web("POST", answer, {"payload": {"execute": True}})
    assert (late.status, late.data["code"]) == (409, "stale_resume")
    assert (await ended(bed, web, path))["output"] == "order 7 paid"
    assert calls == [1]


@pytest.mark.item(411, 412, 414, 418)
async def test_a_run_is_started_and_answered_once_in_any_process(bed: Bed) -> None:
    """An idempotency key names one run. A second answer is refused in each process."""
    async with flowing(bed) as (web, other_web, flows):
        body = {"vars": {"order": 7}, "actor_id": "ada", "session_id": "s1"}
        first = await other_web("POST", "/v1/flows/refund/runs", body, idempotency_key="r-7")
        again = await web("POST", "/v1/flows/refund/runs", {}, idempotency_key="r-7")
        path = f"/v1/graph-runs/{first.data['run']}"
        assert (first.status, first.data["status"]) == (201, "running")
        assert (again.status, again.data) == (200, first.data)
        assert first.headers["location"] == again.headers["location"] == path

        view = await waiting_at(other_web, path)
        assert view["wait"] == {
            "reason": "user",
            "key": "ok/1",
            "prompt": "Refund?",
            "choices": ["yes", "no"],
            "allow_free_text": True,
            "until": None,
            "run": None,
            "sub_waiting": None,
        }
        assert (view["status"], view["node"], view["flow"]) == ("waiting", "ask", "refund")
        assert (view["app"], view["vars"]["order"]) == (flows.app, 7)
        assert view["limits"]["iterations"]["max"] == 20
        odd = await web("POST", f"{path}/waits/other", {"payload": 1})
        assert (odd.status, odd.data["code"]) == (409, "stale_resume")
        answer = await other_web.post(f"{path}/waits/ok%2F1", {"payload": {"response": "yes"}})
        late = await web("POST", f"{path}/waits/ok%2F1", {"payload": {"response": "no"}})

        assert answer["run"] == first.data["run"]
        assert (late.status, late.data["code"]) == (409, "stale_resume")
        over = await ended(bed, other_web, path)
        assert (over["status"], over["output"]) == ("completed", "order 7 paid")
        assert (over["wait"], over["waits"], over["vars"]["answer"]) == (
            None,
            [],
            {"response": "yes"},
        )
        last = await web("POST", "/v1/flows/refund/runs", {}, idempotency_key="r-7")
        assert (last.status, last.data["status"]) == (200, "completed")


async def test_flows_are_listed_with_their_nodes(bed: Bed) -> None:
    """The list is the same in a process that executes nothing."""
    async with flowing(bed) as (web, other_web, flows):
        all_flows = (await other_web.get("/v1/flows"))["flows"]
        assert all_flows == (await web.get("/v1/flows"))["flows"]
        mine = [flow for flow in all_flows if flow["app"] == flows.app]

        assert [flow["flow"] for flow in mine] == ["counted", "heard", "refund"]
        assert mine[2] == {
            "flow": "refund",
            "app": flows.app,
            "entry": "ask",
            "nodes": ["ask", "end", "pay"],
            "hash": REFUND.hash,
        }


@pytest.mark.item(446, 459)
async def test_a_ledger_can_be_read_from_after_any_record(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Live, in pages, in another process, and after the run continued as new: the same records."""
    monkeypatch.setattr(graph_run, "ENTRIES_KEPT", 2)
    monkeypatch.setattr(ledger_feed, "_REACH", 4)
    async with flowing(bed) as (web, other_web, _):
        path = await started(web, "counted")
        async with other_web.stream(f"{path}/ledger") as live:
            await waiting_at(web, path)
            so_far = await other_web.get(f"{path}/ledger?limit=500")
            await web.post(f"{path}/waits/ok%2F1", {"payload": "yes"})
            *steps, last = await live.until_end()
        records, ids = [step["data"] for step in steps], [step["id"] for step in steps]
        assert {step["event"] for step in steps} == {"step"}
        assert (last["event"], last["data"]["status"], "id" in last) == ("end", "completed", False)
        verdict = verify_ledger_chain(records)
        assert (verdict["ok"], verdict["count"] > 120) == (True, True)
        continued = [entry.seq for entry in await bed.log(run_of(path), "run.continued")]
        begins = [
            await ledger_feed.begin_of_generation(bed.runtime, run_of(path), seq)
            for seq in (continued[0] - 1, continued[0], continued[-1], continued[-1] + 5)
        ]
        assert begins == [0, continued[0], continued[-1], continued[-1]]

        for n, id_ in [*enumerate(ids, 1)][:-1:9]:
            async with web.stream(f"{path}/ledger", last_event_id=id_) as again:
                *rest, _ = await again.until_end()
            assert [(event["id"], event["data"]) for event in rest] == [
                *zip(ids, records, strict=True)
            ][n:]
        later = await other_web.get(f"{path}/ledger?limit=500&after={so_far['cursor']}")
        assert (so_far["status"], so_far["next"], later["next"]) == ("running", None, None)
        assert so_far["records"] + later["records"] == records
        pages = await pages_of(other_web, f"{path}/ledger?limit=50")
        assert [record for page in pages for record in page["records"]] == records
        assert {len(page["records"]) for page in pages[:-1]} == {50}
        assert (pages[-1]["cursor"], pages[-1]["status"]) == (ids[-1], "completed")
        async with web.stream(f"{path}/ledger", last_event_id=ids[-1]) as read:
            await read.until_end()
        assert read.answer.status == 204
        for odd in ("1", "x.y", f"{10**9}.0"):
            refused = await web("GET", f"{path}/ledger?after={odd}")
            assert (refused.status, refused.data["code"]) == (400, "bad_cursor"), odd


@pytest.mark.item(416, 458)
async def test_an_event_is_delivered_in_its_scope_once(bed: Bed) -> None:
    """By a session's runs, a flow's, or one run.

    A repeated event id is ignored; another name reaches no wait.
    """
    async with flowing(bed) as (web, other_web, flows):
        session = f"s-{flows.app}"
        run = await web.post(
            "/v1/flows/heard/runs", {"vars": {"scope": "session"}, "session_id": session}
        )
        alone = await started(web, "heard", scope="run")
        path = f"/v1/graph-runs/{run['run']}"
        for run_path in (path, alone):
            assert (await waiting_at(web, run_path))["wait"]["reason"] == "event"
        event = {"name": "paid", "scope": "session", "key": session, "id": "e-1", "payload": 5}
        assert (await other_web.post("/v1/events", {**event, "name": "other"}))["delivered"] == 0
        assert (await other_web.post("/v1/events", {**event, "key": "elsewhere"}))["resumed"] == []
        delivery = await other_web.post("/v1/events", event)
        again = await web.post("/v1/events", event)
        assert (delivery["event_id"], delivery["delivered"], delivery["resumed"]) == (
            "e-1",
            1,
            [run["run"]],
        )
        assert again["delivered"] == 0
        own = {"name": "paid", "scope": "run", "key": run_of(alone)}
        assert (await other_web.post("/v1/events", own))["delivered"] == 1

        over = await ended(bed, other_web, path)
        assert (over["output"]["event_id"], over["output"]["payload"]) == ("e-1", 5)
        assert (await ended(bed, other_web, alone))["status"] == "completed"
        for wrong in (
            {"name": "x", "scope": "session"},
            {"name": "x", "key": "k"},
            {"name": "", "scope": "global"},
            {"name": "x", "scope": "tenant", "key": "k"},
        ):
            refused = await web("POST", "/v1/events", wrong)
            assert (refused.status, refused.data["code"]) == (422, "invalid")


async def test_runs_are_listed_by_flow_and_state_in_pages(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Newest first.

    A waiting run is open, a cancelled one has that state. A page reads some rows, not all.
    """
    monkeypatch.setattr(ledger_feed, "PAGE", 2)
    monkeypatch.setattr(ledger_feed, "MOST_READ", 4)
    async with flowing(bed) as (web, other_web, flows):
        paths = [await started(web, flow, scope="run") for flow in ("refund", "heard") * 3]
        for path in paths:
            await waiting_at(web, path)
        async with web.stream(f"{paths[0]}/ledger") as live:
            stopped = await other_web.post(f"{paths[0]}/cancel", {"reason": "not needed"})
            last = (await live.until_end())[-1]
        assert (last["event"], last["data"]["status"]) == ("end", "cancelled")
        view = await ended(bed, other_web, paths[0])
        assert stopped["run"] == run_of(paths[0])
        assert (view["status"], view["waits"]) == ("cancelled", [])
        assert "not needed" in view["error"]
        after = await other_web("POST", f"{paths[0]}/waits/ok%2F1", {"payload": 1})
        assert (after.status, after.data["code"]) == (409, "stale_resume")

        async def list_paths(query: str) -> list[str]:
            pages = await pages_of(other_web, f"/v1/graph-runs?app={flows.app}&{query}")
            return [f"/v1/graph-runs/{run['run']}" for page in pages for run in page["runs"]]

        assert await list_paths("limit=2") == paths[::-1]
        assert await list_paths("flow=refund&limit=1") == paths[4::-2]
        assert await list_paths("flow=refund&status=running&limit=1") == [paths[4], paths[2]]
        assert await list_paths("status=cancelled") == [paths[0]]
        assert await list_paths("flow=counted") == []
        first = await other_web.get("/v1/graph-runs?flow=counted")
        assert (first["runs"], first["next"]) == ([], run_of(paths[2]))
        bad = await web("GET", f"/v1/graph-runs?after={'x' * 2000}")
        assert bad.status == 404


def below(run: RunState, _ctx: Any) -> StepPlan:
    """Start a sub-graph."""
    payload = {"workflow_id": run.vars["of"], "vars": {"order": 7, "of": "refund"}}
    effect = Effect(EffectType.START_SUBWORKFLOW, payload, "paid")
    return StepPlan("below", effect, next_node="end")


@pytest.mark.item(421)
async def test_a_run_shows_the_waits_of_its_sub_graph(bed: Bed) -> None:
    """Down to the deepest external wait. The answer is delivered there, and each level completes."""
    spec = WorkflowSpec("above", "below", {"below": below, "end": end})
    flows = flows_at(bed.name().type, REFUND, spec)
    await flows.register(bed.runtime)
    web = WebClient(app(bed.runtime))
    path = await started(web, "above", of="above")
    async with asyncio.timeout(LIMIT_S):
        while not (last := _last_wait(await web.get(path)))[1]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    run, wait, depth = last
    assert (wait["reason"], wait["prompt"], depth) == ("user", "Refund?", 2)
    await web.post(f"/v1/graph-runs/{run}/waits/ok%2F1", {"payload": 1})
    assert (await ended(bed, web, path))["status"] == "completed"


def _last_wait(view: Any) -> tuple[str, Any, int]:
    """Return the deepest external wait of a run, its run, and its depth."""
    run, wait, depth = view["run"], view["wait"], 0
    while wait is not None and wait["run"] is not None:
        run, wait, depth = wait["run"], wait["sub_waiting"], depth + 1
    return run, wait, depth


@pytest.mark.item(416, 417)
async def test_a_snapshot_is_kept_found_and_restored(bed: Bed) -> None:
    """In any process; an idempotency key names one run. Another tenant finds none."""
    async with flowing(bed) as (web, other_web, flows), guarded_on(bed) as guarded:
        path = await started(web, order=7)
        await waiting_at(web, path)
        facts = {"name": "Before", "description": "the money", "tags": ["t"]}
        snapshot_answer = await web("POST", f"{path}/snapshots", facts)
        assert (
            snapshot_answer.status,
            snapshot_answer.data["tags"],
            snapshot_answer.data["app"],
        ) == (201, ["t"], flows.app)
        snapshot_path = snapshot_answer.headers["location"]
        second = await started(web)
        await waiting_at(web, second)
        later = await other_web.post(f"{second}/snapshots", {"name": "later"})
        assert (await web("POST", f"{path}/snapshots", {"name": ""})).status == 422

        assert (await other_web.get("/v1/graph-snapshots?tag=t&query=MONEY"))["snapshots"] == [
            snapshot_answer.data
        ]
        of_run = await other_web.get(f"/v1/graph-snapshots?run={snapshot_answer.data['run']}")
        assert (of_run["snapshots"], of_run["next"]) == ([snapshot_answer.data], None)
        first = await other_web.get(f"/v1/graph-snapshots?app={flows.app}&limit=1")
        assert ([snapshot["snapshot"] for snapshot in first["snapshots"]], first["next"]) == (
            [later["snapshot"]],
            later["snapshot"],
        )
        rest = await other_web.get(f"/v1/graph-snapshots?after={first['next']}")
        assert (rest["snapshots"], rest["next"]) == ([snapshot_answer.data], None)
        whole = await other_web.get(snapshot_path)
        assert whole["run_state"]["vars"]["order"] == 7
        assert {**whole, "run_state": None} == {**snapshot_answer.data, "run_state": None}

        await _of_strangers(guarded, path, snapshot_path)

        new = await other_web("POST", f"{snapshot_path}/restore", {}, idempotency_key="k")
        again = await web("POST", f"{snapshot_path}/restore", {}, idempotency_key="k")
        assert (new.status, again.status, again.data["run"]) == (201, 200, new.data["run"])
        other = f"/v1/graph-runs/{new.data['run']}"
        assert other == new.headers["location"] != path
        await waiting_at(other_web, other)
        await other_web.post(f"{other}/waits/ok%2F1", {"payload": 1})
        assert (await ended(bed, other_web, other))["output"] == "order 7 paid"
        assert (await web.get(path))["status"] == "waiting"
        for what in ("tag", "query", "run"):
            long = await web("GET", f"/v1/graph-snapshots?{what}={'x' * 2_000}")
            assert (long.status, long.data["code"]) == (422, "invalid")
        assert (await web("DELETE", snapshot_path)).status == 204
        assert (await web("DELETE", snapshot_path)).data["code"] == "unknown_snapshot"


async def _of_strangers(guarded: Guarded, path: str, snapshot_path: str) -> None:
    """A client without the operator scope makes and restores no snapshot; another tenant has none."""
    far = await guarded.client("ada", "flows:run", "flows:operate", tenant="acme")
    weak = await guarded.client("eve", "flows:run")
    assert (await far.get("/v1/graph-snapshots"))["snapshots"] == []
    for method, more in (("GET", ""), ("POST", "/restore"), ("DELETE", "")):
        answer = await far(method, snapshot_path + more, {} if method == "POST" else None)
        assert (answer.status, answer.data["code"]) == (404, "unknown_snapshot"), method
        if method != "GET":
            refused_answer = await weak(
                method, snapshot_path + more, {} if method == "POST" else None
            )
            assert refused_answer.status == 403
    assert (await weak("POST", f"{path}/snapshots", {"name": "n"})).status == 403


async def test_unknown_flows_and_runs_are_404(bed: Bed) -> None:
    """Unknown flows and runs, runs of other agents, and all of another tenant; an ambiguous flow is 422."""
    async with flowing(bed) as (web, _, flows), guarded_on(bed) as guarded:
        chat = await bed.submit(await bed.serve(_nothing), {"text": "x"})
        for path in (f"/v1/graph-runs/{chat}", "/v1/graph-runs/nowhere"):
            for more in ("", "/ledger"):
                answer = await web("GET", path + more)
                assert (answer.status, answer.data["code"]) == (404, "unknown_run"), path
        for flow in ("nothing/runs", f"refund/runs?app={guarded.app}"):
            answer = await web("POST", f"/v1/flows/{flow}", {})
            assert answer.status == 404
        none = await web("POST", "/v1/flows/nothing/runs", {})
        assert (none.status, none.data["code"]) == (404, "unknown_flow")
        await _of_another_tenant(guarded, await started(web))
        other = flows_at(bed.name().type, REFUND)
        await other.register(bed.runtime)
        two = await web("POST", "/v1/flows/refund/runs", {})
        assert (two.status, two.data["code"]) == (422, "ambiguous_flow")
        answer_of_app = await web("POST", f"/v1/flows/refund/runs?app={flows.app}", {})
        assert answer_of_app.status == 201


async def _nothing(_ctx: Any, _inbox: Any) -> None:
    """An agent that is no graph."""


async def _of_another_tenant(guarded: Guarded, path: str) -> None:
    far = await guarded.client("ada", "flows:run", "flows:operate", tenant="acme")
    near = await guarded.client("bob", "flows:run", "flows:operate")
    view = await waiting_at(near, path)
    for method, more, body in (
        ("GET", "", None),
        ("GET", "/ledger", None),
        ("POST", "/waits/ok%2F1", {"payload": 1}),
        ("POST", "/cancel", {}),
    ):
        answer = await far(method, path + more, body)
        assert (answer.status, answer.data["code"]) == (404, "unknown_run"), more
    assert (await far.get("/v1/graph-runs"))["runs"] == []
    assert {**await near.get(path), "updated_at": None} == {**view, "updated_at": None}
    heard_path = await started(near, "heard", scope="global")
    await waiting_at(near, heard_path)
    assert (await far.post("/v1/events", {"name": "paid"}))["delivered"] == 0
    assert (await near.post("/v1/events", {"name": "paid"}))["delivered"] == 1


async def test_a_host_serves_flows_alone_or_beside_agents(bed: Bed) -> None:
    """As `callboard host` and `callboard serve` find them; sessions are those of the agents."""
    runtime: Runtime = bed.runtime
    alone, beside, hosted = (flows_at(bed.name().type, REFUND) for _ in range(3))
    agent = Echo().agent()

    async def function(_: Runtime) -> Any:
        return [beside, agent]

    none = await serve_app(runtime, "m:APP", alone)
    some = await serve_app(runtime, "m:APP", function)
    await serve_all(runtime, {"m:APP": hosted})

    assert (none.modes, some.modes) == ({}, {"normal": agent})
    assert {alone.app, beside.app, hosted.app} <= {*runtime.serves}
    with pytest.raises(RegistrationError, match="two flows are named 'refund'"):
        flows_at("x", REFUND, REFUND)


@pytest.mark.item(427)
async def test_a_run_is_paused_messaged_and_limited(bed: Bed) -> None:
    """By a process that executes nothing.

    The state shows it at once; the run applies it when it continues.
    """
    async with flowing(bed) as (_, web, _flows):
        path = await started(web, order=7)
        await waiting_at(web, path)
        await web.post(f"{path}/pause", {"reason": "lunch"})
        await web.post(f"{path}/steer", {"message": "quick"})
        await web.post(f"{path}/limits", {"updates": {"max_iterations": 7}})
        await web.post(f"{path}/waits/ok%2F1", {"payload": "yes"})
        view = await web.get(path)
        assert (view["is_paused"], view["output"]) == (True, None)
        assert view["vars"]["_runtime"]["inbox"][0]["message"]["content"] == "quick"
        assert view["limits"]["iterations"]["max"] == 7
        await web.post(f"{path}/resume")
        assert await bed.result(run_of(path)) == "order 7 paid"
        late = await web("POST", f"{path}/pause", {})
        assert (late.status, "it is completed" in late.data["detail"]) == (422, True)
