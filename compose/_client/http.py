"""Requests to the HTTP API, over the network or to the application in this process.

An error says whether the request may have been executed: `ApiUnreachableError` about a lost answer does, one
about a connection that was never made does not.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, MutableMapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from urllib.parse import SplitResult, quote, urlsplit

import httpx2
from pydantic import BaseModel, ValidationError
from typing_extensions import override

from actors._runtime.loop.tasks import start_task
from actors.errors import ActorsError, ContractError, Facts
from compose._host.own_address import is_own_address

if TYPE_CHECKING:
    from starlette.types import ASGIApp

T = TypeVar("T", bound=BaseModel)

TIMEOUT_S: Final = 120.0
"""Seconds to connect, and between two pieces of an answer."""
SILENT_S: Final = 45.0
"""Seconds without a byte after which a stream is lost. The server sends a comment every 15 s."""
MOST_BYTES: Final = 72 * 2**20
"""Largest answer. A bundle has at most 64 MiB."""
DISCONNECT_S: Final = 1.0
"""Seconds in which an application in this process may notice that its client is gone."""
OVER: Final = "over"
"""Name of the event of a stream that has no more events: the reader has all of them."""
_LOST_REMEDY: Final = "The request may have been executed. Repeat the command: it is executed once"
_UNAVAILABLE: Final = frozenset({502, 503, 504})
_EXCERPT_LENGTH: Final = 300
# Raised before a byte was sent. After any other error of the line the request may have been executed.
_NEVER_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class ApiUnreachableError(Facts, ActorsError):
    """The server does not answer, or its answer was lost."""

    text = "{url}: {problem}. {remedy}"
    url: str
    problem: str
    remedy: str


class ApiFailedError(Facts, ActorsError):
    """The server failed, or it is not `callboard serve` of this version."""

    text = "{url}: {problem}. {remedy}"
    url: str
    problem: str
    remedy: str


class ApiRefusedError(Facts, ContractError):
    """The server refused the request; the fields are the HTTP status and those of its problem."""

    text = "{detail} ({code}); {remedy}"
    status: int
    detail: str
    code: str
    remedy: str
    errors: tuple[Mapping[str, str], ...] = ()


class ApiNotFoundError(ApiRefusedError):
    """The server does not have the object."""


class HttpAnswer(NamedTuple):
    """An answer with a status of success, and its content."""

    status: int
    content: bytes


class ApiEvent(NamedTuple):
    """An event of a stream: its name, its data, and the last id of the stream so far."""

    name: str
    data: Any
    id: str | None


class Http:
    """Sends requests to an API. Redirects are not followed, because they would send the token elsewhere.

    Args:
        url: The address of the server, or the name of the deployment if the application is in this process.
        token: The bearer token of all requests, or None to send none.
        transport: Sends requests otherwise than over the network. The caller closes it.

    Raises:
        ContractError: The address is not allowed.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        parts = _parse_address(url)
        if token and parts.scheme == "http" and not is_own_address(parts.netloc):
            problem = "others could read the token on its way to this server"
            remedy = "use https, or forward a port of this machine to the server"
            raise ContractError(f"{url}: {problem}; {remedy}")
        login = {} if token is None else {"authorization": f"Bearer {token}"}
        self._client = httpx2.AsyncClient(
            base_url=self.url,
            headers={"accept": "application/json", **login},
            timeout=TIMEOUT_S,
            transport=transport,
            # The machine's certificates, and no proxy of the environment: as the other clients of this project.
            verify=ssl.create_default_context() if parts.scheme == "https" else False,
            trust_env=False,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def fetch(
        self, answer: type[T], method: str, path: str, body: Any = None, **parts: Any
    ) -> T:
        """Return the answer to a request as a model. See `send` for the arguments.

        Raises:
            ApiUnreachableError, ApiRefusedError, ApiNotFoundError, ApiFailedError: There is no such answer.
        """
        return self.parse(answer, (await self.send(method, path, body, **parts)).content)

    def parse(self, answer: type[T], content: bytes) -> T:
        """Return the content of an answer as a model.

        Raises:
            ApiFailedError: It is none.
        """
        try:
            return answer.model_validate_json(content)
        except ValidationError:
            raise self.unexpected_answer(content) from None

    async def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpAnswer:
        """Return the answer to a request. Raises as `fetch`.

        Args:
            method: The method.
            path: The path, its names quoted by `quote_name`.
            body: Bytes, or data that is sent as JSON.
            query: Fields of the query. Those that are None are left out.
            headers: Further headers.
        """
        request = self._request(method, path, body, query=query, headers=headers)
        try:
            response = await self._client.send(request, stream=True)
            content = await self._read(response)
        except _NEVER_SENT as exc:
            raise self._unreachable(exc) from exc
        except httpx2.HTTPError as exc:
            problem = f"the answer was lost ({type(exc).__name__}: {exc})"
            raise ApiUnreachableError(self.url, problem, _LOST_REMEDY) from exc
        if not response.is_success:
            raise self._refusal(response, content)
        return HttpAnswer(response.status_code, content)

    async def events(self, path: str, after: str | None = None) -> AsyncGenerator[ApiEvent, None]:
        """Yield the events of a stream until it ends or is lost. Raises as `fetch`.

        Args:
            path: The path.
            after: Id of the last event that the reader has seen; None to read from the start.
        """
        headers = {"accept": "text/event-stream"}
        if after is not None:
            headers["last-event-id"] = after
        request = self._request("GET", path, headers=headers, timeout=SILENT_S)
        try:
            response = await self._client.send(request, stream=True)
            try:
                if not response.is_success:
                    raise self._refusal(response, await self._read(response))
                if response.status_code == HTTPStatus.NO_CONTENT:
                    yield ApiEvent(OVER, None, after)
                async for fields in self._blocks(response):
                    after = fields.get("id", after)
                    if "data" in fields:  # else a comment, or the pause before a client returns
                        try:
                            data = json.loads(fields["data"])
                        except (ValueError, RecursionError):
                            raise self.unexpected_answer(fields["data"].encode()) from None
                        yield ApiEvent(fields.get("event", ""), data, after)
            finally:
                await response.aclose()
        except httpx2.HTTPError as exc:
            raise self._unreachable(exc) from exc

    def unexpected_answer(self, content: bytes) -> ApiFailedError:
        """Return the error to raise for an answer that is none of this API."""
        excerpt = " ".join(content.decode(errors="replace").split())[:_EXCERPT_LENGTH]
        problem = f"the answer is none of the API of this version: {excerpt!r}"
        remedy = "Give the address of `callboard serve`, and use its version"
        return ApiFailedError(self.url, problem, remedy)

    def _request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = TIMEOUT_S,
    ) -> httpx2.Request:
        is_json = body is not None and not isinstance(body, bytes)
        content = json.dumps(body, ensure_ascii=False).encode() if is_json else body
        fields = {name: value for name, value in (query or {}).items() if value is not None}
        params = fields or None  # without fields httpx would remove the query of the path
        return self._client.build_request(
            method, path, content=content, params=params, headers=headers, timeout=timeout
        )

    async def _read(self, response: httpx2.Response) -> bytes:
        """Return the content of an answer, and close it."""
        pieces, size = list[bytes](), 0
        try:
            async for piece in response.aiter_bytes():
                pieces.append(piece)
                size += len(piece)
                if size > MOST_BYTES:
                    raise self._too_large()
        finally:
            await response.aclose()
        return b"".join(pieces)

    async def _blocks(self, response: httpx2.Response) -> AsyncGenerator[dict[str, str], None]:
        """Yield the fields of each event of a stream.

        An event without the empty line behind it was cut off, and the next stream repeats it.
        """
        fields, line = dict[str, str](), bytearray()
        async for piece in response.aiter_bytes():
            # Not `aiter_lines`: it also splits at characters that JSON may contain, as U+0085.
            *ends, rest = piece.split(b"\n")
            for end in ends:
                line += end
                text = line.decode(errors="replace").rstrip("\r")
                line.clear()
                name, _, value = text.partition(": ")
                if not text:
                    yield fields
                    fields = {}
                elif name:  # a line that begins with a colon is a comment
                    fields[name] = value
            line += rest
            if len(line) > MOST_BYTES:
                raise self._too_large()

    def _too_large(self) -> ApiFailedError:
        return self.unexpected_answer(f"more than {MOST_BYTES} bytes".encode())

    def _unreachable(self, exc: Exception) -> ApiUnreachableError:
        problem = f"no answer: {str(exc) or type(exc).__name__}"
        remedy = "Start `callboard serve`, or correct --server"
        return ApiUnreachableError(self.url, problem, remedy)

    def _refusal(self, response: httpx2.Response, content: bytes) -> ActorsError:
        """Return the error to raise for an answer with this status."""
        status = response.status_code
        try:
            problem = json.loads(content)
            detail, code = str(problem["detail"]), str(problem["code"])
        except (ValueError, RecursionError, TypeError, KeyError):
            text = b"a redirect" if response.is_redirect else content
            return self.unexpected_answer(b"status %d: %s" % (status, text))
        remedy = str(problem.get("remedy", ""))
        if code == "unauthenticated":
            command = "`callboard tokens create`"
            remedy = (
                f"{self.url} needs a token ({command}): --token-file FILE or CALLBOARD_API_TOKEN"
            )
        if response.is_server_error:
            error_class = ApiUnreachableError if status in _UNAVAILABLE else ApiFailedError
            return error_class(self.url, f"{detail} ({code})", remedy)
        refused = ApiNotFoundError if status == HTTPStatus.NOT_FOUND else ApiRefusedError
        return refused(status, detail, code, remedy, tuple(problem.get("errors") or ()))


def quote_name(name: str) -> str:
    """Return a name as a part of a path.

    Raises:
        ContractError: The path would be one of another thing: of all of them, or of what is above.
    """
    if name in {"", ".", ".."}:
        raise ContractError(f"{name!r} names nothing on the server: give a name or an id")
    return quote(name, safe="@")


def _parse_address(url: str) -> SplitResult:
    """Return the parts of the address of a server.

    Raises:
        ContractError: It is none, or it has a login, a query or a fragment.
    """
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        parts, is_address = SplitResult("", "", "", "", ""), None
    if parts.username or parts.password:
        raise ContractError(
            f"{parts.hostname}: leave out the login of the address, and give a token"
        )
    if not is_address or parts.query or parts.fragment:
        raise ContractError(f"{url}: give the address of a server, such as http://127.0.0.1:8123")
    return parts


class ApplicationTransport(httpx2.AsyncBaseTransport):
    """Sends requests to an ASGI application, and reads its answers while they are sent.

    `httpx2.ASGITransport` collects the whole answer first, and a stream of events has no end.

    Args:
        application: The application.
    """

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        exchange = _Exchange(await request.aread())
        call = exchange.run(self._application, _scope_of(request))
        name = f"{request.method} {request.url.path}"

        def take_error(task: asyncio.Task[None]) -> None:
            # The reader may have gone: nobody else takes the error then, and asyncio would log it.
            if not task.cancelled():
                task.exception()

        exchange.task = start_task(call, name=name, done=take_error)
        try:
            start = await exchange.messages.get()
        except asyncio.CancelledError:
            await exchange.aclose()
            raise
        if start is None:
            exchange.task.result()  # raises what the application raised
            raise httpx2.RemoteProtocolError("the application gave no answer", request=request)
        return httpx2.Response(start["status"], headers=start.get("headers"), stream=exchange)


def _scope_of(request: httpx2.Request) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "scheme": request.url.scheme,
        "path": request.url.path,
        "raw_path": request.url.raw_path.partition(b"?")[0],
        "query_string": request.url.query,
        "server": (request.url.host, request.url.port),
        "client": ("127.0.0.1", 0),
        "root_path": "",
    }


class _Exchange(httpx2.AsyncByteStream):
    """A request and its answer."""

    task: asyncio.Task[None]

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        # One message: the application waits for a slow reader, as it waits for a slow connection.
        self.messages: asyncio.Queue[MutableMapping[str, Any] | None] = asyncio.Queue(1)
        self._is_closed = asyncio.Event()

    async def run(self, application: ASGIApp, scope: dict[str, Any]) -> None:
        """Let the application answer. A None is its last message."""
        try:
            await application(scope, self._receive, self._send)
        finally:
            await self._send(None)

    async def _receive(self) -> MutableMapping[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._is_closed.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any] | None) -> None:
        if not self._is_closed.is_set():
            await self.messages.put(message)

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (message := await self.messages.get()) is not None:
            if body := message.get("body"):
                yield body
            if not message.get("more_body"):
                return

    @override
    async def aclose(self) -> None:
        """Disconnect, and wait until the application has noticed."""
        self._is_closed.set()
        # A message that the application is about to send would wait for ever.
        while not self.messages.empty():
            self.messages.get_nowait()
        await asyncio.wait({self.task}, timeout=DISCONNECT_S)
        # A handler that waits for a database which is away would keep Ctrl-C waiting.
        if not self.task.done():
            self.task.cancel()
            await asyncio.wait({self.task})
