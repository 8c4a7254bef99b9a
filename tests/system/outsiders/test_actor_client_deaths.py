"""Hosts are killed and servers restart while an `ActorClient` waits."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any, Final

import pytest

from actors._kernel.runtime.ids import AgentId
from broker.client import ActorClient, Patience
from compose import Settings
from compose._assembly.runtime import build_runtime
from compose.demo.desk import lines_of
from tests.system.agents import Waiter
from tests.system.outside import Desk, Notes
from tests.system.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.harness.servers import OwnNats, TestNats, TestPostgres
    from tests.system.processes import Hosts

HURRY: Final = Patience(attempt_s=1, slice_s=1, grace_s=0.5, silence_s=6, unserved_s=10)
LIMIT_S: Final = 25


@pytest.mark.costly
async def test_a_killed_host_loses_no_answer(
    fleet: Hosts, nats_server: TestNats, namespace: str, tmp_path: Path
) -> None:
    """Another host answers its question, and continues its events."""
    ledgers = [tmp_path / "asked", tmp_path / "watched"]
    first = await fleet.serving("tests.system.fleet:STUCK")
    client = ActorClient(
        nats_server.url, publisher="crm", namespace=namespace, timeout=LIMIT_S, patience=HURRY
    )
    async with client, asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(client.ask("stuck/a", str(ledgers[0]), timeout=LIMIT_S))
        run = await client.submit("stuck/b", str(ledgers[1]))
        watching = tasks.create_task(_watched(client, run.run_id))
        await until(
            lambda: all(ledger.exists() and lines_of(str(ledger)) for ledger in ledgers),
            "both stuck",
        )
        await fleet.serving("tests.system.fleet:STUCK")
        first.send(signal.SIGKILL)
    events = watching.result()
    entries = [seq for kind, seq in events if kind == "entry"]

    assert asking.result() == "done"
    assert [len(lines_of(str(ledger))) for ledger in ledgers] == [2, 2]
    assert entries == list(range(len(entries)))
    assert events[-1] == ("end", entries[-1])


async def _watched(client: ActorClient, run_id: str) -> list[tuple[str, int]]:
    return [(event.kind, event.seq) async for event in client.events(run_id)]


async def test_a_server_that_restarts_loses_and_doubles_nothing(
    own_nats: OwnNats, postgres_server: TestPostgres, schema: str
) -> None:
    """During messages in sequence, a question, and events; all of them continue by themselves."""
    nats, notes, desk = own_nats(durable=True), Notes(), AgentId("desk", "a")
    settings = Settings(db_schema=schema, suspend_after=0.05)
    client = ActorClient(nats.url, publisher="crm", timeout=LIMIT_S, patience=HURRY)
    async with build_runtime(nats.url, postgres_server.url, None, settings=settings) as runtime:
        await runtime.register_type("desk", lambda id_: Desk(id_, notes))
        await runtime.register_type("waiter", Waiter)
        async with client, asyncio.TaskGroup() as tasks:
            run = await client.submit("waiter/a", {})
            watching = tasks.create_task(_watched(client, run.run_id))
            asking = tasks.create_task(client.ask("waiter/b", {}, id="q", timeout=LIMIT_S))
            for n in range(5):
                await client.send("desk/a", {"n": n})
            sending = [tasks.create_task(client.send("desk/a", {"n": n})) for n in range(5, 60)]
            await sending[0]
            nats.kill()
            nats.start()
            await asyncio.wait(sending)
            asked_run = await client.submit("waiter/b", {}, id="q")
            for ref in (run, asked_run):
                await client.signal(ref, "go", ref.agent)
            await notes.until(desk, {"n": 59})
    handled: list[Any] = [message.payload for message in notes.handled[desk]]
    entries = [seq for kind, seq in watching.result() if kind == "entry"]

    assert handled == [{"n": n} for n in range(60)]
    assert asking.result() == "waiter/b"
    assert entries == list(range(len(entries)))
    assert watching.result()[-1] == ("end", entries[-1])
