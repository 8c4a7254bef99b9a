"""Sessions over HTTP: turns, the first event, many watchers of one answer, and idle streams.

Agents, API and clients are in one process, so that a figure holds what the clients cost, too; so do the floors.
Clients are bare sockets, which look for words in what they get.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
import tracemalloc
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route

from actors._kernel.runtime.ids import DEFAULT_TENANT, AgentId
from actors.agents import ReActAgent
from actors.sessions import AgentRuntime
from actors.testing import FunctionModel, ModelReply
from compose._web import streams as web_streams
from compose._web.process import serve_web
from compose._web.requests import SCOPES
from compose.web import Principal, app
from tests.benchmarks.bench import open_runtime, report
from tests.benchmarks.timers import share

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from actors import ChatMessage, GenerationOptions
    from actors._runtime import Runtime

APP: Final = "bench"
SSE: Final = "text/event-stream"
TURNS: Final = {1: 400, 64: 2_000}
"""Turns at full size, by how many sessions there are."""
CROWD: Final = 64
WATCHERS: Final = 1_000
PIECES: Final = 200
IDLE: Final = 5_000
IDLE_SESSIONS: Final = 500
IDLE_S: Final = 40.0
"""So long idle streams are watched: two beats and a half."""
PIECE: Final = b"event: text_"
END: Final = b"event: run_completed\n\n"
GO: Final = "go"
DONE: Final = b"0\r\n\r\n"
"""The end of a chunked answer."""


class Line:
    """A connection that is kept."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, url: str) -> Line:
        """Connect."""
        host, _, port = url.removeprefix("http://").partition(":")
        return cls(*await asyncio.open_connection(host, int(port), limit=2**20))

    def ask(self, method: str, path: str, body: object = None, *, who: str = "0") -> None:
        """Send a request for a stream."""
        self.writer.write(request(method, path, body, who=who))

    async def until(self, *words: bytes) -> bytes:
        """Return what came, up to one of these words."""
        data = b""
        while not any(word in data[-4_096:] for word in words):
            more = await self.reader.read(65_536)
            if not more:
                raise ConnectionError(f"the server has closed: {data[-300:]!r}")
            data += more
        return data

    def close(self) -> None:
        """Close it."""
        self.writer.close()


def request(method: str, path: str, body: object = None, *, who: str = "0") -> bytes:
    """Return the bytes of a request for a stream."""
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: bench\r\naccept: {SSE}\r\nauthorization: Bearer {who}\r\n"
    kind = "content-type: application/json\r\n" if data else ""
    return f"{head}{kind}content-length: {len(data)}\r\n\r\n".encode() + data


async def identified(web_request: Request) -> Principal:
    """Let each stream be of a principal of its own, for one may have 64."""
    name = web_request.headers["authorization"].removeprefix("Bearer ")
    return Principal(DEFAULT_TENANT, name, SCOPES)


def scripted(messages: Sequence[ChatMessage], options: GenerationOptions) -> ModelReply:
    """Answer at once; a long answer comes in pieces."""
    del options
    if messages[-1].text == GO:
        pieces = [f"{n} " for n in range(PIECES)]
        return ModelReply(text="".join(pieces), pieces=pieces, between=lambda: asyncio.sleep(0))
    return ModelReply(text="Yes.")


@dataclass
class Served:
    """A runtime on Postgres with sessions, and the URL of their API."""

    runtime: Runtime
    talks: AgentRuntime
    url: str


@asynccontextmanager
async def served(url: str) -> AsyncIterator[Served]:
    """Serve sessions."""
    agent = ReActAgent("bench", model=FunctionModel(scripted))
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(open_runtime(url))
        opening = AgentRuntime(agents=agent, runtime=runtime, app=APP)
        talks = await stack.enter_async_context(opening)
        application = app(talks, authenticate=identified, apps=[APP])
        address = await stack.enter_async_context(
            serve_web("127.0.0.1:0", application, before_stop=application.end_streams)
        )
        yield Served(runtime, talks, address)


@asynccontextmanager
async def bare(routes: dict[str, object]) -> AsyncIterator[str]:
    """Serve handlers that do nothing else."""
    web_routes = [Route(path, call, methods=["GET", "POST"]) for path, call in routes.items()]  # type: ignore[arg-type]
    application: ASGIApp = Starlette(routes=web_routes)
    async with serve_web("127.0.0.1:0", application) as url:
        yield url


async def talk(server: Served, key: str, each: int) -> None:
    """Play so many turns of a session over HTTP, on one connection, each read to its end."""
    line = await Line.to(server.url)
    for n in range(each):
        line.ask("POST", f"/v1/sessions/{key}/runs", {"text": f"turn {n}"})
        assert b"event: run_completed" in await line.until(DONE)
    line.close()


async def turns(server: Served, *, sessions: int, total: int) -> None:
    """Print turns per second over HTTP, and of the same agents without it."""
    each = max(2, total // sessions)

    async def over_http(key: str) -> None:
        await talk(server, key, each)

    async def by_sessions(key: str) -> None:
        for n in range(each):
            await (await server.talks.start(f"turn {n}", session_id=key)).result()

    async def by_submit(key: str) -> None:
        agent = AgentId(APP, key)
        for n in range(each):
            payload = {"text": f"turn {n}"}
            await server.runtime.result(await server.runtime.submit(agent, payload))

    rates = {}
    for name, play in (("submit", by_submit), ("sessions", by_sessions), ("http", over_http)):
        keys = [f"{name}-{sessions}-{n}" for n in range(sessions)]
        for key in keys:
            await make_session(server, key)
        began = time.perf_counter()
        await asyncio.gather(*map(play, keys))
        rates[name] = sessions * each / (time.perf_counter() - began)
    report(
        benchmark="http_turns",
        sessions=sessions,
        per_s=round(rates["http"]),
        sessions_per_s=round(rates["sessions"]),
        floor_per_s=round(rates["submit"]),
        ratio=round(rates["http"] / rates["submit"], 3),
        goal=0.5,
    )


async def make_session(server: Served, key: str) -> None:
    """Make a session, whose owner is the first principal."""
    agent = server.talks.agent_id(key)
    await server.talks.start("hello", session_id=key)
    async with asyncio.timeout(60):
        async with aclosing(server.runtime.store.data.sessions.tail(agent)) as facts:  # type: ignore[type-var]
            async for fact in facts:
                if fact.kind == "ended":
                    return


async def first_event(server: Served, *, total: int) -> None:
    """Print the time to the first byte of the run's start, and a bare handler's that submits and tails."""
    runtime = server.runtime

    async def handler(web_request: Request) -> StreamingResponse:
        body = await web_request.json()
        run_id = await runtime.submit(AgentId(APP, web_request.path_params["key"]), body)

        async def lines() -> AsyncIterator[bytes]:
            async for entry in runtime.tail(run_id):
                yield b"event: %b\ndata: {}\n\n" % entry.kind.encode()

        return StreamingResponse(lines(), media_type=SSE)

    for n in range(CROWD):  # conversations of the same length
        await make_session(server, f"floor-{n}")
        await make_session(server, f"first-{n}")
    async with bare({"/runs/{key}": handler}) as url:
        floors = await _first(url, "/runs/floor-{}", b"event: run.started", total)
    ours = await _first(server.url, "/v1/sessions/first-{}/runs", b"event: loop_started", total)
    values = {part: (share(ours, part), share(floors, part)) for part in (0.5, 0.99)}
    report(
        benchmark="http_first_event",
        sessions=CROWD,
        p50_ms=values[0.5][0],
        p99_ms=values[0.99][0],
        floor_p50_ms=values[0.5][1],
        floor_p99_ms=values[0.99][1],
        p50_of_floor=round(values[0.5][0] / values[0.5][1], 2),
        p99_of_floor=round(values[0.99][0] / values[0.99][1], 2),
        goals=(1.5, 2.0),
    )


async def _first(url: str, path: str, word: bytes, total: int) -> list[float]:
    """Return the seconds from each request to its first event, a crowd of them at once."""
    seconds: list[float] = []

    async def read_turns(n: int) -> None:
        line = await Line.to(url)
        for turn in range(max(2, total // CROWD)):
            began = time.perf_counter()
            line.ask("POST", path.format(n), {"text": f"turn {turn}"})
            answer = await line.until(word)
            seconds.append(time.perf_counter() - began)
            if DONE not in answer[-4_096:]:
                await line.until(DONE)
        line.close()

    await asyncio.gather(*(read_turns(n) for n in range(CROWD)))
    return sorted(seconds)


async def watched(server: Served, *, watchers: int) -> None:
    """Print how many pieces a second come to watchers of one answer, each once and in order."""
    queues: list[asyncio.Queue[bytes]] = []

    async def handler(_: Request) -> StreamingResponse:
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        queues.append(queue)

        async def lines() -> AsyncIterator[bytes]:
            while chunk := await queue.get():
                yield chunk

        return StreamingResponse(lines(), media_type=SSE)

    async with bare({"/watch": handler}) as url:
        lines = await _watching(url, "/watch", watchers)
        began = time.perf_counter()
        reading = [asyncio.ensure_future(_text(line)) for line in lines]
        for n in range(PIECES):
            block = b'event: text_delta\ndata: {"payload":{"text":"%d "}}\n\n' % n
            for queue in queues:
                queue.put_nowait(block)
            await asyncio.sleep(0)
        for queue in queues:
            queue.put_nowait(END)
        await asyncio.gather(*reading)
        floor = PIECES * watchers / (time.perf_counter() - began)
        for queue in queues:
            queue.put_nowait(b"")
        for line in lines:
            line.close()
    await make_session(server, "watched")
    lines = await _watching(server.url, "/v1/sessions/watched/events?live=true", watchers)
    await asyncio.gather(*(line.until(b"event: run_completed") for line in lines))
    began = time.perf_counter()
    reading = [asyncio.ensure_future(_text(line)) for line in lines]
    await server.talks.start(GO, session_id="watched")
    texts = await asyncio.gather(*reading)
    rate = PIECES * watchers / (time.perf_counter() - began)
    for line in lines:
        line.close()
    expected_words = [f"{n}" for n in range(PIECES)]
    word_lists = [text.split() for text in texts]
    report(
        benchmark="http_watchers",
        watchers=watchers,
        pieces_per_s=round(rate),
        floor_per_s=round(floor),
        ratio=round(rate / floor, 3),
        goal=0.4,
        in_order=all(sorted(map(int, words)) == [*map(int, words)] for words in word_lists),
        once=all(len({*words}) == len(words) for words in word_lists),
        whole=round(sum(words == expected_words for words in word_lists) / watchers, 3),
    )


async def _watching(url: str, path: str, watchers: int) -> list[Line]:
    lines = []
    for n in range(watchers):
        line = await Line.to(url)
        line.ask("GET", path, who=str(n))
        await line.until(b"\r\n\r\n")
        lines.append(line)
    return lines


async def _text(line: Line) -> str:
    """Return the text that comes in pieces, up to the end of its run."""
    answer = await line.until(b"event: run_completed")
    datas = [block.partition(b"data: ")[2] for block in answer.split(b"\n\n") if PIECE in block]
    return "".join(
        json.loads(data.partition(b"\n")[0].strip())["payload"]["text"] for data in datas
    )


async def idle(server: Served, *, count: int, seconds: float) -> None:
    """Print memory and CPU of streams on which nothing happens, and of bare answers that wait."""
    never = asyncio.Event()

    async def handler(_: Request) -> StreamingResponse:
        async def lines() -> AsyncIterator[bytes]:
            yield b": hello\n\n"
            await never.wait()

        return StreamingResponse(lines(), media_type=SSE)

    sessions = max(1, count * IDLE_SESSIONS // IDLE)
    for n in range(sessions):
        await make_session(server, f"idle-{n}")
    most, web_streams.MAX_STREAMS = web_streams.MAX_STREAMS, 2 * count  # type: ignore[misc]
    try:
        async with bare({"/wait": handler}) as url:
            floor = await _idling(url, ["/wait"], count, seconds)
            never.set()
        paths = [f"/v1/sessions/idle-{n}/events" for n in range(sessions)]
        ours = await _idling(server.url, paths, count, seconds)
    finally:
        web_streams.MAX_STREAMS = most  # type: ignore[misc]
    report(
        benchmark="http_idle_streams",
        streams=count,
        kib_each=round(ours[0], 1),
        floor_kib_each=round(floor[0], 1),
        memory_of_floor=round(ours[0] / floor[0], 2),
        core_share=round(ours[1], 4),
        floor_core_share=round(floor[1], 4),
        goals=(2.0, 0.03),
    )


async def _idling(url: str, paths: list[str], count: int, seconds: float) -> tuple[float, float]:
    """Return KiB that Python allocates for a stream, and the share of a core that all of them take."""
    host, _, port = url.removeprefix("http://").partition(":")

    def opened(n: int) -> socket.socket:
        connection = socket.create_connection((host, int(port)))
        connection.sendall(request("GET", paths[n % len(paths)], who=str(n // 50)))
        connection.recv(4_096)
        return connection

    tracemalloc.start()
    sockets = [await asyncio.to_thread(opened, n) for n in range(count)]
    try:
        await asyncio.sleep(min(3.0, seconds))
        used = tracemalloc.get_traced_memory()[0] / 1024
        tracemalloc.stop()
        cpu, began = time.process_time(), time.perf_counter()
        await asyncio.sleep(seconds)
        cpu_share = (time.process_time() - cpu) / (time.perf_counter() - began)
    finally:
        for connection in sockets:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        await asyncio.sleep(0.5)
    return used / count, cpu_share


async def run(url: str, *, scale: float = 1.0) -> None:
    """Print all lines."""
    async with served(url) as server:
        for sessions, total in TURNS.items():
            await turns(server, sessions=sessions, total=int(total * scale))
        await first_event(server, total=int(20 * CROWD * scale))
        await watched(server, watchers=max(10, int(WATCHERS * scale)))
        await idle(server, count=max(20, int(IDLE * scale)), seconds=max(1.0, IDLE_S * scale))
