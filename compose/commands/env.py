"""`callboard env`: where the servers of a folder answer, for other programs and other hosts."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from compose.commands.exits import Exit, NoDataError
from compose.commands.output import print_json, say
from compose.embedded import postgres_url_if_running, url_if_running
from compose.settings import read_settings

WHERE: Final = (
    ("CALLBOARD_POSTGRES_URL", "."),
    ("CALLBOARD_NATS_URL", "nats"),
    ("CALLBOARD_REDIS_URL", "redis"),
)
"""Which variable names the server of which sub-folder."""


async def env(
    *,
    data: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
    debug: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Print the URLs of a folder's running servers as lines for a shell.

    `callboard dev` and `callboard host --data DIR` run NATS, PostgreSQL and Valkey on free ports of
    127.0.0.1. Whoever evaluates these lines reaches the same ones: other hosts, `callboard` itself,
    and services in any language. The URLs hold passwords.

    Examples:
    `eval "$(callboard env --data ./data)"`;
    `callboard env --data ./data --json`

    Parameters
    ----------
    data
        Folder of the embedded servers. [env: CALLBOARD_DATA_DIR]
    json
        Print one JSON object.
    debug
        Show the traceback of an error.
    """
    del debug  # read by `compose.cli`, for every command alike
    folder = data or read_settings().data_dir
    if folder is None:
        raise NoDataError("no folder was named: give --data DIR, or set CALLBOARD_DATA_DIR")
    found = await asyncio.to_thread(_running, folder)
    missing = [name for name, _ in WHERE if name not in found]
    if missing:
        remedy = f"start a host with `callboard host … --data {folder}` first"
        raise NoDataError(f"no servers run in {folder}: {remedy}")
    if json:
        print_json(found)
        return Exit.OK
    for name, url in found.items():
        say(f"export {name}={shlex.quote(url)}")
    return Exit.OK


def _running(folder: Path) -> dict[str, str]:
    urls = {"CALLBOARD_POSTGRES_URL": postgres_url_if_running(folder)}
    urls |= {name: url_if_running(folder / place) for name, place in WHERE[1:]}
    return {name: url for name, url in urls.items() if url is not None}
