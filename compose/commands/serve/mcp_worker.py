"""`callboard mcp-worker`: serve tools, flows and agents to clients of MCP."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from actors.errors import ContractError
from actors.runtime.loop.tasks import run_loop
from compose.assembly.settings import read_settings
from compose.commands import options as opt
from compose.commands.options import HERE, Target, within
from compose.host.logs import write_logs

if TYPE_CHECKING:
    from compose.mcp.http import HttpOptions

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
        from compose.mcp.http import HttpOptions  # noqa: PLC0415 - only clients over HTTP need it

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
    run_loop(run_worker(options, target.client() if _has_target(target) else None))


def _has_target(target: Target) -> bool:
    settings = read_settings(postgres_url=target.postgres_url, data_dir=target.data)
    return settings.postgres_url is not None or settings.data_dir is not None
