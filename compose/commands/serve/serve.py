"""`callboard serve`: sessions over HTTP."""

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

    One process has agents, API and, with `--data`, the servers. With `--no-agents` it is the API alone, beside
    hosts: any number of such processes may stand behind a balancer, and no client has to come back to the
    same one. `docs/http.md` has each endpoint. Events are log lines on stderr, with `--json` JSON objects.

    Examples:
    `callboard serve shop.agents:app --data ./data`;
    `callboard serve --no-agents --app helpdesk --auth tokens --listen 0.0.0.0:8123`

    Parameters
    ----------
    module_app
        MODULE:ATTR as of `callboard chat`; may be left out with --no-agents.
    listen
        HOST:PORT of the API; port 0 is a free one, which the log names. Health is at CALLBOARD_HTTP.
    agents
        Execute the agents in this process, or leave that to hosts.
    auth
        none: no client has to log in, which is allowed on this machine's own address only. tokens:
        those of `callboard tokens create`. jwt: those that the keys of CALLBOARD_JWT_JWKS sign.
    app
        Type of the sessions that requests are about which name none; left out: that of the application.
    more_apps
        Types of other sessions that requests may name; with --auth none, or to operate, any.
    cors_origin
        Origin of another site whose pages may ask, with a bearer token, such as https://shop.example.
    nats_url
        nats://user:password@host:port of the broker; without it, pieces of answers of other hosts are not
        seen while they are said. [env: CALLBOARD_NATS_URL]
    redis_url
        redis://:password@host:port/0; may be left out. [env: CALLBOARD_REDIS_URL]
    lease_s
        Seconds a silent host keeps its agents. [env: CALLBOARD_LEASE_S, default 10]
    """
    write_logs(as_json=target.json, level=logging.DEBUG if target.debug else logging.INFO)
    settings = target.settings(
        nats_url=nats_url, redis_url=redis_url, namespace=namespace, lease_s=lease_s
    )
    try:  # imported here: only who serves has a web server
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
    """Return what makes the loop of uvloop where there is a wheel of it."""
    try:
        import uvloop  # noqa: PLC0415 - see above
    except ImportError:
        return None
    return uvloop.new_event_loop
