"""`callboard dev`: write agents and see them work."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from actors.errors import ContractError
from compose.commands.dev_view import Lines, Screen
from compose.commands.exits import Exit
from compose.commands.output import console
from compose.development import develop
from compose.host import Stop
from compose.serving import check_spec
from compose.settings import read_settings

DATA = Path(".callboard")


async def dev(
    module_attr: Annotated[list[str], Parameter(negative="")],
    /,
    *,
    data: Path = DATA,
    watch: Annotated[list[Path] | None, Parameter(negative="")] = None,
    json: Annotated[bool, Parameter(negative="")] = False,
    debug: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Serve agents on servers of their own, anew whenever the code changes; Ctrl-C ends all.

    Starts embedded NATS, PostgreSQL and Valkey in a folder, and a host. When a Python file changes, the
    host is replaced; runs go on in the new one by replay, as they would after a crash. Code that cannot
    be compiled is told in one line, and the agents go on as before. Other commands reach the agents with
    `--data`.

    Examples:
    `callboard dev shop.agents:app`;
    `callboard dev compose.demo.desk:AGENTS --data ./data --watch src`;
    `callboard dev shop.agents:app --json`

    Parameters
    ----------
    module_attr
        MODULE:ATTR as of `callboard host`.
    data
        Folder of the servers; what is in it stays.
    watch
        Folders whose Python files count; the current one when left out.
    json
        Print each thing that happens as a JSON object, for programs.
    debug
        Show the traceback of an error, and every log line.
    """
    del debug  # read by `compose.cli`, for every command alike
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
