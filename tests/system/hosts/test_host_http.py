"""A host's HTTP address: liveness, readiness, metrics; at start, outage and drain."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from actors._kernel.runtime.ids import AgentId
from tests.system.waiting import until, until_executing

if TYPE_CHECKING:
    from pathlib import Path

    from actors._runtime import Runtime
    from tests.harness.servers import OwnPostgres
    from tests.system.processes import HostProcess, Hosts

TEN = AgentId("ten", "a")
ANY_PORT = "127.0.0.1:0"


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


async def get(host: HostProcess, path: str) -> tuple[int, str]:
    """Return status and body of the host's answer."""
    url = (await host.until("host.http"))["url"]
    return await asyncio.to_thread(_get, f"{url}{path}")


async def readiness(host: HostProcess) -> tuple[int, dict[str, Any]]:
    """Return status and body of `/readyz`."""
    code, body = await get(host, "/readyz")
    return code, json.loads(body)


async def metrics(host: HostProcess) -> dict[tuple[str, str], float]:
    """Return every sample by its name and the values of its labels."""
    code, text = await get(host, "/metrics")
    assert code == 200
    return {
        (sample.name, "/".join(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def has_counted(host: HostProcess) -> bool:
    """Return whether a run's end is counted, shortly after its commit."""
    return (await metrics(host)).get(("callboard_runs_ended_total", "completed")) == 1


async def test_a_host_is_ready_counts_its_work_and_is_not_ready_while_it_drains(
    fleet: Hosts, client: Runtime, tmp_path: Path
) -> None:
    """`/readyz` is 503 from SIGTERM on, while the executing run continues to its end."""
    ledger = tmp_path / "ledger"
    host = await fleet.serving(http=ANY_PORT, lease_s=60)
    before = await readiness(host)
    await client.result(await client.submit(TEN, {"ledger": str(ledger)}))
    await until(lambda: has_counted(host), "the run is counted")
    counted = await metrics(host)
    waiting = await client.submit(AgentId("nobody", "a"), {"n": 1})
    job = {"ledger": str(tmp_path / "second"), "pace_s": 4, "slow": 1}
    run_id = await client.submit(TEN, job)
    await until_executing(tmp_path / "second", 1)
    host.send(signal.SIGTERM)
    await host.until("host.draining")
    draining = await readiness(host)
    alive, _ = await get(host, "/healthz")
    code = await host.exit_code()

    assert before == (200, {"ready": True, "phase": "serving", "reasons": []})
    assert counted["callboard_totals_up", ""] == 1
    assert counted["callboard_hosts", ""] == 1
    assert counted["callboard_host_serving", ""] == 1
    assert counted["callboard_host_broker_connected", ""] == 1
    assert counted["callboard_runs_ended_total", "completed"] == 1
    assert counted["callboard_effects_total", "ok/step"] == 10
    assert counted["callboard_wake_seconds_count", ""] >= 1
    assert counted["process_resident_memory_bytes", ""] > 1e6
    assert waiting
    assert draining[0] == 503
    assert draining[1]["phase"] == "draining"
    assert alive == 200
    assert code == 0
    assert (await client.status(run_id)).status != "FAILED"


async def test_a_host_without_its_database_is_not_ready_and_recovers(
    own_postgres: OwnPostgres, hosts: Hosts
) -> None:
    """During the outage `/readyz` names it and the lease, `/metrics` answers, `/healthz` is 200."""
    server = await asyncio.to_thread(own_postgres, durable=True)
    host = await hosts.serving(http=ANY_PORT, url=server.url, lease_s=3)
    await asyncio.to_thread(server.kill)
    (code, body), seen, (alive, _) = await asyncio.gather(
        readiness(host), metrics(host), get(host, "/healthz")
    )
    await asyncio.to_thread(server.start)

    async def is_ready() -> bool:
        return (await readiness(host))[0] == 200

    await until(is_ready, "ready again")
    assert code == 503
    assert "postgres" in {reason["check"] for reason in body["reasons"]}
    assert seen["callboard_totals_up", ""] == 0
    assert alive == 200


async def test_the_error_of_an_unusable_address_is_one_sentence(hosts: Hosts) -> None:
    """The host ends with the exit code of an invalid command."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        first = hosts.start(http=f"127.0.0.1:{port}")
        second = hosts.start(http="nowhere")
        codes = [await first.exit_code(), await second.exit_code()]

    assert codes == [2, 2]
    assert f"--http 127.0.0.1:{port}: Address already in use" in first.log.read_text()
    assert "write it HOST:PORT" in second.log.read_text()
    assert "Traceback" not in first.log.read_text() + second.log.read_text()


@pytest.mark.item(195)
async def test_a_host_that_still_waits_for_its_server_is_alive_and_not_ready(hosts: Hosts) -> None:
    """The address answers from the first moment, so a slow start does not count as a crash."""
    host = hosts.start(http=ANY_PORT, url="postgresql://nobody@127.0.0.1:1/none")
    code, body = await readiness(host)
    alive, _ = await get(host, "/healthz")
    host.send(signal.SIGTERM)

    assert (code, body["phase"], alive) == (503, "starting", 200)
    assert await host.exit_code() == 0
