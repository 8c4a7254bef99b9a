"""`callboard serve`, `host` and `mcp-worker`: processes that serve agents until a signal stops them.

`serve` answers HTTP, `host` executes agents, and `mcp-worker` serves tools, flows and agents to clients of MCP.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import Parameter

from actors._runtime.loop.tasks import run_loop
from actors.errors import ContractError
from compose._assembly.settings import read_settings
from compose._commands import options as opt
from compose._commands.options import HERE, Target, within
from compose._host.logs import write_logs
from compose._host.process import run_host

if TYPE_CHECKING:
    from compose._mcp.http import HttpOptions

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
    lease_s: opt.LeaseOpt | None = None,
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
        from compose._web.process import WebOptions, run_serve  # noqa: PLC0415
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


def host(  # noqa: PLR0913 - each is an option
    module_attr: Annotated[list[str], Parameter(negative="")],
    /,
    *,
    nats_url: str | None = None,
    redis_url: str | None = None,
    namespace: str | None = None,
    lease_s: opt.LeaseOpt | None = None,
    suspend_after: Annotated[float, opt.within_setting("suspend_after", "seconds")] | None = None,
    capacity: Annotated[int, opt.within_setting("capacity")] | None = None,
    drain_s: Annotated[float, opt.within_setting("drain_s", "seconds")] | None = None,
    http: str | None = None,
    target: Target = HERE,
) -> None:
    """Serve agents until SIGTERM or SIGINT.

    An added host takes a part of the agents. If a host is killed, other hosts take over its agents when its
    lease is over. After SIGTERM a host releases its agents at once, and the exit code is 0. Events are
    log lines on stderr, or with `--json` JSON objects.

    Examples:
    `callboard host shop.agents:app --postgres-url postgresql://me:secret@db/shop --nats-url nats://me:secret@nats`;
    `callboard host compose.demo.desk:AGENTS --data ./data`

    Parameters
    ----------
    module_attr
        MODULE:ATTR of an agent, a list of agents, an agent class with `id`, a mapping
        {type: factory}, a SessionAgent, whose type has a session for each key, Flows, or a function
        app(runtime) that registers agents. A list may have Flows too.
    nats_url
        nats://user:password@host:port of the broker. Without a broker, messages between hosts go through
        PostgreSQL, and external clients cannot publish to agents. [env: CALLBOARD_NATS_URL]
    redis_url
        redis://:password@host:port/0 of a Redis server, which is optional. [env: CALLBOARD_REDIS_URL]
    namespace
        Prefix of every stream and subject. [env: CALLBOARD_NAMESPACE]
    lease_s
        Seconds for which a silent host keeps its agents. [env: CALLBOARD_LEASE_S, default 10]
    suspend_after
        Seconds for which a waiting run stays in memory. [env: CALLBOARD_SUSPEND_AFTER, default 5]
    capacity
        Greatest number of runs that execute at once. [env: CALLBOARD_CAPACITY, default 1000]
    drain_s
        Seconds that executing code has to end after SIGTERM. [env: CALLBOARD_DRAIN_S, default 30]
    http
        HOST:PORT that answers /healthz (the process runs), /readyz (the host accepts work; else 503 with
        the reasons) and /metrics (for Prometheus). With port 0 the host chooses a free port, which the log
        names. [env: CALLBOARD_HTTP, default none]
    """
    write_logs(as_json=target.json, level=logging.DEBUG if target.debug else logging.INFO)
    settings = target.settings(
        nats_url=nats_url,
        redis_url=redis_url,
        namespace=namespace,
        lease_s=lease_s,
        suspend_after=suspend_after,
        capacity=capacity,
        drain_s=drain_s,
        http=http,
    )
    run_loop(run_host(settings, module_attr))


Names = Annotated[list[str] | None, Parameter(negative="")]
Calls = Annotated[int, within(1, 10_000)]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAccess:
    """Options about clients over HTTP.

    Attributes:
        http: HOST:PORT to listen at. With port 0 the worker chooses a free port, which the log names.
        token_file: File with the tokens of clients, one on a line. It is read again for each request.
        allow_host: NAME:PORT that clients may use, in addition to this machine's own addresses.
        allow_origin: Origin whose pages may send requests, such as https://shop.example.
    """

    http: str | None = None
    token_file: Path | None = None
    allow_host: Names = None
    allow_origin: Names = None

    def options(self) -> HttpOptions | None:
        """Return the options of the HTTP server, or None if the client is the parent process.

        Raises:
            ContractError: An option about HTTP is given without `--http`, or `HttpOptions` refuses a value.
        """
        if self.http is None:
            if self.token_file or self.allow_host or self.allow_origin:
                problem = (
                    "--token-file, --allow-host and --allow-origin are about clients over HTTP"
                )
                raise ContractError(f"{problem}: say --http HOST:PORT, too")
            return None
        from compose._mcp.http import HttpOptions  # noqa: PLC0415 - only clients over HTTP need it

        return HttpOptions(
            address=self.http,
            token_file=self.token_file,
            hosts=tuple(self.allow_host or ()),
            origins=tuple(self.allow_origin or ()),
        )


STREAMS: Final = ClientAccess()


def mcp_worker(  # noqa: PLR0913 - each is an option
    *,
    toolsets: str | None = None,
    root: Path = Path(),
    allow_private: Annotated[bool, Parameter(negative="")] = False,
    flows: str | None = None,
    agents: str | None = None,
    wait_s: opt.Seconds = 50.0,
    max_calls: Calls = 8,
    access: ClientAccess = STREAMS,
    target: Target = HERE,
) -> None:
    """Serve tools to clients of MCP until the client ends, or until SIGTERM or SIGINT.

    Without `--http` the client is the parent process. Standard input and output have only messages of MCP,
    even if a tool prints. Events are log lines on stderr, or with `--json` JSON objects.
    `docs/mcp-worker.md` describes each tool.

    Examples:
    `callboard mcp-worker --toolsets files,web --root ./work`;
    `callboard mcp-worker --toolsets files --http 127.0.0.1:8765 --token-file mcp.token`;
    `callboard mcp-worker --flows shop.agents:flows`

    Parameters
    ----------
    toolsets
        Toolsets among files, web and shell, separated by commas.
    root
        Folder of the files, and the working folder of commands. Default: the current folder.
    allow_private
        Let fetch_url reach this machine and its network, not only public addresses.
    flows
        MODULE:APP, or a file of flows. Each flow is a tool, and a call of the tool is a run. If a database is
        named, hosts of the app execute the run. Otherwise this process executes it in memory. `installed`
        means the installed flows of the database, in their newest versions.
    agents
        MODULE:APP of agents, which are tools in the same way.
    wait_s
        Longest wait of a call for the end of its run, in seconds. After it the call returns the run's id, for
        run_result.
    max_calls
        Greatest number of calls of one client that execute at once. Further calls are refused.
    """
    write_logs(as_json=target.json, level=logging.DEBUG if target.debug else logging.INFO)
    try:  # imported here, because the MCP SDK is an extra
        from compose._mcp.process import WorkerOptions, run_worker  # noqa: PLC0415
    except ModuleNotFoundError as exc:
        problem = f"callboard mcp-worker needs {exc.name!r}, which is not installed"
        raise ContractError(f"{problem}: pip install 'callboard[host,mcp]'") from exc
    options = WorkerOptions(
        toolsets=tuple(name.strip() for name in (toolsets or "").split(",") if name.strip()),
        root=root,
        allow_private=allow_private,
        http=access.options(),
        max_calls=max_calls,
        flows=flows,
        agents=agents,
        wait_s=wait_s,
    )
    settings = read_settings(postgres_url=target.postgres_url, data_dir=target.data)
    has_database = settings.postgres_url is not None or settings.data_dir is not None
    run_loop(run_worker(options, target.client() if has_database else None))
