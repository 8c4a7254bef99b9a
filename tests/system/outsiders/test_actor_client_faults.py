"""`ActorClient` against hosts that are silent, absent or broken, and servers that fail."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import nats
import pytest

from broker._client.connection import MAX_WAITING_FRAMES
from broker.client import (
    ActorClient,
    AskTimeoutError,
    BadRequestError,
    ClientError,
    NotPermittedError,
    OutcomeUnknownError,
    Patience,
    RunRef,
    TooLargeError,
    UnknownRunError,
    UnreachableError,
    UnservedError,
)
from tests.harness.proxy import FaultProxy
from tests.system.gateways import event, gateway, refusing, saying, silent, telling
from tests.system.waiting import until

if TYPE_CHECKING:
    from tests.harness.servers import OwnNats, TestNats

HURRY = Patience(attempt_s=0.3, slice_s=0.3, grace_s=0.2, silence_s=0.4, unserved_s=0.3)
LISTENING = replace(HURRY, silence_s=1.5)
"""Counter of the answers to each request."""


def new_client(url: str, namespace: str = "", **more: Any) -> ActorClient:
    """Yield a client with a short timeout."""
    options: dict[str, Any] = {"publisher": "crm", "timeout": 5, "patience": HURRY, **more}
    return ActorClient(url, namespace=namespace, **options)


async def test_a_silent_host_is_asked_again_with_the_same_id(
    nats_server: TestNats, namespace: str
) -> None:
    """Each attempt is the same request, so each host's answer is that of the same run."""
    async with (
        gateway(nats_server.url, namespace) as hosts,
        new_client(nats_server.url, namespace) as client,
    ):
        hosts.answers = [silent, refusing(503, "shutting down"), saying({"n": 1})]
        answer = await client.ask("desk/a", {"q": 1})
        hosts.answers = [silent, saying({"run": "r7"})]
        ref = await client.submit("desk/a", {"q": 2}, on_conflict="join", priority=3)

    asks = [request for request in hosts.requests if request.verb == "ask"]
    submits = [request for request in hosts.requests if request.verb == "submit"]
    assert answer == {"n": 1}
    assert ref == RunRef("r7", "desk/a")
    assert len({request.id for request in asks}) == len({request.id for request in submits}) == 1
    assert asks[0].id != submits[0].id
    assert asks[0].headers["Actor-Timeout"] == "0.300"
    assert (submits[0].body["on_conflict"], submits[0].body["priority"]) == ("join", 3)


async def test_a_long_ask_is_many_short_ones(nats_server: TestNats, namespace: str) -> None:
    """A host that answers "still open" is asked again; at the end the error has the run's id."""
    async with (
        gateway(nats_server.url, namespace) as hosts,
        new_client(nats_server.url, namespace) as client,
    ):
        hosts.answers = [refusing(408, run="r1"), refusing(408, run="r1"), saying("done")]
        answer = await client.ask("desk/a", "q", timeout=20)
        hosts.answers = [*[refusing(408, run="r2")] * 3, silent]
        with pytest.raises(AskTimeoutError) as caught:
            await client.ask("desk/a", "q", timeout=2, id="m-1")
        hosts.answers = [refusing(408, run="r3")]
        with pytest.raises(AskTimeoutError):
            await client.result("r3", timeout=1)

    assert answer == "done"
    assert (caught.value.run_id, caught.value.id) == ("r2", "m-1")
    assert "result(run_id)" in caught.value.remedy


@pytest.mark.costly
async def test_a_question_that_timed_out_may_still_be_executed(
    nats_server: TestNats, namespace: str
) -> None:
    """Without a run's id there is nothing to wait for; an id that was received once is kept."""
    async with (
        gateway(nats_server.url, namespace) as hosts,
        new_client(nats_server.url, namespace) as client,
    ):
        hosts.answers = [refusing(408, "not accepted within 0.3 s, or is being accepted now")]
        with pytest.raises(OutcomeUnknownError) as untaken:
            await client.ask("desk/a", "q", timeout=1.5, id="m-1")
        hosts.answers = [*[refusing(408, run="r1")] * 3, refusing(408)]
        with pytest.raises(AskTimeoutError, match=r"within 1\.5 s") as late:
            await client.ask("desk/a", "q", timeout=1.5)

    assert "id='m-1'" in untaken.value.remedy
    assert late.value.run_id == "r1"


async def test_the_error_of_an_unknown_outcome_has_the_remedy(
    nats_server: TestNats, namespace: str
) -> None:
    """A request without an answer may have been executed; a repeat with the same id is safe."""
    async with (
        gateway(nats_server.url, namespace) as hosts,
        new_client(nats_server.url, namespace, timeout=0.5) as client,
    ):
        hosts.answers = [silent]
        with pytest.raises(OutcomeUnknownError) as caught:
            await client.submit("desk/a", {}, id="m-1")
        with pytest.raises(OutcomeUnknownError) as ask_error:
            await client.ask("desk/a", {}, timeout=0.1)

    assert caught.value.id == "m-1"
    assert "id='m-1'" in caught.value.remedy
    assert ask_error.value.run_id is None


async def test_an_absent_host_or_stream_is_an_immediate_error(
    nats_server: TestNats, namespace: str
) -> None:
    """Nothing was executed, and the error names what to start."""
    async with new_client(nats_server.url, namespace) as client:
        with pytest.raises(UnservedError, match="callboard host"):
            await client.ask("desk/a", {})
        with pytest.raises(UnservedError):
            await client.send("desk/a", {})
        with pytest.raises(UnservedError):
            await client.status("r1")


async def test_answers_of_another_service_are_errors(nats_server: TestNats, namespace: str) -> None:
    """A cut, refused or malformed answer is a one-line error."""
    async with (
        gateway(nats_server.url, namespace) as hosts,
        new_client(nats_server.url, namespace) as client,
    ):
        hosts.answers = [saying(b'{"run": "r')]
        with pytest.raises(ClientError, match="no JSON"):
            await client.submit("desk/a", {})
        hosts.answers = [saying({})]
        with pytest.raises(ClientError, match="tells no 'run'"):
            await client.submit("desk/a", {})
        hosts.answers = [saying([1])]
        with pytest.raises(ClientError, match="not an object"):
            await client.status("r1")
        hosts.answers = [refusing(404, "no run 'r1'")]
        with pytest.raises(UnknownRunError, match="status of run r1: no run 'r1'"):
            await client.status("r1")
        with pytest.raises(UnknownRunError):
            async for _ in client.events("r1"):
                pass


async def test_events_continue_after_an_interruption(nats_server: TestNats, namespace: str) -> None:
    """Silence, a lost entry, a busy host, an overlap: no entry is missing and none comes twice."""
    entries = [event("entry", n) for n in range(6)]
    async with (
        gateway(nats_server.url, namespace) as hosts,
        new_client(nats_server.url, namespace, patience=LISTENING) as client,
    ):
        hosts.answers = [
            telling(entries[0], entries[1]),
            refusing(503),
            telling(entries[2], entries[4]),
            telling(*entries[1:5], event("end", 5)),
            telling(entries[5], event("end", 5, name="COMPLETED"), event("entry", 6)),
        ]
        events = [(e.kind, e.seq) async for e in client.events("r1")]

    assert events == [*(("entry", n) for n in range(6)), ("end", 5)]
    assert [request.body["from_seq"] for request in hosts.requests] == [0, 2, 2, 3, 5]


async def test_heartbeats_are_answered_and_a_slow_reader_gets_missed_events(
    nats_server: TestNats, namespace: str
) -> None:
    """A listening client renews the stream; events that a slow reader misses are requested again."""
    many = MAX_WAITING_FRAMES + 100
    async with (
        gateway(nats_server.url, namespace) as hosts,
        new_client(nats_server.url, namespace, patience=LISTENING) as client,
    ):
        hosts.answers = [
            telling(event("entry", 0), is_beating=True),
            telling(*(event("entry", n) for n in range(1, many))),
            telling(*(event("entry", n) for n in range(MAX_WAITING_FRAMES + 1, many))),
            telling(event("end", many - 1)),
        ]
        seen = 0
        async for client_event in client.events("r1"):
            if client_event.kind == "entry":
                assert client_event.seq == seen
                seen += 1
            if seen == 2:
                await until(lambda: len(hosts.requests) >= 2, "the second asking")
        await until(lambda: hosts.renewed == [b'{"stream":"s-1"}'], "a renewal")

    assert seen == many


async def test_a_closed_stream_gets_no_more_events(nats_server: TestNats, namespace: str) -> None:
    """Its host-side stream is closed at the end of the block."""
    async with (
        gateway(nats_server.url, namespace) as hosts,
        new_client(nats_server.url, namespace) as client,
    ):
        hosts.answers = [telling(event("entry", 0), event("entry", 1))]
        async with aclosing(client.events("r1")) as events:
            await anext(events)
            count_inside = len(_waiting(client))
        count_after = len(_waiting(client))

    assert (count_inside, count_after) == (1, 0)


def _waiting(client: ActorClient) -> Any:
    assert client._line._requests is not None
    return client._line._requests._takers


async def test_a_reader_may_take_its_time(own_nats: OwnNats) -> None:
    """One event may take longer than the client waits for the next one: the host is not silent then."""
    server = own_nats()
    async with gateway(server.url) as hosts, new_client(server.url, timeout=2.5) as client:
        hosts.answers = [telling(event("entry", 0)), telling(event("end", 0))]
        kinds = []
        async for client_event in client.events("r1"):
            kinds.append(client_event.kind)
            if client_event.kind == "entry":
                server.kill()
                server.start()
                await asyncio.sleep(3)

    assert kinds == ["entry", "end"]


async def test_events_without_a_sender_end_with_an_error(
    nats_server: TestNats, namespace: str
) -> None:
    """The client's time-out limits the wait without any event."""
    async with new_client(nats_server.url, namespace, timeout=0.5) as client:
        with pytest.raises(UnservedError):
            async for _ in client.events("r1"):
                pass


async def test_the_error_of_an_absent_server_has_its_address(own_nats: OwnNats) -> None:
    """At once on connect, after the time-out later; the URL's password is not shown."""
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1: .*Start nats-server") as caught:
        async with new_client("nats://me:hunter2@127.0.0.1:1"):
            pass
    server = own_nats()
    async with new_client(server.url, timeout=1) as client:
        server.kill()
        await until(lambda: _is_lost(client), "the loss")
        with pytest.raises(UnreachableError) as later:
            await client.submit("desk/a", {}, id="m")

    assert "hunter2" not in str(caught.value)
    assert later.value.id == "m"


def _is_lost(client: ActorClient) -> bool:
    requests = client._line._requests
    return requests is not None and requests.client.lost.is_set()


async def test_calls_of_a_closed_client_raise(nats_server: TestNats, namespace: str) -> None:
    """Before and after its block, and to calls that wait in it."""
    client = new_client(nats_server.url, namespace)
    with pytest.raises(UnreachableError, match="async with"):
        await client.status("r1")
    async with gateway(nats_server.url, namespace) as hosts, asyncio.TaskGroup() as tasks:
        hosts.answers = [silent]
        async with client:
            asking = tasks.create_task(_error_of(client.ask("desk/a", {}, timeout=60, id="m-1")))
            watching = tasks.create_task(_error_of(anext(client.events("r1"))))
            await until(lambda: len(hosts.requests) >= 2, "both requests")
    with pytest.raises(UnreachableError, match="async with"):
        await client.status("r1")
    ask_error = asking.result()

    assert isinstance(ask_error, OutcomeUnknownError)  # a host has it
    assert ask_error.id == "m-1"
    assert isinstance(watching.result(), UnreachableError)


async def _error_of(call: Any) -> BaseException | None:
    try:
        await call
    except ClientError as exc:
        return exc
    return None


async def test_an_ask_survives_a_server_restart(own_nats: OwnNats) -> None:
    """The question is sent again, over a new connection, with its id; so are events."""
    server = own_nats()
    async with gateway(server.url) as hosts, new_client(server.url, timeout=20) as client:
        hosts.answers = [silent]
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(client.ask("desk/a", {}, timeout=20))
            await until(lambda: bool(hosts.requests), "the question")
            server.kill()
            hosts.answers = [saying("ok")]
            server.start()
        hosts.requests.clear()
        hosts.answers = [telling(event("entry", 0))]
        seqs = []
        async for client_event in client.events("r1"):
            seqs.append(client_event.seq)
            if client_event.kind == "entry":
                server.kill()
                hosts.answers = [telling(event("end", 0))]
                server.start()

    assert asking.result() == "ok"
    assert seqs == [0, 0]
    assert hosts.requests[-1].body == {"run": "r1", "from_seq": 1}


async def test_acknowledgements_that_are_lost_change_no_order(nats_server: TestNats) -> None:
    """Messages to one agent wait for the previous one, so a repeated one does not come after the next."""
    stream = "CLIENTORDER"
    direct = await nats.connect(nats_server.url)
    async with FaultProxy.to(nats_server.url) as proxy:
        jetstream = direct.jetstream()
        await jetstream.add_stream(name=stream, subjects=["order.agent.v1.>"])
        try:
            async with new_client(proxy.through(nats_server.url), "order") as client:
                await client.send("desk/a", {"n": 0}, id="0")
                loss = proxy.lose_response(request_has=b'{"n":1}', response_ends=b"\r\n")
                async with asyncio.TaskGroup() as tasks:
                    for n in range(1, 6):
                        tasks.create_task(client.send("desk/a", {"n": n}, id=str(n)))
                assert loss.happened.is_set()
            state = (await jetstream.stream_info(stream)).state
            messages = [await jetstream.get_msg(stream, n + 1) for n in range(state.messages)]
        finally:
            await jetstream.delete_stream(stream)
            await direct.close()
    ids = [(message.headers or {})["Nats-Msg-Id"] for message in messages]

    assert list(dict.fromkeys(ids)) == ["0", "1", "2", "3", "4", "5"]
    assert ids == sorted(ids)
    assert json.loads(messages[-1].data or b"") == {"n": 5}


USERS: dict[str, Any] = {
    "no_auth_user": "free",
    "authorization": {
        "users": [
            {"user": "free", "password": "p"},
            {
                "user": "crm",
                "password": "p",
                "permissions": {
                    "publish": ["agent.v1.default.*.*.ext.crm"],
                    "subscribe": ["_INBOX_crm.>"],
                },
            },
        ]
    },
}


async def test_a_missing_permission_is_an_immediate_error(own_nats: OwnNats) -> None:
    """A publish that the server refuses, a foreign inbox, a wrong password."""
    server = own_nats(settings=USERS)
    url = server.url.partition("@")[2] or server.url.removeprefix("nats://")
    async with new_client(f"nats://crm:p@{url}") as client:
        with pytest.raises(NotPermittedError, match=r"publish to .*api\.v1"):
            await client.status("r1")
        with pytest.raises(NotPermittedError):
            await client.publish("news/eu", {})
    with pytest.raises(NotPermittedError, match="inbox_prefix"):
        async with new_client(f"nats://crm:p@{url}", inbox_prefix="_INBOX_shop"):
            pass
    with pytest.raises(UnreachableError, match="Check the user"):
        async with new_client(f"nats://crm:wrong@{url}"):
            pass


async def test_a_too_large_message_is_refused_before_it_is_sent(own_nats: OwnNats) -> None:
    """The connection stays open: a server would close it for a body over its limit."""
    server = own_nats(settings={"max_payload": 1024})
    async with gateway(server.url) as hosts, new_client(server.url) as client:
        hosts.answers = [saying({"run": "r1", "status": "RUNNING"})]
        with pytest.raises(TooLargeError, match="the server takes 1024"):
            await client.submit("desk/a", {"a": "x" * 2000})
        with pytest.raises(TooLargeError, match="262144 are the limit"):
            await client.submit("desk/a", {"a": "x" * 300_000})
        with pytest.raises(BadRequestError):
            await client.follow("desk/a", "news/eu", mode="always")  # type: ignore[arg-type]
        status = await client.status("r1")

    assert status.status == "RUNNING"
