"""The worker over HTTP: its address, its access rules, and the SDK's streamable transport."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mcp.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager

from actors.errors import ContractError
from compose.host.http import AddressError, parse_address
from compose.host.own_address import is_own_address
from compose.host.process import Stop
from compose.mcp.access import PATH, AllowedSites, GuardedEndpoint, TokenFile
from compose.web.limits import MAX_BODY_BYTES
from compose.web.origins import checked_origins
from compose.web.server import serve_web

_log = logging.getLogger("callboard.mcp")

MAX_SESSIONS: Final = 1_000
"""Maximum number of sessions. Only clients of older protocol versions, which shake hands, have sessions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """The HTTP options of `callboard mcp-worker`.

    Attributes:
        address: ``HOST:PORT``.
        token_file: See `TokenFile`.
        hosts: See `AllowedSites`.
        origins: See `AllowedSites`.

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
