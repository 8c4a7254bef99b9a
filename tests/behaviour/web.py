"""A client of the API without a socket: ASGI requests and answers."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from compose.web import app
from tests.behaviour.bed import LIMIT_S
from tests.behaviour.talks import sessions_on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence

    from starlette.types import ASGIApp, Message

    from actors.sessions import AgentRuntime
    from tests.behaviour.bed import Bed

HOST: Final = (b"host", b"127.0.0.1:8123")


@dataclass(slots=True)
class Answer:
    """An answer: its status, headers, cookies, and body."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    set_cookies: list[str] = field(default_factory=list)
    body: bytes = b""

    @property
    def data(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    def take(self, message: Message) -> None:
        """Add a part of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            pairs = [(name.decode(), value.decode()) for name, value in message["headers"]]
            self.headers = {**dict(pairs)}
            self.set_cookies = [value for name, value in pairs if name == "set-cookie"]
        else:
            self.body += message.get("body", b"")


class Stream:
    """A stream of events as a client receives it.

    Attributes: answer: Its status and headers; the body if it is no stream. disconnect: Set when
    the client has disconnected. free: Set while the client reads. chunks: As they came, comments and
    `retry` included.
    """

    def __init__(self, *, is_slow: bool = False) -> None:
        self.answer, self.disconnect, self.free = Answer(), asyncio.Event(), asyncio.Event()
        self.chunks: list[bytes] = []
        self._events: list[dict[str, Any]] = []
        self._came = asyncio.Event()
        self._is_over = False
        if not is_slow:
            self.free.set()

    async def send(self, message: Message) -> None:
        """Receive a message of the server; a slow client receives only the head."""
        if message["type"] == "http.response.body":
            await self.free.wait()
            self._take(message.get("body", b""))
        self.answer.take(message)
        self._came.set()

    def _take(self, chunk: bytes) -> None:
        self.chunks.append(chunk)
        if not self.answer.headers.get("content-type", "").startswith("text/event-stream"):
            return
        for block in chunk.decode().split("\n\n"):
            fields = dict(
                line.split(": ", 1) for line in block.split("\n") if line[:1] not in (":", "")
            )
            if "data" in fields:
                self._events.append({**fields, "data": json.loads(fields["data"])})

    async def read_all(self, answering: Awaitable[None]) -> None:
        """Let the server answer to the end."""
        try:
            await answering
        finally:
            self._is_over = True
            self._came.set()

    async def next(self) -> dict[str, Any] | None:
        """Return the next event: its `event`, `data` and perhaps `id`; None at the end."""
        while not self._events:
            if self._is_over:
                return None
            self._came.clear()
            await self._came.wait()
        return self._events.pop(0)

    async def until_end(self) -> list[dict[str, Any]]:
        """Return all remaining events; they need no names."""
        events: list[dict[str, Any]] = []
        while (event := await self.next()) is not None:
            events.append(event)
        return events

    async def until(self, *types: str) -> list[dict[str, Any]]:
        """Return the events up to the first one of these types, or up to the end."""
        events: list[dict[str, Any]] = []
        while (event := await self.next()) is not None:
            events.append(event)
            if event["event"] in types:
                break
        return events


class WebClient:
    """Sends requests to an ASGI application.

    Args:
        application: The application.
        talks: The sessions of the own app, in a process that executes them.
        headers: Of each request.
    """

    def __init__(
        self,
        application: ASGIApp,
        talks: AgentRuntime | None = None,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._app, self.talks = application, talks
        self.headers = {**(headers or {})}

    async def __call__(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        pieces: Sequence[bytes] | None = None,
        is_whole: bool = True,
        headers: Mapping[str, str] | None = None,
        **more: str,
    ) -> Answer:
        """Return the answer to a request for JSON; names of headers have ``_`` for ``-``.

        Args:
            method: Of HTTP.
            path: With the query, as it stands in a request.
            body: Bytes, or JSON data.
            pieces: The same in pieces.
            is_whole: False: the rest of the body never comes.
            headers: Of the request.
            **more: The same.
        """
        answer = Answer()
        request_headers = {"accept": "application/json", **self.headers, **(headers or {}), **more}
        waiting = list(pieces) if pieces is not None else [_bytes_of(body)]

        async def receive() -> Message:
            if not waiting:
                await asyncio.get_running_loop().create_future()
            piece = waiting.pop(0)
            return {
                "type": "http.request",
                "body": piece,
                "more_body": bool(waiting) or not is_whole,
            }

        async def send(message: Message) -> None:
            answer.take(message)

        async with asyncio.timeout(3 * LIMIT_S):
            await self._app(scope_of(method, path, request_headers), receive, send)
        return answer

    @asynccontextmanager
    async def stream(
        self, path: str, body: object = None, *, is_slow: bool = False, **headers: str
    ) -> AsyncIterator[Stream]:
        """Yield a stream of events, whose client is gone at the end of the block.

        Args:
            path: With the query.
            body: JSON data, of a POST; None: it is a GET.
            is_slow: The client takes nothing, until it is told to `read`.
            **headers: Of the request.
        """
        stream = Stream(is_slow=is_slow)
        method = "GET" if body is None else "POST"
        scope = scope_of(method, path, {"accept": "text/event-stream", **self.headers, **headers})
        messages = [{"type": "http.request", "body": _bytes_of(body), "more_body": False}]

        async def receive() -> Message:
            if messages:
                return messages.pop()
            await stream.disconnect.wait()
            return {"type": "http.disconnect"}

        async with asyncio.timeout(3 * LIMIT_S), asyncio.TaskGroup() as group:
            group.create_task(stream.read_all(self._app(scope, receive, stream.send)))
            try:
                yield stream
            finally:
                stream.disconnect.set()
                stream.free.set()

    async def get(self, path: str, **headers: str) -> Any:
        """Return the JSON of an answer that has to be 200."""
        answer = await self("GET", path, headers=headers)
        assert answer.status == 200, answer
        return answer.data

    async def post(self, path: str, body: object = None, **headers: str) -> Any:
        """Return the JSON of an answer that has to be a success."""
        answer = await self("POST", path, body, headers=headers)
        assert answer.status in (200, 201, 202), answer
        return answer.data


def scope_of(method: str, path: str, headers: dict[str, str]) -> dict[str, Any]:
    """Return the ASGI scope of a request; the path is not decoded."""
    target, _, query = path.partition("?")
    header_pairs = [
        (name.replace("_", "-").lower().encode(), text.encode()) for name, text in headers.items()
    ]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": target,
        "raw_path": target.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [HOST, *header_pairs] if "host" not in headers else header_pairs,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8123),
    }


def _bytes_of(body: object) -> bytes:
    if body is None:
        return b""
    return body if isinstance(body, bytes) else json.dumps(body).encode()


@asynccontextmanager
async def web_on(
    bed: Bed, agents: Any, *, app_name: str, **options: Any
) -> AsyncIterator[WebClient]:
    """Yield a client of the current host's API, whose own app has these agents."""
    async with sessions_on(bed, agents, app=app_name, **options) as talks:
        modes = tuple(agents) if isinstance(agents, dict) else ("normal",)
        yield WebClient(app(talks, modes=modes, is_loopback=True), talks)


@asynccontextmanager
async def web_elsewhere(bed: Bed, *, app_name: str, **settings: Any) -> AsyncIterator[WebClient]:
    """Yield a client of the API of a second process, which executes nothing."""
    async with bed.client() as runtime:
        yield WebClient(app(runtime, default_app=app_name, **settings))


async def create_session(web: WebClient, session: str = "s") -> str:
    """Make a session, and return its path."""
    await web.post("/v1/sessions", {"session_id": session})
    return f"/v1/sessions/{session}"


async def run_message(web: WebClient, path: str, text: str, **headers: str) -> Any:
    """Return a run that a message started, after its end."""
    return await web.post(f"{path}/runs", {"text": text}, prefer="wait=20", **headers)


async def pages_of(web: WebClient, path: str) -> list[Any]:
    """Return the pages of a list, from the first to the last; the path has a query."""
    pages = [await web.get(path)]
    while (after := pages[-1]["next"]) is not None:
        pages.append(await web.get(f"{path}&after={after}"))
    return pages


async def texts(web: WebClient, path: str) -> list[str]:
    """Return the texts of the active path."""
    return [node["text"] for node in (await web.get(f"{path}/nodes"))["nodes"]]
