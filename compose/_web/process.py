"""The process of `callboard serve`: serves the API at an address, and can execute an application's agents.

The web server is uvicorn on the process's event loop, with limits per connection (`connection`).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from starlette.types import ASGIApp

from actors._sessions.runtime import APP, AgentRuntime
from actors.errors import ContractError
from compose._assembly.settings import Settings
from compose._host.collector import loading
from compose._host.http import AddressError, listen, parse_address, run_server, url_of
from compose._host.loader import check_spec, find_served
from compose._host.own_address import is_own_address
from compose._host.process import Stop, opened, probed
from compose._web.application import app as api_of
from compose._web.identity.authentication import Authentication
from compose._web.requests import MAX_HEAD_BYTES, checked_origins

if TYPE_CHECKING:
    from actors._runtime import Runtime

_log = logging.getLogger("callboard.web")

Auth: TypeAlias = Literal["none", "tokens", "jwt"]
"""The way in which requests are authenticated."""
BACKLOG: Final = 1_024
STOP_LIMIT_S: Final = 5
"""Seconds in which pending responses may finish when the server stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebOptions:
    """Options of `callboard serve` in addition to those of a host.

    Attributes:
        spec: ``MODULE:APP``; None to serve the API alone.
        listen: ``HOST:PORT``.
        auth: How requests are authenticated; ``none`` only for a loopback address.
        has_agents: True if the process executes agents.
        app: The type of the sessions' agents; None for the type of the application.
        apps: Names of further apps whose sessions requests may name.
        cors_origins: Origins of other sites whose pages may send requests.

    Raises:
        AddressError: `listen` is not an address, or is not a loopback address although `auth` is ``none``.
        ContractError: There is nothing to serve, or an entry of `cors_origins` is not an origin.
        ServeError: `spec` is not of that form.
    """

    spec: str | None
    listen: str
    auth: Auth = "none"
    has_agents: bool = True
    app: str | None = None
    apps: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.spec is not None:
            check_spec(self.spec)
        elif self.has_agents:
            raise ContractError("there are no agents to serve: name MODULE:APP, or say --no-agents")
        checked_origins(self.cors_origins)
        host, _ = parse_address(self.listen, "--listen")
        if self.auth == "none" and not is_own_address(f"[{host}]" if ":" in host else host):
            problem = "other machines could send requests there, and --auth none needs no login"
            remedy = "listen at 127.0.0.1, or say --auth tokens or --auth jwt"
            raise AddressError(self.listen, problem, remedy, "--listen")


async def run_serve(settings: Settings, options: WebOptions) -> None:
    """Serve the API until SIGTERM or SIGINT. Runs that execute here are then drained or dropped, as on a host.

    If `settings.http` names an address, health and metrics are served there, as on a host.

    Raises:
        ServeError: `options.spec` does not lead to sessions.
        ContractError: No server is configured, the server refuses the connection, the address is taken, or
            ``--auth jwt`` has no key set or package.
    """
    authentication = _authentication(settings, options.auth)
    stop = Stop()
    stop.listen()
    async with AsyncExitStack() as stack:
        probes = await stack.enter_async_context(probed(settings))
        opening = _open_runtime(settings, options)
        runtime = await stop.unless_stopped(stack.enter_async_context(opening))
        if runtime is None:
            return
        agents, modes = await stack.enter_async_context(_sessions(runtime, options))
        application = api_of(
            agents,
            modes=modes,
            apps=options.apps,
            authenticate=authentication(runtime),
            cors_origins=options.cors_origins,
            is_loopback=options.auth == "none",
        )
        serving = serve_web(options.listen, application, before_stop=application.end_streams)
        async with serving as url:
            facts = {"url": url, "app": agents.app, "agents": options.has_agents}
            if probes is not None:
                probes.serving(runtime)
            _log.info("web.serving", extra={"pid": os.getpid(), **facts})
            await stop.requested.wait()
            if probes is not None:
                probes.draining()
            _log.info("web.stopping", extra={"signal": stop.signal_name})
        # After the server: pending requests still use the runtime.
        await runtime.stop(drain_s=settings.drain_s)
    _log.info("web.stopped", extra={"pid": os.getpid()})


def _authentication(settings: Settings, auth: Auth) -> Callable[[Runtime], Authentication | None]:
    """Return a function that makes the authentication for a runtime; with ``none`` it returns None.

    Raises:
        ContractError: ``jwt`` has no key set, or the package that reads JSON web tokens is not installed.
    """
    if auth == "none":
        return lambda _: None
    if auth == "tokens":
        return lambda runtime: Authentication(runtime.store.data.tokens, runtime.clock)
    if settings.jwt_jwks is None:
        problem = "--auth jwt needs the public keys that sign tokens"
        raise ContractError(f"{problem}: set CALLBOARD_JWT_JWKS to a file or URL of a JWKS")
    try:  # imported here: the package is an extra
        from compose._web.identity.json_web_tokens import (  # noqa: PLC0415
            ClaimNames,
            JsonWebTokens,
            KeySet,
            source_of,
        )
    except ModuleNotFoundError as exc:
        problem = f"--auth jwt needs {exc.name!r}, which is not installed"
        raise ContractError(f"{problem}: pip install 'callboard[jwt]'") from exc
    names = ClaimNames(
        issuer=settings.jwt_issuer,
        audience=settings.jwt_audience,
        tenant=settings.jwt_tenant_claim,
        principal=settings.jwt_principal_claim,
        scopes=settings.jwt_scopes_claim,
        leeway_s=settings.jwt_leeway_s,
    )
    keys = KeySet(source_of(settings.jwt_jwks), time.monotonic)

    def make_authentication(runtime: Runtime) -> Authentication:
        recognize = JsonWebTokens(keys, names, runtime.clock.now)
        return Authentication(runtime.store.data.tokens, runtime.clock, recognize)

    return make_authentication


@asynccontextmanager
async def _open_runtime(settings: Settings, options: WebOptions) -> AsyncIterator[Runtime]:
    """Yield the runtime: a host, or a client that uses the servers of the folder."""
    async with AsyncExitStack() as stack:
        opening = await stack.enter_async_context(opened(settings)) if options.has_agents else None
        with loading():  # import while the servers start
            from compose._assembly.runtime import build_as_set, settings_of_client  # noqa: PLC0415
        if not options.has_agents:
            settings = await stack.enter_async_context(settings_of_client(settings))
        building = build_as_set(settings, client="serve", serve=options.has_agents, opening=opening)
        yield await stack.enter_async_context(building)


@asynccontextmanager
async def _sessions(
    runtime: Runtime, options: WebOptions
) -> AsyncIterator[tuple[AgentRuntime, tuple[str, ...]]]:
    """Yield the application's sessions, with or without their agents, and the names of the app's modes."""
    modes: tuple[str, ...] = ()
    if options.spec is None:
        agents = AgentRuntime(runtime=runtime, app=options.app or APP)
    else:
        from compose._host.loader import serve_app  # noqa: PLC0415

        with loading():
            served_object = find_served(options.spec)
        served_app = await serve_app(runtime, options.spec, served_object, app=options.app)
        agents = AgentRuntime(
            agents=served_app.modes if options.has_agents else None,
            runtime=runtime,
            app=served_app.app,
            version=served_app.version,
            retry=served_app.retry,
        )
        modes = served_app.known_modes
    async with agents:
        yield agents, modes


@asynccontextmanager
async def serve_web(
    address: str,
    application: ASGIApp,
    *,
    before_stop: Callable[[], None] = lambda: None,
    option: str = "--listen",
) -> AsyncIterator[str]:
    """Serve an application at an address; yield the URL with the actual port.

    Args:
        address: ``HOST:PORT``; with port 0 the system chooses a free port.
        application: The application.
        before_stop: Called before the server stops. It has to end responses that never end by themselves.
        option: The command-line option of the address, for errors.

    Raises:
        AddressError: `address` is not an address, or another process uses it.
    """
    protocol: Any = "h11"
    with suppress(ImportError):  # httptools is missing where it has no wheel
        from compose._web import connection  # noqa: PLC0415

        protocol = connection.HeadLimited
    listening = listen(address, option)
    url = url_of(listening)
    answering = run_server(
        listening,
        application,
        name="web",
        stop_limit_s=STOP_LIMIT_S,
        http=protocol,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        backlog=BACKLOG,
    )
    async with answering:
        _log.info("web.listening", extra={"url": url})
        try:
            yield url
        finally:
            # Before the server stops: it waits for responses, and streams do not end by themselves.
            before_stop()
