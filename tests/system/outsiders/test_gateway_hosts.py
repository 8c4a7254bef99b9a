"""External clients get their answers and events over crashes of hosts, from any host."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from typing import TYPE_CHECKING, Any

import pytest
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from actors._kernel.runtime.ids import AgentId, RunId, run_id_of_submit
from broker._gateway.gateway import Gateway
from broker._gateway.streams import NatsDeltaBus
from compose import Settings
from compose._assembly.runtime import build_runtime
from tests.system.asking import PIECES, Waiter, outside
from tests.system.waiting import PATIENCE_S, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from actors._runtime import Runtime
    from tests.harness.servers import OwnNats, TestNats, TestPostgres
    from tests.system.asking import Answered, Outside
    from tests.system.processes import Hosts

SERVES = "tests.system.asking:TYPES"


@pytest.fixture
async def crm(fleet: Hosts, nats_server: TestNats, namespace: str) -> AsyncIterator[Outside]:
    """Yield an external service; hosts evict waiting runs."""
    fleet.more["suspend_after"] = 0.05
    async with outside(nats_server.url, namespace) as service:
        yield service


async def until_answered(ask: Callable[[], Awaitable[Answered]]) -> Answered:
    """Send a request again, under the same id, until it is answered, and return the answer."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(5):
                    return await ask()


@pytest.mark.item(199)
async def test_a_question_whose_host_is_killed_is_asked_again_and_answered_by_the_same_run(
    fleet: Hosts, crm: Outside
) -> None:
    """The run starts on the killed host, and continues when the question is sent again.

    The broker may deliver a request to the dead host before it notices the closed connection.
    """
    first = await fleet.serving(SERVES)
    lost = asyncio.create_task(crm.ask("waiter/q", 1, Nats_Msg_Id="q-1"))
    run = run_id_of_submit(AgentId("waiter", "q"), "ext:crm", "q-1")

    async def rests() -> bool:
        status = await crm.api("status", run=run)
        return status.code == 0 and status.body["status"] == "SUSPENDED"

    await until(rests, "the run waits for its signal")
    await fleet.serving(SERVES)
    first.send(signal.SIGKILL)
    await first.exit_code()
    again = asyncio.create_task(until_answered(lambda: crm.ask("waiter/q", 1, Nats_Msg_Id="q-1")))
    signal_answer = await until_answered(
        lambda: crm.api("signal", run=run, name="go", payload="done", id="s-1")
    )
    answer = await again
    lost.cancel()
    await asyncio.gather(lost, return_exceptions=True)

    assert signal_answer.code == 0
    assert (answer.body, answer.run) == ("done", run)


@pytest.fixture
async def door(
    fleet: Hosts, nats_server: TestNats, postgres_server: TestPostgres, namespace: str
) -> AsyncIterator[Runtime]:
    """Yield a host of this process that takes all requests, and serves no agent."""
    fleet.more["gateway"] = False
    settings = Settings(db_schema=fleet.schema, namespace=namespace, lease_s=10)
    async with build_runtime(nats_server.url, postgres_server.url, settings=settings) as runtime:
        yield runtime


def bus_of(door: Runtime) -> NatsDeltaBus:
    """Return the bus that carries pieces and notifications of ends to the gateway."""
    bus = door.live.bus
    assert isinstance(bus, NatsDeltaBus)
    return bus


async def until_heard(bus: NatsDeltaBus, subject: str) -> None:
    """Return once the broker forwards notifications."""
    await until(lambda: subject in bus._subscriptions, f"{subject} is heard")
    assert bus._client is not None
    await bus._client.flush()


async def test_a_run_is_watched_over_crashes_of_its_hosts(
    fleet: Hosts, crm: Outside, door: Runtime, tmp_path: Path
) -> None:
    """Every entry once, in order. Pieces of a new attempt are marked, and a reader can reconnect."""
    first = await fleet.serving(SERVES)
    bus, gate = bus_of(door), tmp_path / "gate"
    answer = await crm.api("submit", agent="teller/a", payload={"gate": str(gate)}, id="t-1")
    run = RunId(answer.body["run"])
    asking = asyncio.create_task(crm.ask("teller/a", Nats_Msg_Id="t-1"))
    events: list[dict[str, Any]] = []
    async with crm.watching(run=run) as messages:
        await until_heard(bus, bus._subjects.live(AgentId("teller", "a"), run))
        await crm.api("signal", run=run, name="go")
        async for message in messages:
            events.append(json.loads(message.data))
            pieces = [event for event in events if event["kind"] == "delta"]
            if len(pieces) == 2 and first.is_alive:
                first.send(signal.SIGKILL)
                await first.exit_code()
                await fleet.serving(SERVES)
            elif len(pieces) == 4:
                gate.touch()
            elif events[-1]["kind"] == "end":
                break
    entries = [event for event in events if event["kind"] == "entry"]
    pieces = [event for event in events if event["kind"] == "delta"]
    resumed = await crm.events(run=run, from_seq=entries[2]["seq"])

    numbered_pieces = [
        (event["attempt"], event["data"]["n"], event["data"]["text"]) for event in pieces
    ]
    assert numbered_pieces == [(1, n, PIECES[n]) for n in (0, 1)] + [
        (2, n, PIECES[n]) for n in range(4)
    ]
    assert [event["seq"] for event in entries] == list(range(len(entries)))
    assert (entries[-1]["attempt"], events[-1]["data"]["result"]) == (2, "".join(PIECES))
    assert resumed == [*entries[2:], events[-1]]
    assert (await asking).body == "".join(PIECES)


async def test_a_host_without_the_agent_is_notified_of_its_end(
    fleet: Hosts, crm: Outside, door: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not poll: waiters, by request or in its process, get the end as soon as it is recorded."""
    await fleet.serving(SERVES)
    monkeypatch.setattr("actors._runtime.client.client.FIRST_POLL_S", 600.0)
    bus = bus_of(door)
    ask_task = asyncio.create_task(crm.ask("waiter/told", Nats_Msg_Id="t"))
    run = run_id_of_submit(AgentId("waiter", "told"), "ext:crm", "t")
    watched = bus._subjects.live_end(AgentId("waiter", "told"), run)
    await until_heard(bus, watched)
    waiting = asyncio.create_task(door.result(run))
    await until(lambda: len(bus._handlers[watched]) == 2, "both wait")
    await crm.api("signal", run=run, name="go", payload="ended elsewhere")

    assert (await ask_task).body == await waiting == "ended elsewhere"
    await until(lambda: watched not in bus._subscriptions, "nobody watches any more")


async def test_a_stopping_host_answers_ended_runs_and_refers_the_rest(
    nats_server: TestNats, postgres_server: TestPostgres, schema: str, namespace: str
) -> None:
    """It leaves the group first; runs that end in time are answered, the others get an error with a retry."""
    settings = Settings(db_schema=schema, namespace=namespace, suspend_after=20)
    building = build_runtime(nats_server.url, postgres_server.url, settings=settings)
    async with outside(nats_server.url, namespace) as service, building as runtime:
        await runtime.register_type("waiter", Waiter)
        gateway = gateway_of(runtime)
        runs = [await service.api("submit", agent=f"waiter/{n}", payload=1, id="l") for n in (1, 2)]
        ask_tasks = [
            asyncio.create_task(service.ask(f"waiter/{n}", Nats_Msg_Id="l")) for n in (1, 2)
        ]
        await until(lambda: gateway.open_requests == 2, "both are held")
        stopping = asyncio.create_task(runtime.stop(drain_s=2.5))
        await until(lambda: gateway.has_left, "it has left")
        with pytest.raises(NoRespondersError):
            await service.ask("waiter/3")
        await runtime.signal(runs[0].body["run"], "go", "in time")
        await stopping
        answer, refusal = [await task for task in ask_tasks]

    assert (refusal.code, refusal.body["error"]["type"]) == (503, "stopping")
    assert (answer.code, answer.body) == (0, "in time")


def gateway_of(runtime: Runtime) -> Gateway:
    """Return the host's gateway."""
    [line] = runtime._host._listeners
    [gateway] = [user for user in line._users if isinstance(user, Gateway)]  # type: ignore[attr-defined]
    return gateway


async def test_hosts_serve_a_broker_again_after_its_outage(
    own_nats: OwnNats, postgres_server: TestPostgres, schema: str
) -> None:
    """Hosts rejoin the group by themselves; a run requested meanwhile exists once."""
    server = own_nats()
    settings = Settings(db_schema=schema, lease_s=10)
    async with build_runtime(server.url, postgres_server.url, settings=settings) as runtime:
        await runtime.register_type("waiter", Waiter)
        gateway = gateway_of(runtime)
        async with outside(server.url, "") as service:
            lost = asyncio.create_task(service.ask("waiter/a", Nats_Msg_Id="a"))
            await until(lambda: gateway.open_requests == 1, "the question is held")
            await asyncio.to_thread(server.kill)
            await until(lambda: gateway.open_requests == 0, "it is given up with its connection")
            lost.cancel()
            await asyncio.gather(lost, return_exceptions=True)
            await asyncio.to_thread(server.start)

            async def is_back() -> bool:
                with contextlib.suppress(NatsError):
                    return (
                        await service.api("submit", agent="waiter/a", payload=1, id="a")
                    ).code == 0
                return False

            await until(is_back, "requests are served again")
            run = (await service.api("submit", agent="waiter/a", payload=1, id="a")).body["run"]
            await service.api("signal", run=run, name="go", payload="back")
            answer = await service.ask("waiter/a", Nats_Msg_Id="a")

    assert (answer.body, answer.run) == ("back", run)
    assert run == run_id_of_submit(AgentId("waiter", "a"), "ext:crm", "a")
