"""Pages of flows over HTTP: the served flows, and a run at any step.

Nothing a client wrote is executed in them.
"""

from __future__ import annotations

import json
import re
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import pytest

from actors._runtime.replay.verdict import row_of
from actors._workflow.hosted import graph_run, ledger_feed
from actors._workflow.hosted.runs import FlowRuns
from actors._workflow.hosted.starting import keep_snapshot
from actors.workflow import (
    Effect,
    EffectOutcome,
    EffectType,
    Flows,
    InMemoryArtifactStore,
    Snapshot,
    StepPlan,
    WorkflowSpec,
    tool_calls,
)
from compose._web.pages.flows import flows as flow_pages
from compose._web.pages.flows import run_page
from compose.web import app
from tests.behaviour.guarded import guarded_on
from tests.behaviour.test_http_graphs import flowing, run_of, started, waiting_at
from tests.behaviour.test_pages import EVIL, HTML, page_of
from tests.behaviour.web import WebClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors.workflow import RunState
    from tests.behaviour.bed import Bed
    from tests.harness.elements import Elements

STRANGE: Final = f"<html><script>fetch('/v1/flows')</script>{'x' * 100}</html>"


def scrubbed(page: Elements) -> list[str]:
    """Return the step numbers of a page's slider."""
    [slider] = [element for element in page.all("input") if element.get("id") == "scrub"]
    return str(slider["data-places"]).split()


async def vars_of(web: WebClient, path: str) -> Any:
    """Return the vars that a page shows."""
    answer = await web("GET", path, accept=HTML)
    match = re.search(r'id="vars">(.*?)</pre>', answer.body.decode(), re.DOTALL)
    assert match is not None, answer
    return json.loads(match[1].replace("&#34;", '"'))


async def test_pages_of_flows_list_the_served_flows(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes of each flow, as a drawing and as a list, and its runs in pages, on each process."""
    monkeypatch.setattr(flow_pages, "_LISTED", 2)
    async with flowing(bed) as (_, web, flows):
        paths = [await started(web, order=n) for n in range(3)]
        for path in paths:
            await waiting_at(web, path)
        list_page = await page_of(web, "/flows")
        here = f"/flows/{flows.app}/refund"
        assert here in list_page.links()
        assert "3 running" in list_page.text
        page = await page_of(web, here)
        assert len(page.all("g", "node")) == len(page.all("li", "card")) == 3
        assert len(page.all("path", "edge")) == 2
        for words in ("ask user", "tool calls", "2 attempts at most", "goes to pay", "Pay."):
            assert words in page.text, words
        [older] = [link for link in page.links() if link.startswith("?after=")]
        more = await page_of(web, here + older)
        run_links = [
            link for link in page.links() + more.links() if link.startswith("/graph-runs/")
        ]
        assert run_links == [f"/graph-runs/{run_of(path)}" for path in reversed(paths)]
        assert not [link for link in more.links() if link.startswith("?after=")]
        for bad in (f"/flows/{flows.app}/nothing", "/flows/nothing/refund"):
            assert "no flow" in (await page_of(web, bad, 404)).text
        assert (await web("GET", f"{here}?after={'x' * 2000}", accept=HTML)).status == 404
        far = await page_of(WebClient(app(bed.runtime)), "/")
        assert "/flows" in far.links()


async def test_a_run_is_read_step_by_step(bed: Bed) -> None:
    """States of nodes and vars at that step; the current step has a form for the wait."""
    async with flowing(bed) as (_, web, _flows):
        path = await started(web, order=7)
        here = f"/graph-runs/{run_of(path)}"
        await waiting_at(web, path)
        page = await page_of(web, here)
        buttons = [
            button.get("value") for button in page.all("button") if button.get("name") == "response"
        ]
        assert buttons == ["yes", "no"]
        assert [node["class"] for node in page.all("g", "node")] == [
            "node waiting",
            "node not-reached",
            "node not-reached",
        ]
        await web.post(f"{path}/waits/ok%2F1", {"payload": {"response": "yes"}})
        await bed.ended(run_of(path))
        page = await page_of(web, here)
        assert not page.all("article", "approval")
        assert {node["class"] for node in page.all("g", "node")} == {"node done"}
        assert len(page.all("path", "taken")) == 2
        assert "chain of hashes is whole" in page.text
        positions = scrubbed(page)
        records = (await web.get(f"{path}/ledger?limit=500"))["records"]
        assert len(positions) == len(records)
        states = [await vars_of(web, f"{here}?step={position}") for position in positions]
        base = {"order": 7}
        answered = base | {"answer": {"response": "yes"}}
        assert [state for n, state in enumerate(states) if n == 0 or state != states[n - 1]] == [
            base,
            answered,
            answered | {"paid": "order 7 paid"},
        ]
        middle = await page_of(web, f"{here}?step={positions[3]}")
        assert "As it was, step 4 of" in middle.text
        assert [node["class"] for node in middle.all("g", "node")][0:2] == ["node done", "node now"]
        for bad in ("x", "1", "9" * 30 + ".0", "-1.0"):
            assert (await web("GET", f"{here}?step={bad}", accept=HTML)).status == 400, bad
        assert (await web("GET", f"{here}?step=999999.0", accept=HTML)).status == 200


async def test_a_long_run_is_read_in_parts(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record is in one part. Parts are linked, and none reads more of the log than it shows."""
    monkeypatch.setattr(graph_run, "ENTRIES_KEPT", 2)
    monkeypatch.setattr(ledger_feed, "_REACH", 4)
    monkeypatch.setattr(run_page, "WHOLE", 3)
    async with flowing(bed) as (_, web, _flows):
        path = await started(web, "counted")
        here = f"/graph-runs/{run_of(path)}"
        await waiting_at(web, path)
        records = (await web.get(f"{path}/ledger?limit=500"))["records"]
        steps: list[str] = []
        at = here
        while True:
            page = await page_of(web, at)
            assert "chain of hashes is whole" in page.text
            steps = scrubbed(page) + steps
            first = int(steps[0].partition(".")[0])
            earlier = [
                link
                for link in page.links()
                if link.startswith("?step=") and int(re.findall(r"\d+", link)[0]) < first
            ]
            if not earlier:
                break
            at = here + earlier[0]
        assert len(steps) == len({*steps}) == len(records) > 120
        states = [await vars_of(web, f"{here}?step={steps[n]}") for n in (0, 30, -1)]
        assert [state.get("n") for state in states] == [None, 30, 120]


async def test_a_changed_record_is_found(bed: Bed) -> None:
    """The page names the first bad record of the chain."""
    async with flowing(bed) as (_, web, _flows):
        path = await started(web, order=7)
        await waiting_at(web, path)
        row = await bed.runtime.store.reads.run(run_of(path))
        assert row is not None
        part = await run_page.read_part(bed.runtime, row, None)
        bad = replace(part.steps[1], record={**part.steps[1].record, "node_id": "pay"})
        changed = replace(part, steps=(part.steps[0], bad, *part.steps[2:]))
        assert (part.chain(), changed.chain()) == ((True, None), (False, 1))


async def test_a_snapshot_on_a_page_starts_another_run(bed: Bed) -> None:
    """The snapshot is a file; the run that it starts has its wait."""
    async with flowing(bed) as (_, web, flows):
        path = await started(web, order=7)
        await waiting_at(web, path)
        answer = await web("GET", f"{path}/snapshot?name=before")
        assert answer.headers["content-disposition"].startswith("attachment")
        saved = Snapshot(**answer.data)
        assert (saved.name, saved.spec_hash) == ("before", flows.specs["refund"].hash)
        again = await FlowRuns(bed.runtime, flows).restore(saved)
        view = await waiting_at(web, f"/v1/graph-runs/{again}")
        assert (view["wait"]["key"], view["vars"]["order"]) == ("ok/1", 7)


async def test_stored_snapshots_are_listed_and_those_of_another_version_marked(bed: Bed) -> None:
    """On each process. To restore one of another version is a conflict, unless it is forced."""
    async with flowing(bed) as (web, other_web, flows):
        path = await started(other_web, order=7)
        await waiting_at(other_web, path)
        run = run_of(path)
        row = await row_of(bed.runtime.store, run)
        snapshot = await FlowRuns(bed.runtime, flows).snapshot(run, "old", keep=False)
        rows = bed.runtime.store.data.run_snapshots
        await keep_snapshot(rows, replace(snapshot, spec_hash="0" * 32), row, seq=1, by="ada")
        await other_web.post(f"{path}/snapshots", {"name": "new", "tags": ["prices"]})
        page = await page_of(other_web, f"/graph-runs/{run}")
        restore_path = f"/v1/graph-snapshots/{snapshot.snapshot_id}/restore"
        refused = await web("POST", restore_path, {})
        forced = await web("POST", restore_path, {"force": True})

    marked = [
        str(attributes["data-snapshot"])
        for _, attributes in page.found
        if "data-snapshot" in attributes
    ]
    assert (len(marked), snapshot.snapshot_id in marked) == (2, True)
    assert page.text.count("of another version of the flow") == 1
    assert "prices" in page.text
    assert (refused.status, refused.data["code"]) == (409, "spec_changed")
    assert forced.status == 201


NEXT: Final = f"next {EVIL}"


def _ask(run: RunState, _ctx: Any) -> StepPlan:
    run.vars[EVIL] = {EVIL: [EVIL]}
    payload = {"prompt": EVIL, "choices": [EVIL], "wait_key": EVIL}
    return StepPlan(EVIL, Effect(EffectType.ASK_USER, payload, "answer"), next_node="fork")


def _fork(_run: RunState, _ctx: Any) -> StepPlan:
    return StepPlan("fork", parallel={EVIL: NEXT}, next_node="end")


def _fail(_run: RunState, _ctx: Any) -> StepPlan:
    return StepPlan(NEXT, Effect(EffectType.TOOL_CALLS, {EVIL: EVIL}, EVIL.replace(".", "")), "end")


def _end(_run: RunState, _ctx: Any) -> StepPlan:
    return StepPlan("end", complete_output=EVIL)


_ask.__doc__ = _ask.__qualname__ = EVIL
HOSTILE: Final = WorkflowSpec(EVIL, EVIL, {EVIL: _ask, "fork": _fork, NEXT: _fail, "end": _end})


def _refused(_run: RunState, _effect: Effect) -> EffectOutcome:
    return EffectOutcome.failed(EVIL, retryable=False)


@asynccontextmanager
async def hostile(bed: Bed) -> AsyncIterator[tuple[WebClient, Flows]]:
    """Yield a client, and a flow whose texts are all markup."""
    flows = Flows(bed.name().type, [HOSTILE], effect_handlers={EffectType.TOOL_CALLS: _refused})
    await flows.register(bed.runtime)
    yield WebClient(app(bed.runtime)), flows


async def test_pages_of_flows_execute_no_client_input(bed: Bed) -> None:
    """Names of flows, nodes and branches, prompts, choices, keys, vars, errors, messages, reasons."""
    async with hostile(bed) as (web, flows):
        run = await FlowRuns(bed.runtime, flows).start(EVIL, vars={"x": EVIL}, id=EVIL[:60])
        path, here = f"/v1/graph-runs/{run}", f"/graph-runs/{run}"
        await waiting_at(web, path)
        pages = [await page_of(web, here)]
        [wait] = pages[0].all("article", "approval")
        assert wait["data-wait"] == EVIL
        await web.post(f"{path}/steer", {"message": EVIL})
        await web.post(f"{path}/pause", {"reason": EVIL})
        pages.append(await page_of(web, here))
        await web.post(f"{path}/resume")
        name = quote(EVIL, safe="")
        await web.post(f"{path}/waits/{name}", {"payload": {"response": EVIL}})
        await bed.ended(run)
        failed = await page_of(web, here)
        assert "It failed" in failed.text
        pages += [await page_of(web, f"{here}?step={position}") for position in scrubbed(failed)]
        pages += [await page_of(web, "/flows"), await page_of(web, f"/flows/{flows.app}/{name}")]
        for page in (failed, *pages):
            assert page.text.count("<script>alert(1)</script>") > 0
            assert len(page.all("script")) == 1


async def test_only_operators_see_buttons(bed: Bed) -> None:
    """A client that may only run flows reads and answers. A page of another tenant's run is 404."""
    async with flowing(bed) as (web, _, _flows), guarded_on(bed) as guarded:
        path = await started(web)
        await waiting_at(web, path)
        here = f"/graph-runs/{run_of(path)}"
        for scopes, expected_actions in (
            (("flows:run",), ["answer"]),
            (("flows:run", "flows:operate"), ["answer", "cancel", "keep", "pause", "steer"]),
        ):
            client = await guarded.client("ada", *scopes)
            page = await page_of(client, here)
            actions = [
                attributes["data-do"] for _, attributes in page.found if "data-do" in attributes
            ]
            assert sorted(map(str, actions)) == expected_actions
        far = await guarded.client("ada", "flows:run", tenant="acme")
        assert "unknown run" in (await page_of(far, here, 404)).text
        assert "3 running" not in (await page_of(far, "/flows")).text
        assert here not in (await page_of(far, f"/flows/{_flows.app}/refund")).links()


@pytest.mark.item(461, 462)
async def test_evidence_of_a_run_is_listed_and_saved_as_files(bed: Bed) -> None:
    """Texts of other authors are escaped on the page, and never rendered by a browser.

    Pages of other runs do not list the evidence.
    """
    artifacts, app_ = InMemoryArtifactStore(), bed.name().type
    tools = {"fetch_url": lambda url: {"url": url, "content": STRANGE}}
    flows = Flows(
        app_,
        [fetching("fetch", EVIL), WorkflowSpec("idle", "end", {"end": done})],
        effect_handlers={EffectType.TOOL_CALLS: tool_calls(tools)},
        artifact_store=artifacts,
    )
    await flows.register(bed.runtime)
    web = WebClient(app(bed.runtime))
    path, other = [await started(web, flow) for flow in ("fetch", "idle")]
    for run_path in (path, other):
        await bed.ended(run_of(run_path))
    here = f"/graph-runs/{run_of(path)}"

    page = await page_of(web, here)
    [link] = [link for link in page.links() if "/evidence/" in link]
    file = await web("GET", link, accept=HTML)

    for words in ("fetch_url", EVIL, "content", f"{len(STRANGE)} B", "at get"):
        assert words in page.text, words
    assert file.status == 200
    assert file.body.decode() == STRANGE
    assert file.headers["content-type"] == "text/plain; charset=utf-8"
    assert file.headers["content-disposition"].startswith("attachment; ")
    assert file.headers["x-content-type-options"] == "nosniff"
    assert file.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert not [
        link
        for link in (await page_of(web, f"/graph-runs/{run_of(other)}")).links()
        if "/evidence/" in link
    ]
    stolen = link.replace(run_of(path), run_of(other))
    nameless = link.rpartition("/")[0]
    for bad in (stolen, f"{nameless}/stdout", f"{here}/evidence/nothing/content"):
        assert "evidence" in (await page_of(web, bad, 404)).text
    for artifact in artifacts.list_all():
        artifacts.delete(artifact.artifact_id)
    assert "it was deleted" in (await page_of(web, here)).text
    assert (await web("GET", link, accept=HTML)).status == 404


def fetching(name: str, url: str) -> WorkflowSpec:
    """Return a graph that fetches an external page."""
    calls = [{"name": "fetch_url", "arguments": {"url": url}}]
    effect = Effect(EffectType.TOOL_CALLS, {"tool_calls": calls}, "got")
    return WorkflowSpec(
        name, "get", {"get": lambda run, ctx: StepPlan("get", effect, next_node="end"), "end": done}
    )


def done(run: RunState, ctx: Any) -> StepPlan:
    """End the run."""
    return StepPlan("end", complete_output={})
