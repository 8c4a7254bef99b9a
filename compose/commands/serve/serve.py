"""`callboard serve`, `host`, `mcp-worker` and `dev`: processes that serve agents until a signal stops them.

`serve` answers HTTP, `host` executes agents, and `mcp-worker` serves tools, flows and agents to clients of MCP.
`dev` runs embedded servers, and a host that is replaced when the code changes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

from cyclopts import Parameter
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from actors.errors import ContractError
from actors.runtime.loop.tasks import run_loop
from compose.assembly.settings import read_settings
from compose.commands import options as opt
from compose.commands.options import HERE, DebugFlag, Flag, ServedArg, Target, within
from compose.commands.output import Exit, ago
from compose.commands.runs.list import status_text
from compose.commands.terminal import console
from compose.host.loader import check_spec
from compose.host.logs import visible, write_logs
from compose.host.process import Stop, run_host
from compose.tools.statuses import colour_of

if TYPE_CHECKING:
    from compose.mcp.process import HttpOptions
    from compose.tools.reload import Snapshot

ADDRESS = "127.0.0.1:8123"
DATA = Path(".callboard")
LINES_KEPT: Final = 12
RUNS_SHOWN: Final = 10


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


def host(  # noqa: PLR0913 - each is an option
    module_attr: Annotated[list[str], Parameter(negative="")],
    /,
    *,
    nats_url: str | None = None,
    redis_url: str | None = None,
    namespace: str | None = None,
    lease_s: float | None = None,
    suspend_after: float | None = None,
    capacity: int | None = None,
    drain_s: float | None = None,
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
Calls = Annotated[int, within(1, 10_000, "Give 1 or more, up to 10000.")]


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
        from compose.mcp.process import HttpOptions  # noqa: PLC0415 - only clients over HTTP need it

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
        from compose.mcp.process import WorkerOptions, run_worker  # noqa: PLC0415
    except ModuleNotFoundError as exc:
        problem = f"callboard mcp-worker needs {exc.name!r}, which is not installed"
        raise ContractError(f"{problem}: pip install 'callboard[host,mcp]'") from exc
    options = WorkerOptions(
        toolsets=tuple(one.strip() for one in (toolsets or "").split(",") if one.strip()),
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


async def dev(
    module_attr: ServedArg,
    /,
    *,
    data: Path = DATA,
    watch: Annotated[list[Path] | None, Parameter(negative="")] = None,
    json: Flag = False,
    debug: DebugFlag = False,
) -> int:
    """Serve agents on embedded servers, and replace the host when the code changes. Ctrl-C ends both.

    The command starts embedded NATS, PostgreSQL and Valkey in a folder, and a host process. When a Python file
    changes, it replaces the host, and runs continue in the new host by replay, as after a crash. If code
    cannot be compiled, it prints one line, and the agents continue as before. Other commands reach the
    agents with `--data`.

    Examples:
    `callboard dev shop.agents:app`;
    `callboard dev compose.demo.desk:AGENTS --data ./data --watch src`;
    `callboard dev shop.agents:app --json`

    Parameters
    ----------
    data
        Folder of the servers. Its data stays when the command ends.
    watch
        Folders whose Python files are watched. Default: the current folder.
    json
        Print each event as a JSON object, for programs.
    """
    from compose.tools.reload import develop  # noqa: PLC0415 - no other command watches files

    del debug  # `compose.cli` reads this option for every command
    for spec in module_attr:
        check_spec(spec)
    folder, folders = _folders(data, watch or [Path()])
    settings = read_settings(data_dir=folder)
    stop = Stop()
    stop.listen()
    view = Screen() if console().is_terminal and not json else Lines(as_json=json)
    with view:
        await develop(module_attr, folder, folders, settings=settings, view=view, stop=stop)
    return Exit.OK


def _folders(data: Path, watched: list[Path]) -> tuple[Path, list[Path]]:
    folders = [path.absolute() for path in watched]
    for folder in folders:
        if not folder.is_dir():
            problem = f"--watch {folder}: there is no such folder"
            raise ContractError(f"{problem}; name one with your code")
    return data.absolute(), folders


class Lines:
    """A view that prints a line or a JSON object for each event, and for each change of a run's status."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._known: dict[str, str] = {}

    def happened(self, event: str, text: str, facts: Mapping[str, object] | None = None) -> None:
        """See `compose.tools.reload.View.happened`."""
        line = json.dumps({"event": event, "text": text, **(facts or {})}, default=str)
        sys.stdout.write(f"{line if self._as_json else visible(text)}\n")
        sys.stdout.flush()

    def show(self, now: Snapshot) -> None:
        """See `compose.tools.reload.View.show`."""
        known, self._known = self._known, {row.run_id: status_text(row) for row in now.runs}
        for row in reversed(now.runs):
            status = status_text(row)
            if known.get(row.run_id) != status:
                facts = {"run": row.run_id, "agent": str(row.agent_id), "status": status}
                self.happened("run", f"run {row.run_id}  {row.agent_id}  {status}", facts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        """Do nothing: there is no state to restore."""


class Screen:
    """A view on a terminal: totals, the newest runs and the last 12 lines."""

    def __init__(self) -> None:
        self._lines: deque[Text] = deque(maxlen=LINES_KEPT)
        self._now: Snapshot | None = None
        self._live = Live(console=console(), refresh_per_second=4, transient=False)

    def happened(self, event: str, text: str, facts: Mapping[str, object] | None = None) -> None:
        """See `compose.tools.reload.View.happened`."""
        del facts
        self._lines.append(Text(text, "red" if event in ("error", "failed") else ""))
        self._live.update(self._drawn())

    def show(self, now: Snapshot) -> None:
        """See `compose.tools.reload.View.show`."""
        self._now = now
        self._live.update(self._drawn())

    def _drawn(self) -> Group:
        parts: list[Table | Text] = []
        if self._now is not None:
            parts += [_totals(self._now), _runs(self._now), Text()]
        return Group(*parts, *self._lines)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._live.stop()


def _totals(now: Snapshot) -> Text:
    totals, parked = now.totals, sum(now.totals.parked.values())
    opened = ", ".join(f"{n} {status.lower()}" for status, n in sorted(totals.runs.items()) if n)
    facts = f"hosts {totals.hosts}", f"open runs: {opened or 'none'}"
    rates = f"{now.per_second:.1f} runs/s", f"messages {sum(totals.pending.values())}"
    text = Text("  ·  ".join((*facts, *rates)), "bold")
    if parked:
        text += Text(f"  ·  {parked} parked: callboard runs list --parked", "yellow")
    if totals.dead_letters:
        text += Text(f"  ·  {totals.dead_letters} dead letters: callboard dlq list", "red")
    return text


def _runs(now: Snapshot) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("run", "agent", "status", "changed"):
        table.add_column(name, no_wrap=True)
    for row in now.runs[:RUNS_SHOWN]:
        status = status_text(row)
        agent = Text(str(row.agent_id))
        since = f"{ago(row.updated_at)} ago" if row.updated_at is not None else ""
        table.add_row(row.run_id, agent, Text(status, colour_of(status)), since)
    return table
