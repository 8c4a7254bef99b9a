"""`callboard mcp-worker`: tools for clients of MCP."""

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
        http: HOST:PORT to listen at; port 0 is a free one, which the log names.
        token_file: File with the tokens of clients, one a line; it is read again for each request.
        allow_host: NAME:PORT by which clients ask, beside this machine's own addresses.
        allow_origin: Origin whose pages may ask, such as https://shop.example.
    """

    http: str | None = None
    token_file: Path | None = None
    allow_host: Names = None
    allow_origin: Names = None

    def options(self) -> HttpOptions | None:
        """Return how clients are answered; None: the client is the parent process.

        Raises:
            ContractError: There are such options, and no `--http`; or see `HttpOptions`.
        """
        if self.http is None:
            if self.token_file or self.allow_host or self.allow_origin:
                problem = (
                    "--token-file, --allow-host and --allow-origin are about clients over HTTP"
                )
                raise ContractError(f"{problem}: say --http HOST:PORT, too")
            return None
        from compose.mcp.http import HttpOptions  # noqa: PLC0415 - most clients are parent processes

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
    """Serve tools to clients of MCP, until the client ends or until SIGTERM or SIGINT.

    Without `--http` the client is the program that starts this: messages are on standard input and output,
    and nothing else is, whatever a tool prints. Events are log lines on stderr, with `--json` JSON objects.
    `docs/mcp-worker.md` has each tool.

    Examples:
    `callboard mcp-worker --toolsets files,web --root ./work`;
    `callboard mcp-worker --toolsets files --http 127.0.0.1:8765 --token-file mcp.token`;
    `callboard mcp-worker --flows shop.agents:flows`

    Parameters
    ----------
    toolsets
        Of files, web and shell, separated by commas.
    root
        The folder of the files, and where commands begin; by default the current one.
    allow_private
        Let fetch_url reach this machine and its network, not only public addresses.
    flows
        MODULE:APP, or a file of flows: each is a tool, and a call of it a run. Hosts of the app execute it
        where a database is named, else this process, in memory. `installed`: the installed flows of the
        database, in their newest versions.
    agents
        MODULE:APP of agents, as tools in the same way.
    wait_s
        Seconds that a call waits for the end of its run; then it returns the run's id, for run_result.
    max_calls
        Calls of one client that execute at once; more are refused.
    """
    write_logs(as_json=target.json, level=logging.DEBUG if target.debug else logging.INFO)
    try:  # imported here: only who serves has the SDK
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
