"""Requests of external clients to agents and hosts over plain NATS: answers, and errors with a remedy."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
import pytest_asyncio
from nats.errors import NoRespondersError

from actors._kernel.runtime.ids import AgentId, RunId, run_id_of_submit
from actors._kernel.tracing import trace_id_of
from broker._gateway import streams as events_stream
from broker._gateway.gateway import Gateway
from compose import Settings
from compose._assembly.runtime import build_runtime
from tests.harness.rawnats import raw_nats
from tests.system.asking import PATIENCE_S, PIECES, TYPES, Outside, outside
from tests.system.outside import make_bed
from tests.system.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from actors._runtime import Runtime
    from tests.harness.servers import TestNats, TestPostgres, TestRedis
    from tests.system.outside import Bed

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bed(
    postgres_server: TestPostgres, nats_server: TestNats, redis_server: TestRedis
) -> AsyncIterator[Bed]:
    """Yield names of this module's own on the session's servers."""
    async with make_bed(postgres_server, nats_server, redis_server) as new_bed:
        yield new_bed


def building(bed: Bed) -> AbstractAsyncContextManager[Runtime]:
    """A host."""
    settings = Settings(db_schema=bed.schema, namespace=bed.namespace, suspend_after=0.05)
    return build_runtime(bed.nats_url, bed.postgres_url, bed.redis_url, settings=settings)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def host(bed: Bed) -> AsyncIterator[Runtime]:
    """Yield the host that answers."""
    async with building(bed) as runtime:
        for type_, factory in TYPES.items():
            await runtime.register_type(type_, factory)
        yield runtime


@pytest_asyncio.fixture(loop_scope="module")
async def crm(bed: Bed, host: Runtime) -> AsyncIterator[Outside]:
    """Yield a service of the default tenant."""
    del host
    async with outside(bed.nats_url, bed.namespace) as service:
        yield service


def gateway_of(host: Runtime) -> Gateway:
    """Return the host's gateway."""
    [line] = host._host._listeners
    [gateway] = [user for user in line._users if isinstance(user, Gateway)]  # type: ignore[attr-defined]
    return gateway


async def submitted(crm: Outside, agent: str, payload: object = None) -> str:
    """Return the id of a submitted run."""
    answer = await crm.api("submit", agent=agent, payload=payload)
    return str(answer.body["run"])


@pytest.mark.item(199)
async def test_an_agent_is_asked_and_answers(crm: Outside) -> None:
    """Request and answer are plain JSON, with the run in a header; the sender is the subject's publisher."""
    answer = await crm.ask("echo/a", {"text": "hi"}, Actor_Sender="agent:boss/1")

    assert answer.body == {"got": {"text": "hi"}, "from": "ext:crm", "metadata": {}}
    assert answer.headers["Actor-Status"] == "COMPLETED"
    assert (await crm.api("status", run=answer.run)).body["status"] == "COMPLETED"


async def test_a_cloud_event_is_answered_by_one(crm: Outside) -> None:
    """Its attributes and its trace reach the agent; its id identifies the question."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    event = {"ce_id": "e-1", "ce_source": "/orders", "ce_type": "order.paid", "traceparent": trace}
    answers = [await crm.ask("echo/ce", 17, **event) for _ in range(2)]

    assert answers[0].body["got"] == 17
    assert answers[0].body["metadata"]["ce-type"] == "order.paid"
    assert answers[0].body["metadata"]["traceparent"] == trace
    assert answers[0].headers["ce-source"] == "/agents/echo/ce"
    assert answers[0].headers["ce-id"] == answers[0].run == answers[1].run


async def test_msgpack_is_used_where_the_headers_request_it(crm: Outside) -> None:
    """Request and answer each by its own header."""
    head = {"Content_Type": "application/msgpack", "Accept": "application/msgpack"}
    answer = await crm.ask("echo/m", msgpack.packb({"n": [1, None]}), **head)

    assert msgpack.unpackb(answer.body)["got"] == {"n": [1, None]}


async def test_a_question_asked_again_with_its_id_is_one_run(crm: Outside, host: Runtime) -> None:
    """At once or later; the same id of another service is another question."""
    twice = await asyncio.gather(*(crm.ask("echo/twice", 1, Nats_Msg_Id="q-1") for _ in range(2)))
    later = await crm.ask("echo/twice", {"changed": True}, Nats_Msg_Id="q-1")
    runs = await host.store.lists.runs(agent=AgentId("echo", "twice"))

    assert [answer.body["got"] for answer in (*twice, later)] == [1, 1, 1]
    assert [row.run_id for row in runs] == [later.run]


@pytest.mark.item(199)
async def test_the_run_of_a_timed_out_question_continues(crm: Outside) -> None:
    """The error has the run; its result can be read later, and a signal reaches it meanwhile."""
    late_answer = await crm.ask("waiter/late", Actor_Timeout="1.5", Nats_Msg_Id="late")
    run = late_answer.body["error"]["run"]
    waited = await crm.api("result", run=run, timeout=0.05)
    signals = [await crm.api("signal", run=run, name="go", payload=7, id="s-1") for _ in range(2)]
    ended = await crm.api("result", run=run)
    again = await crm.ask("waiter/late", Nats_Msg_Id="late")

    assert (late_answer.code, late_answer.body["error"]["type"], waited.code) == (
        408,
        "timeout",
        408,
    )
    assert [answer.body["accepted"] for answer in signals] == [True, False]
    assert ended.body == {"run": run, "status": "COMPLETED", "output": 7, "error": None}
    assert (again.body, again.run) == (7, run)


async def test_the_error_of_a_failed_or_cancelled_run_has_its_reason(crm: Outside) -> None:
    """The error has the run and its error text."""
    failed = await crm.ask("failing/a", "this")
    run = await submitted(crm, "waiter/cancelled")
    cancelled = [(await crm.api("cancel", run=run, reason="enough")).body["cancelled"]]
    ended = await crm.api("result", run=run)
    cancelled += [(await crm.api("cancel", run=run, reason="again")).body["cancelled"]]
    asking = asyncio.create_task(crm.ask("waiter/c2", Nats_Msg_Id="c2"))
    other = await crm.api("submit", agent="waiter/c2", payload=None, id="c2")
    await crm.api("cancel", run=other.body["run"], reason="stop it")
    answer = await asking

    assert (failed.code, failed.body["error"]["type"]) == (422, "run_failed")
    assert "no use for this" in failed.body["error"]["message"]
    assert cancelled == [True, False]
    assert (ended.body["status"], ended.body["error"]) == ("CANCELLED", {"message": "enough"})
    assert (answer.code, answer.run) == (499, other.body["run"])
    assert "stop it" in answer.headers["Nats-Service-Error"]


async def test_a_question_to_an_unserved_type_fails_at_once(crm: Outside, host: Runtime) -> None:
    """The error comes at once, and nothing was submitted."""
    answer = await crm.ask("nobody/a", {})

    assert (answer.code, answer.body["error"]["type"]) == (404, "unserved")
    assert "nobody/a" in answer.body["error"]["message"]
    assert await host.store.lists.runs(agent=AgentId("nobody", "a")) == []


async def test_a_busy_agent_can_be_joined_refused_or_interrupted(crm: Outside) -> None:
    """The header selects it."""
    run = await submitted(crm, "waiter/busy")
    await until_open(crm, run)
    refused = await crm.ask("waiter/busy", Actor_On_Conflict="reject")
    joined = await crm.api("submit", agent="waiter/busy", payload=1, on_conflict="join")
    newer = await crm.api("submit", agent="waiter/busy", payload=2, on_conflict="interrupt")

    assert (refused.code, refused.body["error"]["details"]) == (409, {"busy_with": run})
    assert joined.body["run"] == run != newer.body["run"]
    assert (await crm.api("result", run=run)).body["status"] == "CANCELLED"


async def until_open(crm: Outside, run: str) -> None:
    """Return once a run has started and is idle."""

    async def rests() -> bool:
        return bool((await crm.api("status", run=run)).body["status"] == "SUSPENDED")

    await until(rests, f"{run} rests")


async def test_agents_follow_topics_for_a_service(crm: Outside, host: Runtime) -> None:
    """Each post once, until it unfollows."""
    done = [
        (await crm.api(verb, agent="echo/fan", topic="news/gw")).body
        for verb in ("follow", "unfollow", "unfollow")
    ]
    described = (await crm.api("describe")).body
    await crm.api("follow", agent="echo/fan", topic="news", mode="lazy")

    assert done == [{}, {"followed": True}, {"followed": False}]
    assert {agent["type"] for agent in described["agents"]} >= set(TYPES)
    assert await host.unfollow(AgentId("echo", "fan"), "news")


async def test_runs_of_another_tenant_are_unknown(bed: Bed, crm: Outside) -> None:
    """For each request; naming the tenant's agents is refused."""
    run = await submitted(crm, "waiter/mine")
    async with outside(bed.nats_url, bed.namespace, tenant="acme") as other:
        answers = [
            await other.api(verb, run=run, **more)
            for verb, more in (
                ("status", {}),
                ("result", {"timeout": 1}),
                ("cancel", {}),
                ("events", {}),
                ("signal", {"name": "go"}),
            )
        ]
        refusal = await other.api("submit", agent="default:echo/a", payload=1)
        own = await other.ask("echo/a", 1)

    assert [(answer.code, answer.body["error"]["type"]) for answer in answers] == [
        (404, "unknown_run")
    ] * 5
    assert refusal.code == 403
    assert own.body["from"] == "ext:crm"
    assert (await crm.api("status", run=run)).body["status"] != "COMPLETED"


BAD: list[tuple[str, bytes, dict[str, str], int]] = [
    ("ask.v1.default.echo.bad.crm", b"{no json", {}, 400),
    ("ask.v1.default.echo.bad.crm", b'{"n": NaN}', {}, 400),
    ("ask.v1.default.echo.bad.crm", b'"\\u0000"', {}, 400),
    ("ask.v1.default.echo.bad.crm", b"[" * 70 + b"]" * 70, {}, 400),
    ("ask.v1.default.echo.bad.crm", b"[" * 100_000, {}, 400),
    ("ask.v1.default.echo.bad.crm", b'"' + b"x" * 300_000 + b'"', {}, 413),
    ("ask.v1.default.echo.bad.crm", b"\xc1", {"Content-Type": "application/msgpack"}, 400),
    ("ask.v1.default.echo.bad.crm", b"{}", {"Content-Type": "text/plain"}, 400),
    ("ask.v1.default.echo.bad.crm", b"{}", {"Actor-Timeout": "soon"}, 400),
    ("ask.v1.default.echo.bad.crm", b"{}", {"Actor-Timeout": "nan"}, 400),
    ("ask.v1.default.echo.bad.crm", b"{}", {"Actor-Timeout": "3601"}, 400),
    ("ask.v1.default.echo.bad.crm", b"{}", {"Actor-Priority": "-1"}, 400),
    ("ask.v1.default.echo.bad.crm", b"{}", {"Actor-Priority": "4"}, 403),
    ("ask.v1.default.echo.bad.crm", b"{}", {"Actor-On-Conflict": "fight"}, 400),
    ("ask.v1.default.echo.bad.crm", b"{}", {"Nats-Msg-Id": "x" * 257}, 400),
    ("ask.v1.default.echo.bad.crm", b"{}", {"Actor-Target": "echo/other"}, 400),
    ("ask.v1.default.echo.bad.crm", b"{}", {"Actor-Target": "echo/%FF"}, 400),
    ("ask.v1.default.echo.bad.crm", b"{}", {"Actor-Target": "nothing"}, 400),
    ("ask.v1.default.echo.bad.crm", b"1" * 5000, {}, 400),
    ("ask.v1.default.echo.bad.crm", b'"\\ud800"', {}, 400),
    (
        "ask.v1.default.echo.bad.crm",
        b"\x91" * 100_000,
        {"Content-Type": "application/msgpack"},
        400,
    ),
    (
        "ask.v1.default.echo.bad.crm",
        b"\xdf\xff\xff\xff\xff",
        {"Content-Type": "application/msgpack"},
        400,
    ),
    ("ask.v1.default.echo.bad", b"{}", {}, 400),
    ("ask.v1.default.echo.%41.crm", b"{}", {}, 400),
    ("ask.v1.default.echo.%7Efan.crm", b"{}", {}, 403),
    ("api.v1.default.crm.result", b'{"run": "r", "timeout": 1' + b"0" * 400 + b"}", {}, 400),
    ("api.v1.default.crm.dance", b"{}", {}, 400),
    ("api.v1.default.crm", b"{}", {}, 400),
    ("api.v1.default.crm.submit", b"[]", {}, 400),
    ("api.v1.default.crm.submit", b'{"agent": "echo/bad"}', {}, 400),
    ("api.v1.default.crm.submit", b'{"agent": "echo", "payload": 1}', {}, 400),
    ("api.v1.default.crm.submit", b'{"agent": "echo/bad", "payload": 1, "prio": 1}', {}, 400),
    ("api.v1.default.crm.submit", b'{"agent": "echo/~bad", "payload": 1}', {}, 403),
    ("api.v1.default.crm.submit", b'{"agent": "echo/bad", "payload": 1, "priority": 1.5}', {}, 400),
    ("api.v1.default.crm.submit", b'{"agent": "echo/bad", "payload": 1, "priority": 0}', {}, 403),
    ("api.v1.default.crm.submit", b'{"agent": 1, "payload": 1}', {}, 400),
    ("api.v1.default.crm.status", b"{}", {}, 400),
    ("api.v1.default.crm.status", b'{"run": "nope"}', {}, 404),
    ("api.v1.default.crm.status", b'{"run": ""}', {}, 404),
    ("api.v1.default.crm.result", b'{"run": "nope", "timeout": true}', {}, 400),
    ("api.v1.default.crm.signal", b'{"run": "nope", "name": "~retry"}', {}, 400),
    ("api.v1.default.crm.events", b'{"run": "nope", "from_seq": -1}', {}, 400),
    ("api.v1.default.crm.events", b'{"run": "nope"}', {}, 404),
    ("api.v1.default.crm.follow", b'{"agent": "echo/bad", "topic": "a b/c"}', {}, 400),
    ("api.v1.default.crm.follow", b'{"agent": "echo/bad", "topic": "a", "mode": "x"}', {}, 400),
]


async def test_bad_requests_are_refused_with_a_reason_and_do_nothing(
    crm: Outside, host: Runtime
) -> None:
    """Each error has the problem and the remedy; the next request is served."""
    for subject, body, headers, code in BAD:
        answer = await crm.request(subject, body, headers)
        assert answer.code == code, (subject, body[:60], headers, answer)
        error = answer.body["error"]
        assert error["code"] == code
        assert error["message"], subject
        assert error["remedy"], subject

    assert await host.store.lists.runs(agent=AgentId("echo", "bad")) == []
    assert (await crm.ask("echo/good", 1)).code == 0


async def test_the_error_of_a_too_large_answer_has_the_run(crm: Outside) -> None:
    """An event with a large entry comes without its data."""
    answer = await crm.ask("sayer/a", {"letters": 1_200_000})
    run = answer.body["error"]["run"]
    events = await crm.events(run=run)
    cut = [event["name"] for event in events if event.get("truncated")]

    assert (answer.code, answer.run) == (413, run)
    assert cut == ["effect.result", "run.completed", "COMPLETED"]


async def test_the_requests_that_a_host_holds_are_limited(
    crm: Outside, host: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Further ones are refused with a retry, and are served when there is capacity."""
    monkeypatch.setattr("broker._gateway.gateway.MAX_REQUESTS", 3)
    gateway = gateway_of(host)
    tasks = [
        asyncio.create_task(crm.ask(f"waiter/full{n}", Nats_Msg_Id=f"full{n}", Actor_Timeout="20"))
        for n in range(10)
    ]
    await until(lambda: sum(task.done() for task in tasks) == 7, "seven of a burst are refused")
    refused = [task.result() for task in tasks if task.done()]
    more = await crm.ask("echo/full", 1)
    assert gateway.open_requests == 3
    waiting = [n for n in range(10) if not tasks[n].done()]
    for n in waiting:
        run = run_id_of_submit(AgentId("waiter", f"full{n}"), "ext:crm", f"full{n}")
        await host.signal(run, "go", n)

    assert {(answer.code, answer.body["error"]["type"]) for answer in (*refused, more)} == {
        (429, "too_many")
    }
    assert [(await tasks[n]).body for n in waiting] == waiting
    assert (await crm.ask("echo/full", 1)).code == 0
    assert gateway.open_requests == 0


async def test_the_bytes_that_a_host_holds_are_limited(
    crm: Outside, host: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes of bodies and headers, while their runs execute; a small request is served beside them."""
    monkeypatch.setattr("broker._gateway.gateway.MAX_HELD_BYTES", 300_000)
    gateway = gateway_of(host)
    runs = []
    for n in range(2):
        big = {"Nats_Msg_Id": f"big{n}", "Actor_Timeout": "20", "X_Big": "x" * 100_000}
        runs.append(asyncio.create_task(crm.ask(f"waiter/big{n}", "y" * 40_000, **big)))
    await until(lambda: gateway.open_requests == 2, "two are held")
    for size in ({"X_Big": "x" * 30_000}, {"X_Big": "x" * 200_000}):
        assert (await crm.ask("echo/big", 1, **size)).code == 429
    assert (await crm.ask("echo/small", 1)).code == 0
    for n, task in enumerate(runs):
        run = run_id_of_submit(AgentId("waiter", f"big{n}"), "ext:crm", f"big{n}")
        await host.signal(run, "go", n)
        assert (await task).body == n

    assert (await crm.ask("echo/big", 1, X_Big="x" * 200_000)).code == 0
    assert (gateway.open_requests, gateway._open_bytes) == (0, 0)


async def test_the_send_buffer_of_a_client_that_does_not_read_is_limited(
    crm: Outside, host: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If much waits to be sent already, a refusal is not sent."""
    mute = await crm.client.subscribe("_INBOX_mute.flood")
    with monkeypatch.context() as full:
        full.setattr("broker._gateway.gateway.MAX_REQUESTS", 0)
        full.setattr("broker._gateway.gateway.PENDING_BYTES", -1)
        subject = f"{crm._prefix}ask.v1.default.echo.flood.crm"
        before = gateway_of(host)._endpoints["ask"].requests
        await crm.client.publish(subject, b"1", reply="_INBOX_mute.flood")
        await until(lambda: gateway_of(host)._endpoints["ask"].requests > before, "it came")
    assert (await crm.ask("echo/flood", 1)).code == 0

    assert mute.pending_msgs == 0


async def test_a_subject_that_is_no_text_keeps_the_connection(
    bed: Bed, host: Runtime, crm: Outside
) -> None:
    """A client that may publish anything sends it to the gateway: as reply subject, and as renewal."""
    client = gateway_of(host)._client
    streams = gateway_of(host)._streams
    assert client is not None
    assert streams is not None
    async with raw_nats(bed.nats_url) as outsider:
        for subject in (b"$SRV.PING _INBOX.\xff", streams._inbox.encode() + b".\xff"):
            await outsider.send(b"PUB " + subject + b" 0\r\n\r\n")
        await outsider.settled()
    await crm.ask("echo/after", 1)

    assert not client.lost.is_set()


@pytest.mark.item(483)
@pytest.mark.parametrize("way", ["ask", "submit"])
async def test_a_question_continues_the_trace_of_its_sender(
    crm: Outside, host: Runtime, way: str
) -> None:
    """Also if its headers have nothing else."""
    caller = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    if way == "ask":
        run = (await crm.ask(f"echo/traced-{way}", 1, traceparent=caller)).run
    else:
        body = json.dumps({"agent": "echo/traced", "payload": 1}).encode()
        subject = f"{crm._prefix}api.v1.default.crm.submit"
        answer = await crm.client.request(
            subject, body, timeout=PATIENCE_S, headers={"traceparent": caller}
        )
        run = json.loads(answer.data)["run"]
    row = await host.store.reads.run(RunId(str(run)))

    assert row is not None
    assert row.trace == caller
    assert trace_id_of(row) == caller.split("-")[1]


async def test_a_run_is_watched_from_its_first_entry_to_its_end(
    crm: Outside, host: Runtime
) -> None:
    """The log in order, once each; the model's pieces between; the end mark last."""
    run = await submitted(crm, "teller/a", {})
    events: list[dict[str, Any]] = []
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(crm.events(run=run))
        await until_open(crm, run)
        await until(lambda: RunId(run) in host.live._readers, "it is watched")
        await crm.api("signal", run=run, name="go")
    events = watching.result()
    entries = [event for event in events if event["kind"] == "entry"]
    deltas = [event for event in events if event["kind"] == "delta"]
    again = await crm.events(run=run, from_seq=entries[-1]["seq"])

    assert [event["seq"] for event in entries] == list(range(len(entries)))
    assert [event["data"] for event in deltas] == [
        {"n": n, "text": t} for n, t in enumerate(PIECES)
    ]
    assert {event["attempt"] for event in events} == {1}
    assert events.index(deltas[-1]) < [event["name"] for event in events].index("llm.call")
    assert events[-1]["data"] == {"result": "".join(PIECES), "error": None}
    assert [(event["kind"], event["name"]) for event in again] == [
        ("entry", "run.completed"),
        ("end", "COMPLETED"),
    ]
    assert await crm.events(run=run, from_seq=len(entries)) == again[1:]
    assert (await crm.events(run=run, from_seq=99))[0]["error"]["code"] == 400


async def test_the_stream_of_a_disconnected_reader_is_closed(
    crm: Outside, host: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that answers its heartbeats keeps its stream, however few events there are."""
    monkeypatch.setattr(events_stream, "BEAT_EVERY_S", 0.05)
    monkeypatch.setattr(events_stream, "FORGET_AFTER_S", 2.5)
    gateway = gateway_of(host)
    run = await submitted(crm, "waiter/watched")
    await until_open(crm, run)
    api = gateway._endpoints["api"]
    before = api.requests
    subject = f"{crm._prefix}api.v1.default.crm.events"
    await crm.client.subscribe("_INBOX_mute.1")
    for reply in ("_INBOX_gone.1", "_INBOX_gone.2", "_INBOX_mute.1"):
        await crm.client.publish(subject, b'{"run": "%b"}' % run.encode(), reply=reply)
    watching = asyncio.create_task(crm.events(run=run))
    await until(lambda: api.requests - before >= 4, "four readers")
    await until(lambda: gateway.open_requests == 1, "three of them are forgotten")
    assert not watching.done()
    await crm.api("signal", run=run, name="go")
    events = await watching

    assert events[-1]["kind"] == "end"
    await until(lambda: gateway.open_requests == 0, "no stream")
    assert host.live._readers == {}


async def test_a_reader_without_the_right_to_answer_heartbeats_renews_by_a_request(
    crm: Outside, host: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another account, for example; an invalid renewal has no effect."""
    monkeypatch.setattr(events_stream, "BEAT_EVERY_S", 0.05)
    monkeypatch.setattr(events_stream, "FORGET_AFTER_S", 2.5)
    gateway = gateway_of(host)
    run = await submitted(crm, "waiter/renewed")
    came = await crm.client.subscribe("_INBOX_far.1")
    prefix = f"{crm._prefix}api.v1.default.crm"
    body = json.dumps({"run": run}).encode()
    await crm.client.publish(f"{prefix}.events", body, reply="_INBOX_far.1")
    beats = 0
    while beats < 70:  # 3.5 seconds: longer than the stream would live by itself
        message = await came.next_msg(timeout=20)
        stream = (message.headers or {}).get("Actor-Stream")
        if stream is not None:
            beats += 1
            for renewal in (b"{", b"[]", b'{"stream": 1}', json.dumps({"stream": stream}).encode()):
                await crm.client.publish(f"{prefix}.renew", renewal)
    held_count = gateway.open_requests
    await until(lambda: gateway.open_requests == 0, "nobody renews it any more")

    assert held_count == 1


async def test_hosts_are_a_nats_micro_service(crm: Outside, host: Runtime) -> None:
    """Ping, info and stats have the host's name, its types, and counts."""
    mine = f"$SRV.STATS.callboard.{host.owner}"
    counted = [await stats_of(crm, mine)]
    await crm.ask("echo/counted", 1)
    await crm.ask("nobody/counted", 1)
    counted.append(await stats_of(crm, mine))
    info = await stats_of(crm, f"$SRV.INFO.callboard.{host.owner}")
    ping = await stats_of(crm, f"$SRV.PING.callboard.{host.owner}")

    asks = [stats["endpoints"][0] for stats in counted]
    assert asks[1]["num_requests"] - asks[0]["num_requests"] == 2
    assert asks[1]["num_errors"] - asks[0]["num_errors"] == 1
    assert "nobody/counted" in asks[1]["last_error"]
    assert [endpoint["name"] for endpoint in info["endpoints"]] == ["ask", "api"]
    assert (ping["name"], info["metadata"]["host"]) == ("callboard", host.owner)
    assert set(info["metadata"]["serves"].split(",")) == set(TYPES)


async def stats_of(crm: Outside, subject: str) -> Any:
    """Return a host's answer."""
    answer = await crm.client.request(subject, timeout=PATIENCE_S)
    return json.loads(answer.data)


async def test_requests_without_a_host_get_no_responders(bed: Bed) -> None:
    """The broker itself answers so, at once."""
    async with outside(bed.nats_url, f"{bed.namespace}-none") as service:
        with pytest.raises(NoRespondersError):
            await service.ask("echo/a", 1)
