"""Streams of events over HTTP: each event once, from any cursor, in any process, within limits."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

import pytest

from actors.sessions import EVENTS
from compose._web import streams
from compose._web.problems import ProblemError
from compose._web.requests import LOCAL
from compose._web.streams import EventLine, EventStream, Streams
from tests.behaviour.talks import Echo, parent_on
from tests.behaviour.web import (
    WebClient,
    create_session,
    pages_of,
    run_message,
    web_elsewhere,
    web_on,
)

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

ENDS: Final = ("run_completed", "run_failed", "run_cancelled")


def types_of(events: list[dict[str, Any]]) -> list[str]:
    """Return types of events, without the pieces of answers."""
    return [
        event["event"] for event in events if not event["event"].endswith(("_delta", "_snapshot"))
    ]


def contents(events: list[dict[str, Any]]) -> list[str]:
    """Return stored events without their place: two readers may get a fact between different entries."""
    return sorted(str({**event["data"], "event_id": None}) for event in events if "id" in event)


async def filled(web: WebClient, echo: Echo) -> str:
    """Create a session with three runs, one of them cancelled in the queue; return its path."""
    path = await create_session(web)
    gate = echo.hold("1")
    ids = [(await web.post(f"{path}/runs", {"text": text}))["run_id"] for text in ("1", "2", "3")]
    await web.post(f"{path}/runs/{ids[1]}/cancel", prefer="wait=20")
    gate.set()
    for id_ in (ids[0], ids[2]):
        run = {"status": "open"}
        while run["status"] not in ("completed", "cancelled"):
            run = await web.post(
                f"{path}/runs", {"text": "x", "message_id": "wait"}, prefer="wait=1"
            )
            run = await web.get(f"{path}/runs/{id_}")
    return path


@pytest.mark.item(343, 348, 349, 351, 361, 362, 364, 371, 378)
async def test_a_message_is_answered_by_the_stream_of_its_run(bed: Bed, app: str) -> None:
    """The stream ends with the run, and has its id; the same message again gives the same stream."""
    async with web_on(bed, Echo().agent(), app_name=app) as web:
        path = await create_session(web)
        last: dict[str, Any] = {}
        for _ in range(2):
            async with web.stream(f"{path}/runs", {"text": "hello"}, idempotency_key="m") as stream:
                events = await stream.until()
            assert stream.answer.status == 200
            assert stream.answer.headers["content-type"].startswith("text/event-stream")
            assert types_of(events) == ["loop_started", "message", "message", "run_completed"]
            for fields in events:
                event = EVENTS.validate_json(json.dumps(fields["data"]))
                assert (event.type, event.event_id) == (fields["event"], fields.get("id"))
            last = events[-1]
            assert last["data"]["payload"] == {"output": "echo: hello"}
            url = f"{path}/runs/{last['data']['run_id']}"
            assert stream.answer.headers["location"] == url
            assert all(("id" in event) == ("_delta" not in event["event"]) for event in events)
        url = f"{path}/runs/{last['data']['run_id']}/events"
        async with web.stream(url, last_event_id=last["id"]) as over:
            assert await over.next() is None
        assert over.answer.status == 204


@pytest.mark.item(374, 375)
async def test_a_stream_continues_in_another_process(bed: Bed, app: str) -> None:
    """After any event of a session or of a run, none is missing and none is repeated."""
    echo = Echo()
    async with (
        web_on(bed, echo.agent(), app_name=app) as web,
        web_elsewhere(bed, app_name=app) as other,
    ):
        path = await filled(web, echo)
        whole = (await web.get(f"{path}/events?limit=500"))["events"]
        async with web.stream(f"{path}/events") as stream:
            read_events = [await stream.next() for _ in whole]
        stored = [event for event in read_events if event is not None]
        assert sorted(event["data"]["type"] for event in stored) == sorted(
            event["type"] for event in whole
        )
        for index, event in enumerate(stored[:-1]):
            for name in ("header", "query"):
                after = "" if name == "header" else f"?after={event['id']}"
                headers = {"last_event_id": event["id"]} if name == "header" else {}
                async with other.stream(f"{path}/events{after}", **headers) as rest:
                    behind = [await rest.next() for _ in stored[index + 1 :]]
                assert contents([event for event in behind if event]) == contents(
                    stored[index + 1 :]
                )
        for run in {event["data"]["run_id"] for event in stored}:
            async with web.stream(f"{path}/runs/{run}/events") as alone:
                mine = [event for event in await alone.until() if "id" in event]
            assert types_of(mine)[-1] in (*ENDS, "run_dequeued")
            for index, event in enumerate(mine):
                async with other.stream(
                    f"{path}/runs/{run}/events", last_event_id=event["id"]
                ) as rest:
                    events = await rest.until()
                assert contents(events) == contents(mine[index + 1 :]), (index, mine)


async def test_events_come_in_pages_too(bed: Bed, app: str) -> None:
    """The same events, with cursors that a stream accepts, too."""
    echo = Echo()
    async with web_on(bed, echo.agent(), app_name=app) as web:
        path = await filled(web, echo)
        run = (await web.get(f"{path}/runs?limit=1"))["runs"][0]["run_id"]
        for url in (f"{path}/events", f"{path}/runs/{run}/events"):
            whole = await web.get(f"{url}?limit=500")
            pages = await pages_of(web, f"{url}?limit=3")
            events = [event for page in pages for event in page["events"]]
            assert events == whole["events"]
            assert whole["cursor"] == events[-1]["event_id"] == pages[-1]["cursor"]
            behind = await web.get(f"{url}?after={whole['cursor']}")
            assert behind == {"events": [], "next": None, "cursor": whole["cursor"]}
        empty = await web.get(f"{await create_session(web, 'empty')}/events")
        assert empty == {"events": [], "next": None, "cursor": None}


async def test_a_cursor_of_another_session_is_refused_before_the_stream(bed: Bed, app: str) -> None:
    """So is an invalid cursor, and one of a session that was deleted since."""
    async with web_on(bed, Echo().agent(), app_name=app) as web:
        path, other = await create_session(web), await create_session(web, "t")
        run = (await run_message(web, path, "1"))["run_id"]
        cursor = (await web.get(f"{path}/events"))["cursor"]
        for url in (f"{other}/events", f"{path}/events", f"{path}/runs/{run}/events"):
            for bad in (cursor,) if url.startswith(other) else ("99:1", "x", "1:99", "-1:0"):
                async with web.stream(url, last_event_id=bad) as stream:
                    await stream.until()
                assert (stream.answer.status, stream.answer.data["code"]) == (400, "bad_cursor"), (
                    url,
                    bad,
                )
        for bad in ("x", "99", "1" * 30):
            async with web.stream(f"/v1/runs/{run}/events", last_event_id=bad) as stream:
                await stream.until()
            assert (stream.answer.status, stream.answer.data["code"]) == (400, "bad_cursor")
        await web("DELETE", path)
        async with web.stream(f"{path}/events", last_event_id=cursor) as stream:
            await stream.until()
        assert stream.answer.status == 410


async def test_pieces_of_an_answer_are_live_only(bed: Bed, app: str) -> None:
    """They have no id: a reader continues after the last stored event."""
    echo = Echo()
    gate = echo.hold("one two three")
    async with web_on(bed, echo.agent(), app_name=app) as web:
        path = await create_session(web)
        run = await web.post(f"{path}/runs", {"text": "one two three"})
        url = f"{path}/runs/{run['run_id']}/events"
        async with web.stream(url) as live, web.stream(f"{url}?live=false") as still:
            await live.until("loop_started")
            gate.set()
            events = await live.until()
            quiet = await still.until()
        text = "".join(
            event["data"]["payload"]["text"] for event in events if event["event"] == "text_delta"
        )
        assert text == "echo: one two three"
        assert [event for event in quiet if "id" not in event] == []
        assert types_of(events)[-1] == types_of(quiet)[-1] == "run_completed"


@pytest.mark.item(353, 354, 373, 380)
async def test_the_events_of_a_child_can_be_followed_from_any_place(bed: Bed, app: str) -> None:
    """As a stream, and in pages."""
    parent = await parent_on(bed, Echo("child"))
    async with web_on(bed, {"normal": parent}, app_name=app) as web:
        path = await create_session(web)
        run = (await run_message(web, path, "go"))["run_id"]
        [child] = (await web.get(f"{path}/runs/{run}/children"))["runs"]
        url = f"{path}/runs/{run}/children/{child['run_id']}/events"
        async with web.stream(url) as stream:
            events = await stream.until()
        assert types_of(events)[-1] == "run_completed"
        page = await web.get(url)
        assert page["events"] == [event["data"] for event in events]
        for index, event in enumerate(events):
            async with web.stream(url, last_event_id=event["id"]) as rest:
                assert await rest.until() == events[index + 1 :]
        assert (await web("GET", f"{url}?after=x")).status == 400
        unknown = await web("GET", f"{path}/runs/{run}/children/{run}/events")
        assert unknown.status == 404


@pytest.mark.item(115)
async def test_the_log_of_any_run_can_be_followed(bed: Bed, app: str) -> None:
    """From any entry on, to the end mark."""

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        return await ctx.sleep_until_signal("go")

    agent = await bed.serve(act)
    async with (
        web_on(bed, Echo().agent(), app_name=app) as web,
        web_elsewhere(bed, app_name=app) as other,
    ):
        path = f"/v1/agents/{agent.type}/{agent.key}/messages"
        run = (await web.post(path, {"payload": 1}))["run_id"]
        async with other.stream(f"/v1/runs/{run}/events") as stream:
            await stream.next()
            await bed.runtime.signal(run, "go", 2)
            events = await stream.until()
        assert (events[-1]["event"], events[-1]["data"]["name"]) == ("end", "COMPLETED")
        kinds = [entry.kind for entry in await bed.log(run)]
        assert [event["data"]["name"] for event in events[:-1]] == kinds[1:]
        async with web.stream(f"/v1/runs/{run}/events", last_event_id="0") as again:
            assert [event["data"]["name"] for event in await again.until()][:-1] == kinds[1:]
        async with web.stream(f"/v1/runs/{run}/events", last_event_id=str(len(kinds) - 1)) as over:
            await over.until()
        assert over.answer.status == 204


@pytest.mark.item(372, 379)
async def test_a_disconnect_cancels_only_if_the_query_asks_for_it(bed: Bed, app: str) -> None:
    """By `on_disconnect=cancel`, for a new run or a followed one."""
    echo = Echo()
    async with web_on(bed, echo.agent(), app_name=app) as web:
        path = await create_session(web)
        gate = echo.hold("stay")
        async with web.stream(f"{path}/runs", {"text": "stay"}) as stream:
            [began] = await stream.until("loop_started")
        gate.set()
        assert (await run_message(web, path, "next"))["status"] == "completed"
        stayed = await web.get(f"{path}/runs/{began['data']['run_id']}")
        assert stayed["status"] == "completed"
        echo.hold("go")
        async with web.stream(f"{path}/runs?on_disconnect=cancel", {"text": "go"}) as stream:
            [began] = await stream.until("loop_started")
        row = await bed.ended(began["data"]["run_id"])
        assert (row.status, row.cancel_requested) == (
            "CANCELLED",
            "the client that read the run has disconnected",
        )


async def test_a_slow_reader_is_disconnected_with_a_cursor(
    bed: Bed, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs continue, and a reader that reconnects misses nothing. A fast reader is not disconnected."""
    monkeypatch.setattr(streams, "MAX_BEHIND", 3)
    async with web_on(bed, Echo().agent(), app_name=app) as web:
        path = await create_session(web)
        async with web.stream(f"{path}/events?live=false", is_slow=True) as stream:
            await bed.until(lambda: stream.answer.status)
            for text in ("1", "2", "3"):
                await run_message(web, path, text)
            [slow] = web_streams(web).open
            await bed.until(lambda: slow.is_over)
            stream.free.set()
            events = await stream.until()
        *read_events, last = events
        assert (last["event"], stream.chunks[-2][-13:]) == ("resume", b"retry: 2000\n\n")
        assert last["data"]["after"] == read_events[-1]["id"]
        whole = (await web.get(f"{path}/events"))["events"]
        assert 0 < len(read_events) < len(whole)
        async with web.stream(f"{path}/events", last_event_id=last["data"]["after"]) as rest:
            behind = [await rest.next() for _ in whole[len(read_events) :]]
        assert [event["data"] for event in (*read_events, *behind) if event] == whole


async def test_a_stream_is_limited_and_sends_heartbeats() -> None:
    """One event may be larger than the limit; a heartbeat is no event."""
    line = EventLine("message", b"{}", "1:2")
    for size, most in ((2, streams.MAX_BEHIND), (300_000, 3)):
        stream = EventStream()
        await stream.pump(_lines(EventLine("message", b"x" * size, f"1:{n}") for n in range(2_000)))
        chunks = [chunk async for chunk in stream.chunks()]
        assert chunks[0].count(b"event: message") == most
        assert b"event: resume" in chunks[0]
        assert chunks[0].endswith(b"retry: 2000\n\n")
    large = EventStream()
    await large.pump(_lines([EventLine("message", b"x" * 5_000_000)]))
    assert len(b"".join([chunk async for chunk in large.chunks()])) > 5_000_000
    quiet = EventStream()
    sent = quiet.chunks()
    assert await anext(sent) == b"retry: 2000\n\n"
    quiet.beat()
    quiet.beat()
    assert await anext(sent) == b": beat\n\n"
    quiet.end(line)
    quiet.end(line)
    assert await anext(sent) == b"id: 1:2\nevent: message\ndata: {}\n\nretry: 2000\n\n"


async def _lines(lines: Any) -> Any:
    for line in lines:
        yield line


async def test_streams_of_a_process_and_of_a_principal_are_limited(
    bed: Bed, app: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more is refused with 429 and a retry time, and no run is started for it."""
    monkeypatch.setattr(streams, "MAX_STREAMS_OF_ONE", 2)
    async with web_on(bed, Echo().agent(), app_name=app) as web, AsyncExitStack() as stack:
        path = await create_session(web)
        opened = [await stack.enter_async_context(web.stream(f"{path}/events")) for _ in range(2)]
        await bed.until(lambda: all(stream.answer.status for stream in opened))
        for url, body in ((f"{path}/events", None), (f"{path}/runs", {"text": "x"})):
            async with web.stream(url, body) as more:
                await more.until()
            assert (more.answer.status, more.answer.data["code"]) == (429, "too_many_streams")
            assert more.answer.headers["retry-after"] == "5"
        assert (await web.get(f"{path}/runs"))["runs"] == []
        opened[0].disconnect.set()
        await bed.until(lambda: web_streams(web).is_free_for_one)
        async with web.stream(f"{path}/events") as again:
            await bed.until(lambda: again.answer.status)
            assert again.answer.status == 200
    monkeypatch.setattr(streams, "MAX_STREAMS", 0)
    with pytest.raises(ProblemError):
        Streams().check(LOCAL)


class web_streams:  # noqa: N801 - reads as a question
    """The streams of the process that a client calls."""

    def __init__(self, web: WebClient) -> None:
        self._streams: Streams = web._app._streams  # type: ignore[attr-defined]

    @property
    def open(self) -> list[EventStream]:
        """Return the open streams."""
        return [*self._streams._open]

    @property
    def is_free_for_one(self) -> bool:
        """Return whether one more may be opened."""
        try:
            self._streams.check(LOCAL)
        except ProblemError:
            return False
        return True


async def test_a_quiet_stream_sends_heartbeats_and_a_shutdown_ends_it(bed: Bed, app: str) -> None:
    """In virtual time: one heartbeat for all streams, none without streams."""
    if bed.backend != "memory":
        pytest.skip("a quarter of a minute")
    async with web_on(bed, Echo().agent(), app_name=app) as web:
        path = await create_session(web)
        async with web.stream(f"{path}/events") as first, web.stream(f"{path}/events") as second:
            await asyncio.sleep(2 * streams.BEAT_S + 1)
            assert [first.chunks, second.chunks] == [[b"retry: 2000\n\n", *[b": beat\n\n"] * 2]] * 2
            web._app.end_streams()  # type: ignore[attr-defined]
            assert [await first.next(), await second.next()] == [None, None]
            assert first.chunks[-2:] == [b"retry: 2000\n\n", b""]
        async with web.stream(f"{path}/events") as late:
            await late.until()
        assert (late.answer.status, late.answer.data["code"]) == (503, "stopping")
        assert len(web._app._streams._tasks) == 0  # type: ignore[attr-defined]


async def test_many_readers_see_each_event_once(bed: Bed, app: str) -> None:
    """Readers from the start and later ones, of one process or another."""
    echo = Echo()
    gate = echo.hold("1")
    async with (
        web_on(bed, echo.agent(), app_name=app) as web,
        web_elsewhere(bed, app_name=app) as other,
    ):
        path = await create_session(web)
        async with AsyncExitStack() as stack:
            readers = [
                await stack.enter_async_context(client.stream(f"{path}/events?live=false"))
                for client in (web, other, web)
            ]
            await web.post(f"{path}/runs", {"text": "1"})
            late = await stack.enter_async_context(other.stream(f"{path}/events?live=false"))
            gate.set()
            event_lists = [await stream.until(*ENDS) for stream in (*readers, late)]
        assert [contents(events) for events in event_lists] == [contents(event_lists[0])] * 4
