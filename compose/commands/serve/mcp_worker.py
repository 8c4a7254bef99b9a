"""`callboard mcp-worker`: tools for clients of MCP."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from actors.errors import ContractError
from actors.runtime.loop.tasks import run_loop
from compose.commands.options import HERE, Target, within
from compose.host.logs import write_logs

Names = Annotated[list[str] | None, Parameter(negative="")]
Calls = Annotated[int, within(1, 10_000, "Give 1 or more, up to 10000.")]


def mcp_worker(  # noqa: PLR0913 - each is an option
    *,
    toolsets: str | None = None,
    root: Path = Path(),
    allow_private: Annotated[bool, Parameter(negative="")] = False,
    http: str | None = None,
    token_file: Path | None = None,
    allow_host: Names = None,
    allow_origin: Names = None,
    max_calls: Calls = 8,
    target: Target = HERE,
) -> None:
    """Serve tools to clients of MCP, until the client ends or until SIGTERM or SIGINT.

    Without `--http` the client is the program that starts this: messages are on standard input and output,
    and nothing else is, whatever a tool prints. Events are log lines on stderr, with `--json` JSON objects.
    `docs/mcp-worker.md` has each tool.

    Examples:
    `callboard mcp-worker --toolsets files,web --root ./work`;
    `callboard mcp-worker --toolsets files --http 127.0.0.1:8765 --token-file mcp.token`

    Parameters
    ----------
    toolsets
        Of files, web and shell, separated by commas.
    root
        The folder of the files, and where commands begin; by default the current one.
    allow_private
        Let fetch_url reach this machine and its network, not only public addresses.
    http
        HOST:PORT to listen at; port 0 is a free one, which the log names.
    token_file
        File with the tokens of clients over HTTP, one a line; it is read anew for each request.
    allow_host
        NAME:PORT by which clients ask, beside this machine's own addresses.
    allow_origin
        Origin whose pages may ask, such as https://shop.example.
    max_calls
        Calls of one client that execute at once; more are refused.
    """
    write_logs(as_json=target.json, level=logging.DEBUG if target.debug else logging.INFO)
    try:  # imported here: only who serves has the SDK and a web server
        from compose.mcp.process import WorkerOptions, run_worker  # noqa: PLC0415
    except ModuleNotFoundError as exc:
        problem = f"callboard mcp-worker needs {exc.name!r}, which is not installed"
        raise ContractError(f"{problem}: pip install 'callboard[host,mcp]'") from exc
    options = WorkerOptions(
        toolsets=tuple(one.strip() for one in (toolsets or "").split(",") if one.strip()),
        root=root,
        allow_private=allow_private,
        http=http,
        token_file=token_file,
        hosts=tuple(allow_host or ()),
        origins=tuple(allow_origin or ()),
        max_calls=max_calls,
    )
    run_loop(run_worker(options))
