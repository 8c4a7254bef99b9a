"""Requests of commands to the HTTP API of a running `callboard serve`, with `--server URL`."""

from __future__ import annotations

import http.client
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar, cast
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from cyclopts import Parameter
from pydantic import TypeAdapter, ValidationError

from actors._kernel.runtime.ids import DEFAULT_TENANT
from actors._runtime.loop.tasks import in_thread
from actors.errors import ActorsError, ContractError, Facts
from compose._assembly.settings import read_settings
from compose._commands.options import HERE, Target
from compose._commands.output import NoDataError
from compose._host.own_address import is_own_address

T = TypeVar("T")

TOKEN_VARIABLE: Final = "CALLBOARD_API_TOKEN"  # noqa: S105 - the name of a variable
TIMEOUT_S: Final = 120.0
"""Seconds to connect, and between two pieces of an answer."""
SILENT_S: Final = 45.0
"""Seconds without a byte after which a stream is lost. The server sends a comment every 15 s."""
MOST_BYTES: Final = 72 * 2**20
"""Largest answer. A bundle has at most 64 MiB."""
_OK: Final = range(200, 300)
_REDIRECTS: Final = range(300, 400)
_UNAVAILABLE: Final = frozenset({502, 503, 504})
_SERVER_ERROR: Final = 500
_EXCERPT_LENGTH: Final = 300
OVER: Final = "over"
"""Name of the event of a stream that has no more events: the reader has all of them."""
_LOST_REMEDY: Final = "The request may have been executed. Repeat the command: it is executed once"


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
    """The server refused the request; the fields are those of its `HttpProblem`."""

    text = "{url}: {detail} ({code}); {remedy}"
    url: str
    detail: str
    code: str
    remedy: str
    errors: tuple[Mapping[str, str], ...] = ()


class ApiNotFoundError(Facts, NoDataError):
    """The server does not have the object."""

    text = "{url}: {detail} ({code}); {remedy}"
    url: str
    detail: str
    code: str
    remedy: str


class ApiEvent(NamedTuple):
    """An event of a stream: its name, its data, and the last id of the stream so far."""

    name: str
    data: Any
    id: str | None


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ApiTarget:
    """Options of commands that can use the API of a running server.

    Attributes:
        server: http://HOST:PORT of a running `callboard serve`, in place of a database or a folder. The tenant
            is that of the token. The token is in the environment variable CALLBOARD_API_TOKEN, or in a file.
        token_file: File with the token for --server. Default: CALLBOARD_API_TOKEN.
    """

    server: str | None = None
    token_file: Path | None = None

    def open(self, target: Target = HERE, *, tenant: str = DEFAULT_TENANT, **others: object) -> Api:
        """Return the API. `others` are options that name another place, by their names.

        Raises:
            ContractError: `--server` is not an address, or another option contradicts it.
            NoDataError: The file of the token cannot be read.
        """
        assert self.server is not None
        target_options = {
            "postgres_url": target.postgres_url,
            "data": target.data,
            "schema": target.schema,
        }
        for name in [name for name, value in (target_options | others).items() if value]:
            option = name.replace("_", "-")
            raise ContractError(f"--server and --{option} do not go together: leave out one")
        if tenant != DEFAULT_TENANT:
            raise ContractError("--tenant: the tenant of --server is that of the token")
        return Api(self.server, self._token())

    def check_unused(self) -> None:
        """Check that no token is given without a server.

        Raises:
            ContractError: It is.
        """
        if self.token_file is not None and self.server is None:
            raise ContractError("--token-file: the token is for --server URL, which is missing")

    def _token(self) -> str | None:
        if self.token_file is None:
            token = read_settings().api_token
        else:
            try:
                token = self.token_file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as exc:
                problem = exc.strerror if isinstance(exc, OSError) else "it is not text"
                remedy = "Give the file of a token of `callboard tokens create`"
                raise NoDataError(f"{self.token_file}: {problem}. {remedy}") from exc
        token = (token or "").strip()
        if not token.isascii() or not token.isprintable() or " " in token:
            raise ContractError("the token has other characters than a token has: copy it again")
        return token or None


NO_SERVER: Final = ApiTarget()
"""The default of `api` in each command that can use a server."""


class Api:
    """The API of a server. Redirects are not followed, because they would send the token elsewhere.

    Args:
        url: The address of the server.
        token: The bearer token of all requests, or None to send none.

    Raises:
        ContractError: The address is not allowed.
    """

    def __init__(self, url: str, token: str | None) -> None:
        self.url = url.rstrip("/")
        self._parts, self._token = _parse_address(url), token
        if token and self._parts.scheme == "http" and not is_own_address(self._parts.netloc):
            problem = "others could read the token on its way to this server"
            remedy = "use https, or forward a port of this machine to the server"
            raise ContractError(f"--server {url}: {problem}; {remedy}")

    async def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str | None] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:
        """Return the status and the JSON data of an answer. `body` is bytes, or data that is sent as JSON.

        Raises:
            ApiUnreachableError, ApiRefusedError, ApiNotFoundError, ApiFailedError: There is no such answer.
        """
        status, raw = await self.read(method, path, body, query=query, headers=headers)
        return status, self._data(raw.decode(errors="replace")) if raw else None

    async def fetch(
        self,
        kind: type[T],
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str | None] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        """Return the JSON data of an answer. It has the fields of `kind`, and perhaps more. Raises as `ask`."""
        _, data = await self.ask(method, path, body, query=query, headers=headers)
        try:
            TypeAdapter(kind).validate_python(data)
        except ValidationError:
            raise self.unexpected_answer(str(data)) from None
        return cast("T", data)

    async def read(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str | None] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """Return the status and the bytes of an answer. Raises as `ask`."""
        is_json = body is not None and not isinstance(body, bytes)
        data = json.dumps(body, ensure_ascii=False).encode() if is_json else body
        send = partial(self._send, method, self._full_path(path, query), data, headers or {})
        status, raw = await in_thread(send)
        if status not in _OK:
            raise self._refusal(status, raw)
        return status, raw

    async def events(self, path: str, after: str | None = None) -> AsyncGenerator[ApiEvent, None]:
        """Yield the events of a stream until it ends or is lost.

        Raises:
            ApiUnreachableError, ApiRefusedError, ApiNotFoundError, ApiFailedError: There is no stream, or it
                was lost.
        """
        headers = {"accept": "text/event-stream"} | (
            {} if after is None else {"last-event-id": after}
        )
        connection = self._connection(SILENT_S)
        try:
            answer = await in_thread(
                self._open_stream, connection, self._full_path(path, None), headers
            )
            if answer.status not in _OK:
                raise self._refusal(answer.status, await in_thread(answer.read, MOST_BYTES))
            if answer.status == http.HTTPStatus.NO_CONTENT:
                yield ApiEvent(OVER, None, after)
            while block := await in_thread(self._block, answer):
                pairs = (line.decode(errors="replace").partition(": ") for line in block)
                fields = {name: value.rstrip("\r\n") for name, _, value in pairs}
                after = fields.get("id", after)
                if "data" in fields:  # else a comment, or the pause before a client returns
                    yield ApiEvent(fields.get("event", ""), self._data(fields["data"]), after)
        finally:
            connection.close()

    def _data(self, text: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise self.unexpected_answer(text) from None

    def unexpected_answer(self, text: str) -> ApiFailedError:
        """Return the error to raise for an answer that is none of this API."""
        excerpt = " ".join(text.split())[:_EXCERPT_LENGTH]
        problem = f"the answer is none of the API of this version: {excerpt!r}"
        remedy = "Give the address of `callboard serve`, and use its version"
        return ApiFailedError(self.url, problem, remedy)

    def _open_stream(
        self, connection: http.client.HTTPConnection, path: str, headers: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        try:
            connection.request("GET", path, headers=self._headers(headers))
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as exc:
            raise self._unreachable(exc) from exc

    def _block(self, answer: http.client.HTTPResponse) -> list[bytes]:
        """Return the lines of an event, with the empty one behind it; none at the end of the stream."""
        lines: list[bytes] = []
        try:
            while line := answer.readline(MOST_BYTES):
                lines.append(line)
                if not line.strip():
                    return lines
        except (OSError, http.client.HTTPException) as exc:
            raise self._unreachable(exc) from exc
        # An event without the empty line behind it was cut off, and the next stream repeats it.
        return []

    def _send(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        connection = self._connection(TIMEOUT_S)
        # Connected first: an error here means that nothing was sent, and after it that the request may have
        # been executed.
        try:
            connection.connect()
        except OSError as exc:
            raise self._unreachable(exc) from exc
        try:
            connection.request(method, path, body, self._headers(headers))
            answer = connection.getresponse()
            raw = answer.read(MOST_BYTES + 1)
            # A read with a limit returns an answer that was cut off, and raises nothing.
            if answer.length and len(raw) <= MOST_BYTES:
                raise http.client.IncompleteRead(raw, answer.length)
        except (OSError, http.client.HTTPException) as exc:
            problem = f"the answer was lost ({type(exc).__name__}: {exc})"
            raise ApiUnreachableError(self.url, problem, _LOST_REMEDY) from exc
        finally:
            connection.close()
        if len(raw) > MOST_BYTES:
            raise self.unexpected_answer(f"more than {MOST_BYTES} bytes")
        return answer.status, raw

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        is_tls = self._parts.scheme == "https"
        connection_class = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
        return connection_class(str(self._parts.hostname), self._parts.port, timeout=timeout_s)

    def _full_path(self, path: str, query: Mapping[str, str | None] | None) -> str:
        query_text = urlencode(
            {name: value for name, value in (query or {}).items() if value is not None}
        )
        return f"{self._parts.path.rstrip('/')}{path}" + (f"?{query_text}" if query_text else "")

    def _headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        login = {} if self._token is None else {"authorization": f"Bearer {self._token}"}
        return {"accept": "application/json", **login, **headers}

    def _unreachable(self, exc: Exception) -> ApiUnreachableError:
        problem = f"no answer: {str(exc) or type(exc).__name__}"
        return ApiUnreachableError(
            self.url, problem, "Start `callboard serve`, or correct --server"
        )

    def _refusal(self, status: int, raw: bytes) -> ActorsError:
        """Return the error to raise for an answer with this status."""
        try:
            problem = json.loads(raw)
            detail, code = str(problem["detail"]), str(problem["code"])
        except (ValueError, RecursionError, TypeError, KeyError):
            answer_text = "a redirect" if status in _REDIRECTS else raw.decode(errors="replace")
            return self.unexpected_answer(f"status {status}: {answer_text}")
        remedy = str(problem.get("remedy", ""))
        if code == "unauthenticated":
            remedy = f"give --token-file FILE or set {TOKEN_VARIABLE} (`callboard tokens create`)"
        if status == http.HTTPStatus.NOT_FOUND:
            return ApiNotFoundError(self.url, detail, code, remedy)
        if status >= _SERVER_ERROR:
            error_class = ApiUnreachableError if status in _UNAVAILABLE else ApiFailedError
            return error_class(self.url, f"{detail} ({code})", remedy)
        errors = tuple(problem.get("errors") or ())
        return ApiRefusedError(self.url, detail, code, remedy, errors)


@contextmanager
def repeat_hint(how: str) -> Iterator[None]:
    """Let an error about a server that does not answer say how to repeat the request and do it once."""
    try:
        yield
    except ApiUnreachableError as exc:
        raise ApiUnreachableError(exc.url, exc.problem, f"{exc.remedy}: {how}") from exc


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
        raise ContractError(f"--server: leave out the login: give --token-file or {TOKEN_VARIABLE}")
    if not is_address or parts.query or parts.fragment:
        raise ContractError(f"--server {url}: give an address such as http://127.0.0.1:8123")
    return parts


def quote_name(name: str) -> str:
    """Return a name as a part of a path.

    Raises:
        ContractError: The path would be one of another thing: of all of them, or of what is above.
    """
    if name in {"", ".", ".."}:
        raise ContractError(f"{name!r} names nothing on the server: give a name or an id")
    return quote(name, safe="@")
