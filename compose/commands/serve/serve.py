"""`callboard serve`: serve sessions over HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Annotated, Literal

from cyclopts import Parameter

from actors.errors import ContractError
from actors.runtime.loop.tasks import run_loop
from compose.commands import options as opt
from compose.commands.options import HERE, Target
from compose.host.logs import write_logs

ADDRESS = "127.0.0.1:8123"


def serve(  # noqa: PLR0913 - each is an option
    module_app: Annotated[str | None, Parameter(name="MODULE:APP")] = None,
    /,
    *,
    listen: str = ADDRESS,
    agents: Annotated[bool, Parameter(negative="--no-agents")] = True,
    auth: Literal["none", "tokens", "jwt"] = "none",
    app: str | None = None,
    more_apps: Annotated[list[str] | None, Parameter(negative="")] = None,
    cors_origin: Annotated[list[str] | None, Parameter(negative="")] = None,
    nats_url: str | None = None,
    redis_url: str | None = None,
    namespace: opt.NamespaceOpt = None,
    lease_s: float | None = None,
    target: Target = HERE,
) -> None:
    """Serve sessions over HTTP, and execute their agents, until SIGTERM or SIGINT.

    One process has agents, API and, with `--data`, the servers. With `--no-agents` it has only the API, and
    hosts execute the agents. Any number of such processes may run behind a load balancer. A client may use any
    of them. `docs/http.md` describes each endpoint. Events are log lines on stderr, with `--json` JSON.

    Examples:
    `callboard serve shop.agents:app --data ./data`;
    `callboard serve --no-agents --app helpdesk --auth tokens --listen 0.0.0.0:8123`

    Parameters
    ----------
    module_app
        MODULE:ATTR as of `callboard chat`. Optional with --no-agents.
    listen
        HOST:PORT of the API. Port 0 means a free port, which the log names. Health is at CALLBOARD_HTTP.
    agents
        Execute the agents in this process, or leave that to hosts.
    auth
        none: no login, which is allowed only on this machine's own address. tokens: tokens of
        `callboard tokens create`. jwt: tokens that a key of CALLBOARD_JWT_JWKS signed.
    app
        Type of sessions for requests that name no type. Default: the type of the application.
    more_apps
        Types of other sessions that requests may name. With --auth none or the scope operate: any type.
    cors_origin
        Origin of another site whose pages may send requests with a bearer token, such as https://shop.example.
    nats_url
        nats://user:password@host:port of the broker. Without a broker, clients do not see live pieces of
        answers of other hosts. [env: CALLBOARD_NATS_URL]
    redis_url
        redis://:password@host:port/0 of a Redis server, which is optional. [env: CALLBOARD_REDIS_URL]
    lease_s
        Seconds for which a silent host keeps its agents. [env: CALLBOARD_LEASE_S, default 10]
    """
    write_logs(as_json=target.json, level=logging.DEBUG if target.debug else logging.INFO)
    settings = target.settings(
        nats_url=nats_url, redis_url=redis_url, namespace=namespace, lease_s=lease_s
    )
    try:  # imported here, because the web server is an extra
        from compose.web.process import WebOptions, run_serve  # noqa: PLC0415
    except ModuleNotFoundError as exc:
        problem = f"callboard serve needs {exc.name!r}, which is not installed"
        raise ContractError(f"{problem}: pip install 'callboard[host]'") from exc
    options = WebOptions(
        spec=module_app,
        listen=listen,
        auth=auth,
        has_agents=agents,
        app=app,
        apps=tuple(more_apps or ()),
        cors_origins=tuple(cors_origin or ()),
    )
    run_loop(run_serve(settings, options), _fast_loop())


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of uvloop's event loop, or None if uvloop is not installed."""
    try:
        import uvloop  # noqa: PLC0415 - see above
    except ImportError:
        return None
    return uvloop.new_event_loop
