"""Streams of events over sockets, NATS and PostgreSQL: disconnects, killed processes, orderly ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from tests.system.web.conversing import APP_NAME, SPEC, WORDS, client_of, done

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.system.processes import Hosts

SSE = {"accept": "text/event-stream"}
END = "run_completed"


@asynccontextmanager
async def reading(
    client: httpx2.AsyncClient, method: str, url: str, **options: Any
) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    """Yield the events of a stream as they come."""
    headers = {**SSE, **options.pop("headers", {})}
    async with client.stream(method, url, headers=headers, **options) as response:
        assert response.status_code == 200, await response.aread()
        yield _events(response)


async def _events(response: httpx2.Response) -> AsyncIterator[dict[str, Any]]:
    event: dict[str, Any] = {}
    async for line in response.aiter_lines():
        name, _, value = line.partition(": ")
        if not line and "data" in event:
            yield event
        if not line:
            event = {}
        elif name in ("id", "event", "retry"):
            event[name] = value
        elif name == "data":
            event["data"] = json.loads(value)


async def until_end(events: AsyncIterator[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return events up to the end of a run."""
    run_events = []
    async for event in events:
        run_events.append(event)
        if event["event"] == END:
            break
    return run_events


def stored(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return stored events without their id: another reader may get a fact between other entries."""
    return [{**event["data"], "event_id": None} for event in events if "id" in event]


def text_of(events: list[dict[str, Any]]) -> str:
    """Return the text of an answer, assembled from pieces and snapshots like a reader's."""
    text = ""
    for event in events:
        if event["event"] == "text_delta":
            text += event["data"]["payload"]["text"]
        elif event["event"] == "text_snapshot":
            text = event["data"]["payload"]["text"]
    return text


@pytest.mark.costly
@pytest.mark.item(348, 349, 361, 364, 371, 374, 375, 378)
async def test_a_stream_continues_at_another_process_after_a_disconnect(fleet: Hosts) -> None:
    """In the middle of an answer, after the last event: no event is missing, none comes twice."""
    _, first_url = await fleet.web(SPEC)
    _, other_url = await fleet.web("--no-agents", "--app", APP_NAME)
    async with client_of(first_url) as first, client_of(other_url) as second:
        await done(await first.post("/v1/sessions", json={"session_id": "s"}))
        seen = []
        request = {"json": {"text": "long", "message_id": "m"}}
        async with reading(first, "POST", "/v1/sessions/s/runs", **request) as events:
            async for event in events:  # a piece may arrive before the entries in front of it
                seen.append(event)
                if stored(seen) and event["event"] == "text_delta":
                    break
        run = seen[0]["data"]["run_id"]
        last = [e["id"] for e in seen if "id" in e][-1]
        url = f"/v1/sessions/s/runs/{run}/events"
        async with reading(second, "GET", url, headers={"last-event-id": last}) as events:
            rest = await until_end(events)
        async with reading(second, "GET", "/v1/sessions/s/events") as events:
            whole = await until_end(events)
        page = await done(
            await first.get(f"{url}?limit=500", headers={"accept": "application/json"})
        )
        over = await first.get(url, headers={**SSE, "last-event-id": rest[-1]["id"]})

    assert stored(seen) + stored(rest) == stored(whole)
    assert [{**e, "event_id": None} for e in page["events"]] == stored(whole)
    assert text_of(rest) in ("", "".join(WORDS)), (
        "a snapshot first, or the answer was there already"
    )
    assert over.status_code == 204


@pytest.mark.costly
@pytest.mark.item(356, 372, 375)
async def test_a_stream_survives_the_process_that_served_it(fleet: Hosts) -> None:
    """An API process is killed, then another one shuts down, while a host continues: clients reconnect."""
    await fleet.serving(SPEC)
    killed, first_url = await fleet.web("--no-agents", "--app", APP_NAME)
    ended, other_url = await fleet.web("--no-agents", "--app", APP_NAME)
    _, last = await fleet.web("--no-agents", "--app", APP_NAME)
    seen: list[dict[str, Any]] = []
    async with client_of(first_url) as client:
        await done(await client.post("/v1/sessions", json={"session_id": "s"}))
        async with reading(
            client, "POST", "/v1/sessions/s/runs", json={"text": "long 1"}
        ) as events:
            while not stored(seen):
                seen.append(await anext(events))
            killed.send(signal.SIGKILL)
            with contextlib.suppress(httpx2.HTTPError):  # the connection is closed
                async for event in events:
                    seen.append(event)  # noqa: PERF401 - what came before the cut counts
    async with client_of(other_url) as client:
        cursor = {"last-event-id": [e["id"] for e in seen if "id" in e][-1]}
        async with reading(client, "GET", "/v1/sessions/s/events", headers=cursor) as events:
            seen += await until_end(events)
            ended.send(signal.SIGTERM)
            assert [event async for event in events] == []
        assert await ended.exit_code() == 0
    async with client_of(last) as client:
        run = await client.post(
            "/v1/sessions/s/runs", json={"text": "more"}, headers={"prefer": "wait=20"}
        )
        assert run.json()["status"] == "completed"
        cursor = {"last-event-id": [e["id"] for e in seen if "id" in e][-1]}
        async with reading(client, "GET", "/v1/sessions/s/events", headers=cursor) as events:
            seen += await until_end(events)
        async with reading(client, "GET", "/v1/sessions/s/events") as events:
            whole = [*await until_end(events), *await until_end(events)]

    assert stored(seen) == stored(whole)


@pytest.mark.costly
@pytest.mark.item(372, 379)
async def test_a_lost_connection_cancels_only_if_the_query_asks_for_it(fleet: Hosts) -> None:
    """The server notices the end of the connection at once."""
    _, url = await fleet.web(SPEC)
    async with client_of(url) as client:
        await done(await client.post("/v1/sessions", json={"session_id": "s"}))
        ended = []
        for query in ("", "?on_disconnect=cancel"):
            path = f"/v1/sessions/s/runs{query}"
            async with reading(client, "POST", path, json={"text": "long"}) as events:
                run = (await anext(events))["data"]["run_id"]
            status = "running"
            async with asyncio.timeout(20):
                while status in ("queued", "running"):
                    status = (await done(await client.get(f"/v1/sessions/s/runs/{run}")))["status"]
            ended.append(status)

    assert ended == ["completed", "cancelled"]
