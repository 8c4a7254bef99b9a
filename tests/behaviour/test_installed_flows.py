"""Runs of installed flows: started over HTTP, executed by hosts that load the bundle, pinned to its content."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.log_entry import EntryKind as K
from actors._workflow.bundles import INSTALLED_APP, StoredBundles
from actors._workflow.installed import InstalledFlows
from actors.workflow import EffectOutcome, EffectType
from compose._host.loader import find_served, serve_all
from compose.web import app
from tests.behaviour.bed import LIMIT_S
from tests.behaviour.test_http_graphs import run_of, started, waiting_at
from tests.behaviour.test_http_installs import REFUND, with_own_name
from tests.behaviour.web import WebClient
from tests.unit.workflow.test_bundles import files_of, zipped

if TYPE_CHECKING:
    from actors._runtime import Runtime
    from actors.workflow import RunState
    from tests.behaviour.bed import Bed

pytestmark = pytest.mark.item(469, 470)
PAYS: dict[str, Any] = {
    "flow": 1,
    "id": "pays",
    "version": "1",
    "start": "p",
    "nodes": {
        "p": {
            "effect": "tool_calls",
            "with": {"tool_calls": [{"name": "pay", "arguments": {"order": "${vars.order}"}}]},
            "into": "paid",
            "next": "e",
        },
        "e": {"end": "${vars.paid}"},
    },
}


async def parked(bed: Bed, web: WebClient, path: str) -> str:
    """Return the reason why a run is parked."""
    async with asyncio.timeout(LIMIT_S):
        while (view := await web.get(path))["parked"] is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert view["parked"] == "version"
    entries = [
        entry async for entry in bed.runtime.entries(run_of(path)) if entry.kind == K.RUN_PARKED
    ]
    return str(entries[-1].payload)


def bundles_at(runtime: Runtime) -> StoredBundles:
    """Return the registry of the default tenant."""
    return StoredBundles(runtime.store.data.flow_bundles, runtime.store.data.artifacts, "default")


async def test_a_run_of_an_installed_flow_is_executed_and_holds_its_bundle(bed: Bed) -> None:
    """Started by id alone. It is pinned to the content, and its bundle is not removed while it is open."""
    web = WebClient(app(bed.runtime))
    await serve_all(bed.runtime, {"x": find_served("actors.workflow.installed:serve")})
    name, document = with_own_name(bed, REFUND)
    installed = await web.post("/v1/flows", document)
    path = await started(web, name, order={"total": 40})
    view = await waiting_at(web, path)
    refused = await web("DELETE", f"/v1/flows/{name}")
    page = await web.get(f"/v1/graph-runs?flow={name}")
    replied = await web("POST", f"{path}/waits/ok", {"payload": {"response": "yes"}})
    await bed.ended(run_of(path))
    done = await web.get(path)

    assert (view["flow"], view["app"]) == (f"{name}@1.2", INSTALLED_APP)
    assert view["wait"]["prompt"] == "Refund 40?"
    assert view["vars"]["_runtime"]["bundle"] == installed["hash"]
    assert (refused.status, refused.data["code"]) == (409, "open_runs")
    assert "1 of its runs is open" in refused.data["detail"]
    assert "callboard graphs list installed" in refused.data["remedy"]
    assert [run["run"] for run in page["runs"]] == [run_of(path)]
    assert (replied.status, done["status"], done["output"]) == (200, "completed", "yes")
    assert (await web("GET", f"{path}/snapshot")).status == 200
    assert (await web("DELETE", f"/v1/flows/{name}@1.2")).status == 204
    answer = await web("POST", f"/v1/flows/{name}/runs", {"vars": {}})
    assert (answer.status, answer.data["code"]) == (404, "unknown_flow")


async def test_a_host_loads_an_unknown_bundle(bed: Bed) -> None:
    """Sub-flows are those of the bundle. An idempotency key names one run."""
    host, web = InstalledFlows(), WebClient(app(bed.runtime))
    await host.register(bed.runtime)
    name, files = f"b-{bed.name().type}", {}
    files = files_of(
        {
            "flows/root.json": json.dumps(
                {
                    "flow": 1,
                    "id": "root",
                    "start": "c",
                    "nodes": {
                        "c": {"flow": "child", "with": {"n": 4}, "into": "c", "next": "e"},
                        "e": {"end": "${vars.c.output}"},
                    },
                }
            ).encode()
        },
        bundle_id=name,
        flows={"child": "flows/child.json", "root": "flows/root.json"},
        entrypoints=[{"flow_id": "root"}, {"flow_id": "child"}],
    )
    await bundles_at(bed.runtime).install(zipped(files))
    first = await web("POST", f"/v1/flows/{name}@1/runs", {}, idempotency_key="k")
    again = await web("POST", f"/v1/flows/{name}@1/runs", {}, idempotency_key="k")
    below = await web.post(f"/v1/flows/{name}@1.child/runs", {"vars": {"n": 5}})
    await bed.ended(run_of(first.data["run"]))
    await bed.ended(run_of(below["run"]))

    assert (first.status, again.status) == (201, 200)
    assert first.data["run"] == again.data["run"]
    assert (await web.get(f"/v1/graph-runs/{first.data['run']}"))["output"] == 8
    assert (await web.get(f"/v1/graph-runs/{below['run']}"))["output"] == 10


async def test_a_run_with_missing_handlers_is_parked_by_name(bed: Bed) -> None:
    """Handlers are missing: the run waits for a host that has them."""
    web = WebClient(app(bed.runtime))
    await InstalledFlows().register(bed.runtime)
    name, document = with_own_name(bed, PAYS)
    await web.post("/v1/flows", document)
    path = await started(web, name, order=7)
    why = await parked(bed, web, path)

    assert f"flow {name}@1" in why
    assert "has no handler" in why

    def pay(_run: RunState, effect: Any) -> EffectOutcome:
        [call] = effect.payload["tool_calls"]
        return EffectOutcome.completed(f"order {call['arguments']['order']} paid")

    await InstalledFlows(effect_handlers={EffectType.TOOL_CALLS: pay}).register(bed.runtime)
    await bed.runtime.resolve(run_of(path))
    await bed.ended(run_of(path))
    assert (await web.get(path))["output"] == "order 7 paid"


async def test_a_run_continues_with_the_content_it_started_with(bed: Bed) -> None:
    """The bundle's rows were replaced by other content: the run is parked and executes no other code."""
    web = WebClient(app(bed.runtime))
    await InstalledFlows().register(bed.runtime)
    name, document = with_own_name(bed, REFUND)
    first = await web.post("/v1/flows", document)
    path = await started(web, name, order={"total": 1})
    await waiting_at(web, path)
    if bed.drops:
        await bed.seen(run_of(path), "run.suspended")
    rows = bed.runtime.store.data.flow_bundles
    assert await rows.remove("default", name, "1.2", run_keys=[]) == 0
    other = await web.post("/v1/flows", document.replace(b"Refunds", b"Others"))
    await web("POST", f"{path}/waits/ok", {"payload": {"response": "yes"}})
    if not bed.drops:
        return

    why = await parked(bed, web, path)
    assert first["hash"] in why
    assert other["hash"] in why
