"""`callboard env`: print the URLs of a folder's servers, for other programs and other hosts."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import Final

from compose.assembly.settings import read_settings
from compose.commands.options import DebugFlag, Flag, start_host
from compose.commands.output import Exit, NoDataError, print_json
from compose.commands.terminal import say
from compose.embedded import url_if_running

WHERE: Final = (
    ("CALLBOARD_POSTGRES_URL", "."),
    ("CALLBOARD_NATS_URL", "nats"),
    ("CALLBOARD_REDIS_URL", "redis"),
)
"""Environment variables of the servers' URLs, each with the server's sub-folder."""


async def env(*, data: Path | None = None, json: Flag = False, debug: DebugFlag = False) -> int:
    """Print the URLs of a folder's running servers as lines for a shell.

    `callboard dev` and `callboard host --data DIR` run NATS, PostgreSQL and Valkey on free ports of
    127.0.0.1. Programs of a shell that evaluates these lines connect to the same servers: other hosts,
    `callboard` itself, and services in any language. The URLs have passwords.

    Examples:
    `eval "$(callboard env --data ./data)"`;
    `callboard env --data ./data --json`

    Parameters
    ----------
    data
        Folder of the embedded servers. [env: CALLBOARD_DATA_DIR]
    json
        Print one JSON object.
    """
    del debug  # `compose.cli` reads this option for every command
    folder = data or read_settings().data_dir
    if folder is None:
        raise NoDataError("no folder was named: give --data DIR, or set CALLBOARD_DATA_DIR")
    found: dict[str, str] = {}
    for name, place in WHERE:
        if (url := await asyncio.to_thread(url_if_running, folder / place)) is not None:
            found[name] = url
    if len(found) < len(WHERE):
        raise NoDataError(f"no servers run in {folder}: {start_host(folder)}")
    if json:
        print_json(found)
        return Exit.OK
    for name, url in found.items():
        say(f"export {name}={shlex.quote(url)}")
    return Exit.OK
