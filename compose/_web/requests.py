"""Requests before they are processed: limits, origins and principals.

The limits bound head, body and fields. Host and Origin are checked, and pages of other sites get CORS headers.
A principal is the identity of a client, with its scopes.
"""

from __future__ import annotations

import asyncio
import re
from codecs import BOM_UTF8
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias, get_args
from urllib.parse import parse_qsl, unquote_to_bytes, urlsplit

from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from actors._kernel.json import JsonValue, check_json
from actors._kernel.runtime.ids import DEFAULT_TENANT
from actors._kernel.stores.administration import Scope
from actors.errors import ContractError
from compose._host.own_address import is_own_address
from compose._web.problems import HttpProblem, ProblemError

MAX_BODY_BYTES: Final = 1024 * 1024
"""Maximum number of bytes of a body, unless an endpoint has its own limit. Uploads of artifacts have none."""
MAX_HEAD_BYTES: Final = 16 * 1024
"""Largest size of request line and headers together."""
MAX_FIELDS: Final = 64
"""Maximum number of fields of a query."""
BODY_LIMIT_S: Final = 30.0
"""Seconds that a whole body may take, or each chunk of an artifact."""
MAX_WAIT_S: Final = 60.0
"""Longest time in seconds that `Prefer: wait` may name. A longer one is cut to this."""
_CLOSE: Final = {"connection": "close"}
_ORIGIN: Final = re.compile(
    r"https?://[a-z0-9.-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:]+\](:[0-9]{1,5})?"
)
_PREFLIGHT: Final = {
    "access-control-allow-methods": "GET, POST, PUT, PATCH, DELETE",
    "access-control-allow-headers": "Authorization, Content-Type, Idempotency-Key, Last-Event-ID, Prefer",
    "access-control-max-age": "600",
}
"""Headers without credentials: pages of other sites send bearer tokens, never cookies."""
_EXPOSED: Final = "Location, Preference-Applied, Retry-After, WWW-Authenticate"
SCOPES: Final[frozenset[Scope]] = frozenset(get_args(Scope))


class Limited:
    """An ASGI application that refuses too large or ambiguous requests, and routes by the raw path.

    In a decoded path an id with ``/`` looks like two ids. Therefore `parse_id` decodes each part by itself.

    Args:
        inner: The application.
    """

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Refuse a request whose head is too large or ambiguous; pass any other on, with its raw path."""
        if scope["type"] == "http":
            problem = _problem_of_head(scope)
            if problem is not None:
                await problem.response(scope)(scope, receive, send)
                return
            if raw := scope.get("raw_path"):
                scope = {**scope, "path": raw.partition(b"?")[0].decode("latin-1")}
        await self._inner(scope, receive, send)


def _problem_of_head(scope: AsgiScope) -> HttpProblem | None:
    names = [name for name, _ in scope["headers"]]
    size = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    size += len(scope.get("raw_path") or b"") + len(scope["query_string"])
    if size > MAX_HEAD_BYTES:
        problem = f"the request's line and headers have more than {MAX_HEAD_BYTES} bytes"
        return HttpProblem(
            431, "head_too_large", problem, "send fewer or shorter ones", headers=_CLOSE
        )
    # A proxy could take one length and this server the other: a second request hides in the body.
    if b"transfer-encoding" in names and b"content-length" in names:
        problem = "the request has both Content-Length and Transfer-Encoding"
        return HttpProblem(400, "ambiguous_length", problem, "send one of them", headers=_CLOSE)
    return None


async def pieces_of(request: Request) -> AsyncGenerator[bytes, None]:
    """Yield a body in chunks, as they arrive.

    Raises:
        ProblemError: A chunk takes longer than `BODY_LIMIT_S`, or the client has disconnected.
    """
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(BODY_LIMIT_S):
                piece = await anext(stream)
        except StopAsyncIteration:
            return
        except TimeoutError:
            problem = f"no part of the body arrived for {BODY_LIMIT_S:g} s"
            raise ProblemError(
                HttpProblem(408, "too_slow", problem, "send it again", headers=_CLOSE)
            ) from None
        except ClientDisconnect as exc:
            raise _cut_off() from exc
        if piece:
            yield piece


async def read_body(request: Request, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Return a body.

    Raises:
        ProblemError: The body is larger than `max_bytes`, or takes longer than `BODY_LIMIT_S`.
    """
    content_length = request.headers.get("content-length", "0")
    # Cut to 20 digits: int() raises for thousands of them.
    if (
        not content_length.isascii()
        or not content_length.isdigit()
        or int(content_length[:20]) > max_bytes
    ):
        raise _too_large(max_bytes)
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_LIMIT_S):
            async for piece in request.stream():
                body += piece
                if len(body) > max_bytes:
                    raise _too_large(max_bytes)
    except ClientDisconnect as exc:
        raise _cut_off() from exc
    except TimeoutError:
        problem = f"the body took longer than {BODY_LIMIT_S:g} s"
        raise ProblemError(
            HttpProblem(408, "too_slow", problem, "send it again", headers=_CLOSE)
        ) from None
    return bytes(body)


def _cut_off() -> ProblemError:
    return ProblemError(HttpProblem(400, "cut_off", "the body is not complete"))


def _too_large(max_bytes: int) -> ProblemError:
    problem = f"the body has more than {max_bytes} bytes"
    remedy = "upload it as an artifact, and send its name"
    return ProblemError(HttpProblem(413, "too_large", problem, remedy, headers=_CLOSE))


def parse_body(data: bytes) -> JsonValue:
    """Return a body as JSON data of at most 64 levels. An empty body is an empty object.

    Raises:
        ProblemError: The body is not JSON.
        NotSerializableError: The body is nested too deeply, or a text in it contains NUL.
    """
    data = data.removeprefix(BOM_UTF8)  # tools of Windows write this mark
    if not data:
        return {}
    try:
        value: JsonValue = from_json(data, allow_inf_nan=False)
    except (ValueError, RecursionError) as exc:
        problem = f"the body is not JSON: {exc}"
        raise ProblemError(HttpProblem(400, "malformed", problem)) from None
    check_json(value, where="the body")
    return value


def parse_query(raw: bytes) -> dict[str, str]:
    """Return the fields of a query.

    Raises:
        ProblemError: The query is not UTF-8, has more than `MAX_FIELDS` fields, a field twice, or contains NUL.
    """
    if not raw:
        return {}
    try:
        pairs = parse_qsl(
            raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS
        )
    except ValueError as exc:
        raise ProblemError(
            HttpProblem(400, "malformed", f"the query cannot be read: {exc}")
        ) from None
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ProblemError(HttpProblem(400, "malformed", "a field of the query comes twice"))
    for text in (*fields, *fields.values()):
        _refuse_nul("the query", text)
    return fields


def parse_id(raw: str) -> str:
    """Return a part of a path, decoded.

    Raises:
        ProblemError: The part is not UTF-8, or contains NUL.
    """
    try:
        text = unquote_to_bytes(raw.encode("latin-1")).decode()
    except UnicodeDecodeError as exc:
        problem = f"a part of the path is not UTF-8: {raw[:100]}"
        raise ProblemError(HttpProblem(400, "malformed", problem)) from exc
    _refuse_nul("a part of the path", text)
    return text


def _refuse_nul(what: str, text: str) -> None:
    if "\x00" in text:
        raise ProblemError(HttpProblem(400, "malformed", f"{what} has a NUL: leave it out"))


def wait_of(request: Request) -> float:
    """Return how many seconds the client waits for the end of the run (`Prefer: wait=N`); 0 means no wait."""
    for preference in ",".join(request.headers.getlist("prefer")).split(","):
        name, _, value = preference.strip().partition("=")
        if name.lower() == "wait" and value.isascii() and value.isdigit():
            return min(float(value[:9]), MAX_WAIT_S)
    return 0.0


def checked_origins(origins: Sequence[str], option: str = "--cors-origin") -> frozenset[str]:
    """Return the origins that an option named, such as ``https://shop.example``.

    Raises:
        ContractError: A text is not an origin. A wildcard is not an origin either.
    """
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            remedy = (
                "give scheme, host and port as browsers write them, such as https://shop.example"
            )
            raise ContractError(f"{option} {origin}: not an origin; {remedy}")
    return frozenset(origins)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origins:
    """The origins whose pages may send requests.

    Attributes:
        allowed: Origins of other sites whose pages may send requests, with a bearer token.
        is_loopback: Answer only requests whose Host is this machine's own address.
    """

    allowed: frozenset[str] = frozenset()
    is_loopback: bool = False

    def problem(self, request: Request) -> HttpProblem | None:
        """Return why a request is refused for its Host or Origin; None if it is allowed."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        # A page elsewhere could send requests by a name of its own that resolves to this machine.
        if self.is_loopback and not is_own_address(host):
            problem = f"the request's host is {host!r}, which is not this machine's own address"
            return HttpProblem(403, "foreign_host", problem, "send it to 127.0.0.1 or localhost")
        if origin is not None and authority_of(origin) != host and origin not in self.allowed:
            problem = "a page of another site may not send requests"
            remedy = "send it from a program or a server, or allow the site: callboard serve --cors-origin"
            return HttpProblem(403, "foreign_origin", problem, remedy, origin)
        return None

    def preflight(self, request: Request) -> Response | None:
        """Return the response to a CORS preflight request; None if the request is not one."""
        is_asked = "access-control-request-method" in request.headers
        if request.method != "OPTIONS" or not is_asked:
            return None
        return Response(status_code=204, headers=dict(_PREFLIGHT))

    def show(self, request: Request, response: Response) -> Response:
        """Add CORS headers to a response, so that a page of an allowed site can read it."""
        if self.allowed:
            response.headers.add_vary_header("Origin")
        origin = request.headers.get("origin")
        if origin in self.allowed:
            response.headers["access-control-allow-origin"] = origin
            response.headers["access-control-expose-headers"] = _EXPOSED
        return response


def authority_of(origin: str) -> str | None:
    """Return host and port of an origin; None if the text cannot be parsed."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Principal:
    """The identity of a client.

    Attributes:
        tenant: The principal's tenant. The principal finds nothing of other tenants.
        name: The owner of sessions that the principal creates. Ids of messages are scoped to this name.
        scopes: The principal's scopes.
        token: Id of the stored token that the request had; None if the request had none.
        expires_at: The instant from which the principal is invalid; None if it stays valid.
    """

    tenant: str
    name: str
    scopes: frozenset[Scope] = SCOPES
    token: str | None = None
    expires_at: datetime | None = None

    @property
    def only_owner(self) -> str | None:
        """The principal's own name if it sees only its own sessions; None if it sees those of its tenant."""
        return None if "sessions:all" in self.scopes else self.name

    def sees(self, owner: str | None) -> bool:
        """Return True if the principal sees the sessions of an owner in its tenant; of no owner if None."""
        return self.only_owner in (None, owner)

    def check(self, scope: Scope) -> None:
        """Check that the principal has a scope.

        Raises:
            ProblemError: The principal does not have the scope.
        """
        if scope in self.scopes or (scope == "sessions:own" and "sessions:all" in self.scopes):
            return
        remedy = f"use a token with the scope {scope}"
        problem = f"{self.name} is not allowed to do this"
        raise ProblemError(HttpProblem(403, "forbidden", problem, remedy, name=self.name))


LOCAL: Final = Principal(DEFAULT_TENANT, "local")
"""The principal of each request if there is no login."""

NOBODY: Final = Principal(DEFAULT_TENANT, "nobody", frozenset())
"""The principal of a request to an endpoint that needs no login."""

Authenticate: TypeAlias = Callable[[Request], Awaitable[Principal]]
"""Returns the principal of a request, or raises `ProblemError` with 401."""
