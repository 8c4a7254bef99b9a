"""Calls of a Python service with `ActorClient`, against a host on real servers."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest
import pytest_asyncio

from actors._kernel.runtime.ids import AgentId, RunId
from actors.errors import TerminalError
from broker._gateway.streams import NatsDeltaBus
from broker.client import (
    ActorClient,
    AskTimeoutError,
    BadRequestError,
    ConflictError,
    Patience,
    RunCancelledError,
    RunFailedError,
    RunRef,
    UnknownRunError,
    UnservedError,
)
from tests.behaviour.agents import greeter
from tests.harness.proxy import FaultProxy
from tests.system.outside import make_bed
from tests.system.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.harness.servers import TestNats, TestPostgres, TestRedis
    from tests.system.outside import Bed

pytestmark = pytest.mark.asyncio(loop_scope="module")

HURRY: Final = Patience(attempt_s=1, slice_s=1, grace_s=1, silence_s=6, unserved_s=1)


class Talker:
    """Answers by its model, after a signal; fails if the payload requests it."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id, self.model = agent_id, greeter()

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        """Return the payload, the asker, and the model's answer."""
        payload: Any = inbox[0].payload
        if payload == "fail":
            raise TerminalError("told to fail")
        if isinstance(payload, dict) and payload.get("wait"):
            await ctx.sleep_until_signal("go")
        reply = await ctx.llm("hello")
        return {"asked": payload, "by": inbox[0].sender, "said": reply.text}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bed(
    postgres_server: TestPostgres, nats_server: TestNats, redis_server: TestRedis
) -> AsyncIterator[Bed]:
    """Yield a host that serves; the module's tests differ in keys."""
    async with make_bed(postgres_server, nats_server, redis_server) as new_bed, new_bed.running():
        await new_bed.runtime.register_type("talker", Talker)
        yield new_bed


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def crm(bed: Bed) -> AsyncIterator[ActorClient]:
    """Yield the service `crm`."""
    async with connected(bed) as client:
        yield client


@asynccontextmanager
async def connected(bed: Bed, *, url: str = "", **more: Any) -> AsyncIterator[ActorClient]:
    """Yield a client of the bed."""
    options: dict[str, Any] = {"publisher": "crm", "timeout": 10, "patience": HURRY, **more}
    async with ActorClient(url or bed.nats_url, namespace=bed.namespace, **options) as client:
        yield client


async def test_a_question_gets_its_answer(crm: ActorClient) -> None:
    """The payload is any JSON value, the answer is the run's output; the same id gives the same answer."""
    answer: Any = await crm.ask("talker/a", [1, "ä"], id="q-1")
    again = await crm.ask("talker/a", [1, "ä"], id="q-1")

    assert answer == {"asked": [1, "ä"], "by": "ext:crm", "said": "Hello there"}
    assert again == answer


async def test_a_run_that_does_not_complete_is_an_error_of_ask(crm: ActorClient) -> None:
    """It failed, it was cancelled, or it is still open: each error has the run."""
    with pytest.raises(RunFailedError, match="told to fail") as failed:
        await crm.ask("talker/b", "fail")
    with pytest.raises(AskTimeoutError) as late:
        await crm.ask("waiter/b", {"count": 1}, timeout=3, id="late")
    assert late.value.run_id
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(_caught(crm.ask("waiter/b", {"count": 1}, id="late")))
        assert await crm.cancel(late.value.run_id, "enough")
    ended = await crm.result(late.value.run_id)
    failure = await crm.result(failed.value.run_id or "")

    assert isinstance(asking.result(), RunCancelledError)
    assert (ended.status, ended.output) == ("CANCELLED", None)
    assert failure.status == "FAILED"
    assert "told to fail" in str(failure.error)
    assert not await crm.cancel(late.value.run_id)


async def _caught(call: Any) -> Exception | None:
    try:
        await call
    except Exception as exc:  # noqa: BLE001 - it is looked at
        return exc
    return None


async def test_a_run_is_followed_by_its_id(crm: ActorClient) -> None:
    """Submit, inspect, signal by reference and by id, and get the result."""
    run = await crm.submit("waiter/c", {"count": 2}, id="m-1")
    same = await crm.submit("waiter/c", {"count": 2}, id="m-1")
    before = await crm.status(run)
    await crm.signal(run, "go", 1, id="s-1")
    await crm.signal(run, "go", 1, id="s-1")
    await crm.signal(run.run_id, "go", {"n": 2})
    ended = await crm.result(run.run_id, timeout=10)
    after = await crm.status(run)

    assert same == run == RunRef(run.run_id, "waiter/c")
    assert before.status in {"PENDING", "RUNNING", "SUSPENDED"}
    assert ended.status == "COMPLETED"
    assert ended.output in ([1, {"n": 2}], [{"n": 2}, 1])  # they took two ways
    assert (after.status, after.parked) == ("COMPLETED", None)


async def test_a_busy_agent_has_four_ways_to_handle_a_conflict(bed: Bed, crm: ActorClient) -> None:
    """Queue behind it, join its run, be rejected, or interrupt it; a repeated call changes nothing."""
    first = await crm.submit("waiter/d", {"count": 1})
    await _until_open(crm, first)
    queued = await crm.submit("waiter/d", {"count": 0}, on_conflict="queue")
    joined = await crm.submit("waiter/d", {"count": 9}, on_conflict="join", id="j")
    again = await crm.submit("waiter/d", {"count": 9}, on_conflict="join", id="j")
    with pytest.raises(ConflictError) as busy:
        await crm.submit("waiter/d", {}, on_conflict="reject")
    with pytest.raises(ConflictError):
        await crm.ask("waiter/d", {}, on_conflict="reject")
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(
            crm.ask("waiter/d", {"count": 9}, on_conflict="join", timeout=10)
        )
        await until(lambda: _is_waited_for(bed, first), "it has joined")
        await crm.signal(first, "go", "x")
    second = await crm.submit("waiter/e", {"count": 1})
    await _until_open(crm, second)
    answer = await crm.ask("waiter/e", {"count": 0}, on_conflict="interrupt")

    assert joined.run_id == again.run_id == first.run_id == busy.value.run_id
    assert asking.result() == ["x"]
    assert (await crm.result(queued, timeout=10)).output == []
    assert answer == []
    assert (await crm.result(second, timeout=10)).status == "CANCELLED"


def _is_waited_for(bed: Bed, run: RunRef) -> bool:
    bus = bed.runtime.live.bus
    assert isinstance(bus, NatsDeltaBus)
    return bus._subjects.live_end(AgentId.parse(run.agent), RunId(run.run_id)) in bus._handlers


async def _until_open(crm: ActorClient, run: RunRef) -> None:
    async def is_open() -> bool:
        return (await crm.status(run)).status in {"RUNNING", "SUSPENDED"}

    await until(is_open, f"{run} executes")


async def test_publishers_and_tenants_are_separate(bed: Bed, crm: ActorClient) -> None:
    """The same ids of two services are two messages and two runs; a tenant cannot see another's."""
    agent = AgentId("desk", "ids")
    async with connected(bed, publisher="shop") as shop, connected(bed, tenant="acme") as acme:
        for client in (crm, shop, crm):
            await client.send("desk/ids", {"n": 1}, id="m")
        runs = {(await client.submit("waiter/f", {}, id="m")).run_id for client in (crm, shop)}
        foreign = await acme.submit("waiter/f", {}, id="m")
        for call in (
            crm.status(foreign),
            crm.result(foreign),
            crm.cancel(foreign),
            crm.signal(foreign.run_id, "go"),
            acme.status(min(runs)),
        ):
            with pytest.raises(UnknownRunError):
                await call
        ended = await acme.result(foreign, timeout=10)
    handled = await bed.handled(agent)

    assert sorted(message.sender for message in handled) == ["ext:crm", "ext:shop"]
    assert len(runs) == 2
    assert foreign.agent == "acme:waiter/f"
    assert ended.status == "COMPLETED"


async def test_unknown_runs_types_and_entries_are_errors(crm: ActorClient) -> None:
    """An unknown run, a type without a host, an entry that is not there yet."""
    for call in (
        crm.status("none"),
        crm.result("none"),
        crm.cancel("none"),
        crm.signal("none", "go"),
    ):
        with pytest.raises(UnknownRunError, match="none"):
            await call
    with pytest.raises(UnknownRunError):
        async for _ in crm.events("none"):
            pass
    with pytest.raises(UnservedError, match="nobody/x"):
        await crm.ask("nobody/x", {})
    run = await crm.submit("waiter/g", {})
    await crm.result(run)
    with pytest.raises(BadRequestError, match="from_seq"):
        async for _ in crm.events(run, 1000):
            pass
    with pytest.raises(BadRequestError):
        await crm.signal(run.run_id, "~go")


async def test_a_run_is_watched_live(crm: ActorClient) -> None:
    """Entries in order, the pieces of the model's answer between them, and the end mark last."""
    run = await crm.submit("talker/h", {"wait": True})
    all_events = []
    async with aclosing(crm.events(run)) as events:
        async for event in events:
            all_events.append(event)
            if event.name == "run.started":
                await crm.signal(run, "go")
    entries = [e.seq for e in all_events if e.kind == "entry"]
    pieces = [e for e in all_events if e.kind == "delta"]
    later = [e async for e in crm.events(run, entries[-2])]

    assert entries == list(range(len(entries)))
    assert "".join(e.text for e in pieces) == "Hello there"
    assert {e.attempt for e in all_events} == {1}
    assert not any(e.is_restart for e in all_events)
    assert (all_events[-1].kind, all_events[-1].name, all_events[-1].seq) == (
        "end",
        "COMPLETED",
        entries[-1],
    )
    assert [(e.kind, e.seq) for e in later] == [
        ("entry", entries[-2]),
        ("entry", entries[-1]),
        ("end", entries[-1]),
    ]


async def test_an_agent_follows_a_topic_at_the_request_of_a_client(
    bed: Bed, crm: ActorClient
) -> None:
    """It gets the posts from then on, once per id, until it unfollows."""
    await crm.follow("desk/follower", "news/eu")
    await crm.follow("desk/follower", "news/eu", "eager")
    for n in (1, 2, 2):
        await crm.publish("news/eu", {"n": n}, id=f"p-{n}")
    await bed.notes.until(AgentId("desk", "follower"), {"n": 2})
    ended = await crm.unfollow("desk/follower", "news/eu")
    again = await crm.unfollow("desk/follower", "news/eu")

    assert await bed.payloads(AgentId("desk", "follower")) == [{"n": 1}, {"n": 2}]
    assert (ended, again) == (True, False)


async def test_the_agents_are_described(crm: ActorClient) -> None:
    """The document names the types that the hosts serve."""
    document = await crm.describe()

    assert "talker" in str(document)


async def test_messages_arrive_in_order_over_a_failing_connection(bed: Bed) -> None:
    """Connections are reset and acknowledgements lost: each message is handled once, in its order."""
    agent = AgentId("desk", "order")
    async with FaultProxy.to(bed.nats_url) as proxy, AsyncExitStack() as stack:
        url = proxy.through(bed.nats_url)
        client = await stack.enter_async_context(connected(bed, url=url))
        await client.send("desk/order", {"n": 0})
        lost = [
            proxy.lose_response(request_has=b'{"n":10}', response_ends=b"\r\n"),
            proxy.lose_request(request_has=b'{"n":20}'),
        ]
        async with asyncio.TaskGroup() as tasks:
            for n in range(1, 40):
                tasks.create_task(client.send("desk/order", {"n": n}))
        lost_answer = proxy.lose_response(request_has=b"ask.v1", response_ends=b"\r\n")
        answer: Any = await client.ask("talker/order", "q")
        run = await client.submit("talker/order", {"wait": True})
        entries = []
        async for event in client.events(run):
            if event.kind == "entry":
                entries.append(event.seq)
            if event.name == "run.started":
                proxy.reset()
                await client.signal(run, "go")

    assert all(loss.happened.is_set() for loss in (*lost, lost_answer))
    assert await bed.payloads(agent) == [{"n": n} for n in range(40)]
    assert answer["said"] == "Hello there"
    assert entries == list(range(len(entries)))
