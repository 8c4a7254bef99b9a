"""Flows that are installed over HTTP, and executed by hosts that are killed."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.system.web.conversing import APP_NAME, client_of, done
from tests.unit.workflow.test_bundles import files_of, zipped

if TYPE_CHECKING:
    from tests.system.processes import Hosts

SERVE = "actors.workflow.installed:serve"
ASK: dict[str, Any] = {
    "flow": 1,
    "id": "asks",
    "version": "1",
    "start": "a",
    "nodes": {
        "a": {
            "effect": "ask_user",
            "with": {"prompt": "?", "wait_key": "ok"},
            "into": "n",
            "next": "c",
        },
        "c": {"end": "${vars.n.response * 2}"},
    },
}


@pytest.mark.costly
@pytest.mark.item(469, 470)
async def test_another_host_continues_a_run_of_an_installed_flow(fleet: Hosts) -> None:
    """The first host is killed while the run waits. The second one does not know the bundle."""
    _, url = await fleet.web("--no-agents", "--app", APP_NAME)
    first = fleet.start(SERVE)
    await first.until("host.serving")
    async with client_of(url) as web:
        installed = await done(await web.post("/v1/flows", json=ASK))
        run = await done(await web.post("/v1/flows/asks/runs", json={}))
        path = f"/v1/graph-runs/{run['run']}"
        while not (await done(await web.get(path)))["waits"]:
            pass
        first.send(signal.SIGKILL)
        await first.exit_code()
        second = fleet.start(SERVE)
        await second.until("host.serving")
        refusal = await web.request("DELETE", "/v1/flows/asks@1")
        await done(await web.post(f"{path}/waits/ok", json={"payload": {"response": 4}}))
        while (view := await done(await web.get(path)))["status"] in {"running", "waiting"}:
            pass
        removed = await web.request("DELETE", "/v1/flows/asks@1")
        page = await web.get(f"/graph-runs/{run['run']}")

    assert installed["flow"] == "asks@1"
    assert (refusal.status_code, refusal.json()["code"]) == (409, "open_runs")
    assert (view["status"], view["output"]) == ("completed", 8)
    assert view["vars"]["_runtime"]["bundle"] == installed["hash"]
    assert removed.status_code == 204
    assert page.status_code == 200


@pytest.mark.costly
@pytest.mark.item(471)
async def test_a_crash_during_installs_leaves_only_complete_bundles(fleet: Hosts) -> None:
    """Each listed bundle can be opened; a missing one can be installed."""
    server, url = await fleet.web("--no-agents", "--app", APP_NAME)
    bundles = [
        zipped(files_of({"assets/a": bytes([n]) * 300_000}, bundle_id=f"b{n}")) for n in range(12)
    ]

    async def install(data: bytes) -> None:
        async with client_of(url) as web:
            await web.post("/v1/flows", content=data)

    tasks = [asyncio.ensure_future(install(bundle)) for bundle in bundles]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    server.send(signal.SIGKILL)
    await server.exit_code()
    await asyncio.gather(*tasks, return_exceptions=True)
    _, url = await fleet.web("--no-agents", "--app", APP_NAME)
    async with client_of(url) as web:
        flows = (await done(await web.get("/v1/flows")))["installed"]
        for flow in flows:
            assert (await web.get(f"/v1/flows/{flow['flow']}/schema")).status_code == 200
        for data in bundles:
            assert (await web.post("/v1/flows", content=data)).status_code in {200, 201}
        after = (await done(await web.get("/v1/flows")))["installed"]

    assert len(flows) > 0
    assert {flow["flow"] for flow in after} == {f"b{n}@1" for n in range(12)}
