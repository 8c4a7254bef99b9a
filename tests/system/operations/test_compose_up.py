"""The containers, tested by an external client through the published ports."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from typing import TYPE_CHECKING, Any, Final

import httpx2
import pytest

from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.log_entry import EntryKind
from compose._assembly.runtime import build_postgres_runtime
from compose._assembly.settings import Settings
from tests.harness.rawnats import RawNats, RawNatsError, raw_nats
from tests.system.containers import APIS, HOSTS, SERVERS, UP_LIMIT_S, Stack, brought_up
from tests.system.waiting import until

if TYPE_CHECKING:
    from actors._kernel.runtime.ids import RunId
    from actors._runtime import Runtime

CLERK: Final = AgentId("clerk", "a")
ITEMS: Final = [f"item-{n}" for n in range(8)]
LEASE_S: Final = "3"

pytestmark = pytest.mark.timeout(2 * UP_LIMIT_S)


async def test_another_container_continues_the_run_of_a_killed_host() -> None:
    """A run is started from outside, its host is killed, and the other host executes the rest once."""
    async with (
        brought_up(*SERVERS, *HOSTS, *APIS, CALLBOARD_LEASE_S=LEASE_S) as stack,
        client(stack) as rt,
    ):
        run_id = await rt.submit(CLERK, {"items": ITEMS, "pace_s": 0.5})
        first = await machine_of_first_step(rt, run_id)
        other = next(host for host in HOSTS if host != first)
        await stack("kill", "--signal", "SIGKILL", first)
        async with asyncio.timeout(60):
            output: Any = await rt.result(run_id)
        alive = await answer(stack, other, "readyz")

        assert output["done"] == ITEMS
        assert output["machines"] == sorted(HOSTS)
        assert alive["ready"]

        await stack("up", "--detach", "--wait", "--no-build", first)
        await asks_and_publishes(stack)
        await talks_over_http(stack)
        for service in (first, APIS[0]):
            await leaves_when_told(stack, service)
        for service in (*SERVERS, *HOSTS, *APIS):
            is_locked_up(stack.inspect(service))


async def test_two_brokers_continue_when_the_third_is_killed() -> None:
    """With the profile `cluster` each stream is on three servers.

    The others have the messages of a dead one.
    """
    cluster = {
        "COMPOSE_PROFILES": "cluster",
        "NATS_MODE": "cluster",
        "CALLBOARD_NATS_REPLICAS": "3",
        "CALLBOARD_LEASE_S": LEASE_S,
    }
    services = (*SERVERS, "nats-2", "nats-3", *HOSTS)
    async with brought_up(*services, **cluster) as stack, client(stack) as runtime:
        async with outsider(stack) as crm:
            await publish(crm, "before")
            copies = await copies_of_streams(stack)
            await stack("kill", "--signal", "SIGKILL", "nats-2")
            await publish(crm, "after")
        await until_all_done(runtime, AgentId("clerk", "b"), 2)

        assert copies == {"MAIL": 3, "EDGE": 3, "TOPIC": 3, "DEAD": 3}


async def publish(crm: RawNats, name: str) -> None:
    """Publish until it is acknowledged, with one id: a stream that lost its leader refuses for seconds."""
    body = json.dumps({"items": [name]}).encode()

    async def is_acknowledged() -> bool:
        try:
            ack = await crm.publish("agent.v1.default.clerk.b.ext.crm", body, {"Nats-Msg-Id": name})
        except (RawNatsError, TimeoutError):
            return False
        return "error" not in ack

    await until(is_acknowledged, f"{name} acknowledged", limit_s=60)


async def copies_of_streams(stack: Stack) -> dict[str, int]:
    """Return on how many servers each stream is, by the monitoring port."""
    url = f"http://127.0.0.1:{stack.env['NATS_MONITOR_PORT']}/jsz?acc=CALLBOARD&streams=1&config=1"

    def read() -> Any:
        with urllib.request.urlopen(url, timeout=5) as response:
            return json.load(response)

    report = await asyncio.to_thread(read)
    [account] = report["account_details"]
    configs = [stream["config"] for stream in account["stream_detail"]]
    return {config["name"].partition("_")[0]: config["num_replicas"] for config in configs}


def client(stack: Stack) -> Any:
    """Yield a client by the published port of PostgreSQL."""
    url = stack.postgres_url
    settings = Settings(postgres_url=url, start_wait_s=10)
    return build_postgres_runtime(url, settings=settings, serve=False)


def outsider(stack: Stack) -> Any:
    """Yield a service that knows the broker only, by its published port."""
    return raw_nats(stack.outsider_url, inbox="_INBOX_crm")


async def machine_of_first_step(runtime: Runtime, run_id: RunId) -> str:
    """Return the container that executed the first item."""
    async with asyncio.timeout(30):
        async for entry in runtime.tail(run_id):
            if entry.kind == EntryKind.EFFECT_RESULT:
                value: Any = entry.payload["value"]
                return str(value["machine"])
    raise AssertionError("the run ended without a step")


async def until_all_done(runtime: Runtime, agent: AgentId, count: int) -> None:
    """Return when this many runs of the agent have completed."""

    async def done() -> bool:
        rows = await runtime.store.lists.runs(agent=agent, limit=10)
        return sum(row.status == "COMPLETED" for row in rows) == count

    await until(done, f"{count} runs of {agent} completed", limit_s=60)


async def asks_and_publishes(stack: Stack) -> None:
    """Ask an agent by the broker, and check that requests without rights are refused."""
    async with outsider(stack) as crm:
        greeting = await ask(crm, "ask.v1.default.greeter.desk.crm", {"name": "Ada"})
        await crm.send(b"PUB agent.v1.default.clerk.a.in 2\r\n{}\r\n")
        refused = await crm.line()

    assert greeting == {"text": "Good morning, Ada.", "by": "desk"}
    assert b"Permissions Violation" in refused


async def ask(crm: RawNats, subject: str, body: dict[str, Any]) -> Any:
    """Return the answer's body."""
    frame = await crm.request(subject, json.dumps(body).encode())
    assert b"Nats-Service-Error" not in frame.head, frame
    assert not frame.head.startswith(b"NATS/1.0 503"), "no host answers at this subject"
    return json.loads(frame.body)


async def talks_over_http(stack: Stack) -> None:
    """Check that a token of one API process is valid at the other, and that no request passes without one."""
    token = (await stack("exec", "-T", APIS[0], "callboard", "tokens", "create", "ada")).split()[-1]
    urls = [f"http://127.0.0.1:{stack.http_port(api)}" for api in APIS]
    bearer = {"authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(timeout=60, trust_env=False) as asking:
        refused = await asking.get(f"{urls[0]}/v1/sessions")
        body = {"session_id": "s"}
        session_answer = await asking.post(f"{urls[0]}/v1/sessions", json=body, headers=bearer)
        run_answer = await asking.post(
            f"{urls[1]}/v1/sessions/s/runs",
            json={"text": "hello"},
            headers={**bearer, "prefer": "wait=30"},
        )

    assert (refused.status_code, session_answer.status_code) == (401, 201)
    assert run_answer.json()["output"] == "You said hello"


async def leaves_when_told(stack: Stack, service: str) -> None:
    """Check that after SIGTERM the container exits with 0, and the other host has its agents."""
    await stack("stop", service)
    state = stack.inspect(service)["State"]

    assert state["ExitCode"] == 0
    assert not state["OOMKilled"]


def is_locked_up(container: dict[str, Any]) -> None:
    """Check that it has no root, no writable image and no port for other machines."""
    config, host = container["Config"], container["HostConfig"]

    assert config["User"].split(":")[0] not in {"", "0", "root"}
    assert host["ReadonlyRootfs"]
    assert host["CapDrop"] == ["ALL"]
    assert host["Memory"] > 0
    published = [binding["HostIp"] for ports in host["PortBindings"].values() for binding in ports]
    assert set(published) <= {"127.0.0.1"}


async def answer(stack: Stack, host: str, path: str) -> Any:
    """Return a host's answer over HTTP."""
    url = f"http://127.0.0.1:{stack.http_port(host)}/{path}"

    def read() -> Any:
        with urllib.request.urlopen(url, timeout=5) as response:
            return json.load(response)

    return await asyncio.to_thread(read)
