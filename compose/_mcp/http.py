"""The worker over HTTP: its address, the SDK's streamable transport, and who may use it.

A request has to name an allowed host and origin, and to have a token of a file. The SDK gets no other request.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mcp.server import Server
from mcp.server.auth.middleware.bearer_auth import BearerAuthBackend, RequireAuthMiddleware
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from actors.errors import ContractError
from compose._host.http import AddressError, parse_address
from compose._host.own_address import is_own_address
from compose._host.process import Stop
from compose._web.process import serve_web
from compose._web.requests import MAX_BODY_BYTES, authority_of, checked_origins

_log = logging.getLogger("callboard.mcp")

PATH: Final = "/mcp"
MIN_TOKEN: Final = 16
"""Minimum number of characters of a token."""
MAX_SESSIONS: Final = 1_000
"""Maximum number of sessions. Only clients of older protocol versions, which shake hands, have sessions."""
_MAX_FILE_BYTES: Final = 64 * 1024
_HEADERS: Final = (
    *("authorization", "content-type", "last-event-id"),
    *("mcp-method", "mcp-name", "mcp-protocol-version", "mcp-session-id"),
)
_EXPOSED: Final = ("mcp-session-id", "www-authenticate")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """The HTTP options of `callboard mcp-worker`.

    Attributes:
        address: ``HOST:PORT``.
        token_file: File with one token on each line.
        hosts: Allowed values of `Host`, in addition to this machine's own addresses.
        origins: Allowed values of `Origin`, in addition to the worker's own origin.

    Raises:
        ContractError: There are no tokens, or an entry of `origins` is not an origin.
        AddressError: `address` is not an address, or is not a loopback address and `hosts` is empty.
    """

    address: str
    token_file: Path | None
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        checked_origins(self.origins, "--allow-origin")
        if self.token_file is None:
            problem = "--http needs --token-file: without it any program could call the tools"
            raise ContractError(f"{problem}; make one: openssl rand -hex 32 > mcp.token")
        host, _ = parse_address(self.address)
        if not self.hosts and not is_own_address(f"[{host}]" if ":" in host else host):
            problem = "no host name is allowed for requests from other machines"
            raise AddressError(self.address, problem, "say --allow-host NAME:PORT")
        TokenFile(self.token_file).check()

    async def serve(self, server: Server[Any], stop: Stop) -> None:
        """Serve until `stop` is requested. Then open sessions and calls are cancelled.

        Raises:
            AddressError: Another process uses the address.
        """
        assert self.token_file is not None
        manager = StreamableHTTPSessionManager(
            server, max_request_body_size=MAX_BODY_BYTES, max_sessions=MAX_SESSIONS
        )
        application = GuardedEndpoint(
            StreamableHTTPASGIApp(manager),
            tokens=TokenFile(self.token_file),
            sites=AllowedSites(hosts=frozenset(self.hosts), origins=frozenset(self.origins)),
        )
        # Sessions end before the server, which would otherwise wait for their pending responses.
        async with serve_web(self.address, application, option="--http") as url, manager.run():
            _log.info("mcp.listening", extra={"url": f"{url}{PATH}"})
            await stop.requested.wait()


@dataclass(frozen=True, slots=True)
class TokenFile:
    """The tokens of a file, one per line. The file is read for each request: a removed token works no longer.

    Attributes:
        path: The file. Lines that start with # are comments.
    """

    path: Path

    def check(self) -> None:
        """Check that the file has usable tokens.

        Raises:
            ContractError: The file cannot be read, has no token, or has a token that is too short.
        """
        try:
            tokens = self._tokens()
        except (OSError, ValueError) as exc:
            raise ContractError(f"--token-file {self.path}: {exc}") from exc
        if not tokens or min(map(len, tokens)) < MIN_TOKEN:
            problem = f"it needs a token of {MIN_TOKEN} characters or more on each line"
            raise ContractError(
                f"--token-file {self.path}: {problem}; make one: openssl rand -hex 32"
            )

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the identity of a token, for the SDK; None if it is unknown.

        The time does not depend on which line matches.
        """
        try:
            tokens = self._tokens()
        except (OSError, ValueError):
            _log.exception("mcp.tokens", extra={"file": str(self.path)})
            return None
        digest = hashlib.sha256(token.encode()).digest()
        line_digests = [hashlib.sha256(line.encode()).digest() for line in tokens]
        if not sum([hmac.compare_digest(digest, line_digest) for line_digest in line_digests]):
            return None
        return AccessToken(token=token, client_id=digest.hex()[:16], scopes=[])

    def _tokens(self) -> list[str]:
        with self.path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        if len(data) > _MAX_FILE_BYTES:
            raise ValueError(f"it has more than {_MAX_FILE_BYTES} bytes")
        lines = [line.strip() for line in data.decode().splitlines()]
        return [line for line in lines if line and not line.startswith("#")]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedSites:
    """The host names and origins that requests may have.

    Attributes:
        hosts: Allowed values of `Host`, in addition to this machine's own addresses.
        origins: Allowed values of `Origin`, in addition to the worker's own origin.
    """

    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()

    def problem(self, request: Request) -> str | None:
        """Return why a request is refused; None if it is allowed."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if host not in self.hosts and not is_own_address(host):
            return f"the request's host is {host[:100]!r}; --allow-host allows it"
        if origin is not None and origin not in self.origins and authority_of(origin) != host:
            return f"a page of {origin[:100]!r} may not send requests; --allow-origin allows it"
        return None


class GuardedEndpoint:
    """An ASGI application that refuses requests of foreign hosts or pages, and requests without a valid token.

    Args:
        inner: Gets the requests that are not refused.
        tokens: The tokens of which each request has to have one.
        sites: The hosts and origins that a request may name.
    """

    def __init__(self, inner: ASGIApp, *, tokens: TokenFile, sites: AllowedSites) -> None:
        self._sites = sites
        guarded_app = AuthenticationMiddleware(
            RequireAuthMiddleware(inner, []), backend=BearerAuthBackend(tokens)
        )
        self._inner = CORSMiddleware(
            guarded_app,
            allow_origins=sorted(sites.origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=_HEADERS,
            expose_headers=_EXPOSED,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an HTTP request, or refuse it. Other kinds of connections are ignored."""
        if scope["type"] != "http":
            return
        problem, status = self._sites.problem(Request(scope)), 403
        if problem is None and scope["path"] != PATH:
            problem, status = f"the only path is {PATH}", 404
        if problem is None:
            await self._inner(scope, receive, send)
        else:
            await JSONResponse({"error": problem}, status_code=status)(scope, receive, send)
