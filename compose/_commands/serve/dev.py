"""`callboard dev`: embedded servers and a host that is replaced when the code changes."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Self

from cyclopts import Parameter
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from actors.errors import ContractError
from compose._assembly.settings import read_settings
from compose._commands.options import DebugFlag, Flag, ServedArg
from compose._commands.output import Exit, ago
from compose._commands.runs.list import status_text
from compose._commands.terminal import console
from compose._host.loader import check_spec
from compose._host.logs import visible
from compose._host.process import Stop
from compose._tools.reload import Snapshot, develop
from compose._tools.statuses import colour_of

DATA = Path(".callboard")

LINES_KEPT: Final = 12
RUNS_SHOWN: Final = 10


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
    del debug  # `compose._cli` reads this option for every command
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
        self._statuses: dict[str, str] = {}

    def show_event(self, event: str, text: str, facts: Mapping[str, object] | None = None) -> None:
        """Print the event as one line."""
        line = json.dumps({"event": event, "text": text, **(facts or {})}, default=str)
        sys.stdout.write(f"{line if self._as_json else visible(text)}\n")
        sys.stdout.flush()

    def show(self, snapshot: Snapshot) -> None:
        """Print each run whose status has changed since the last call, oldest first."""
        previous, self._statuses = (
            self._statuses,
            {row.run_id: status_text(row) for row in snapshot.runs},
        )
        for row in reversed(snapshot.runs):
            status = status_text(row)
            if previous.get(row.run_id) != status:
                facts = {"run": row.run_id, "agent": str(row.agent_id), "status": status}
                self.show_event("run", f"run {row.run_id}  {row.agent_id}  {status}", facts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        """Do nothing: there is no state to restore."""


class Screen:
    """A view on a terminal: totals, the newest runs and the last 12 lines."""

    def __init__(self) -> None:
        self._lines: deque[Text] = deque(maxlen=LINES_KEPT)
        self._snapshot: Snapshot | None = None
        self._live = Live(console=console(), refresh_per_second=4, transient=False)

    def show_event(self, event: str, text: str, facts: Mapping[str, object] | None = None) -> None:
        """Add the event to the lines at the end of the screen."""
        del facts
        self._lines.append(Text(text, "red" if event in ("error", "failed") else ""))
        self._live.update(self._render())

    def show(self, snapshot: Snapshot) -> None:
        """Draw the totals and the newest runs."""
        self._snapshot = snapshot
        self._live.update(self._render())

    def _render(self) -> Group:
        parts: list[Table | Text] = []
        if self._snapshot is not None:
            parts += [_totals(self._snapshot), _runs(self._snapshot), Text()]
        return Group(*parts, *self._lines)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._live.stop()


def _totals(snapshot: Snapshot) -> Text:
    totals, parked_count = snapshot.totals, sum(snapshot.totals.parked.values())
    open_runs = ", ".join(f"{n} {status.lower()}" for status, n in sorted(totals.runs.items()) if n)
    facts = f"hosts {totals.hosts}", f"open runs: {open_runs or 'none'}"
    rates = f"{snapshot.per_second:.1f} runs/s", f"messages {sum(totals.pending.values())}"
    text = Text("  ·  ".join((*facts, *rates)), "bold")
    if parked_count:
        text += Text(f"  ·  {parked_count} parked: callboard runs list --parked", "yellow")
    if totals.dead_letters:
        text += Text(f"  ·  {totals.dead_letters} dead letters: callboard dlq list", "red")
    return text


def _runs(snapshot: Snapshot) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("run", "agent", "status", "changed"):
        table.add_column(name, no_wrap=True)
    for row in snapshot.runs[:RUNS_SHOWN]:
        status = status_text(row)
        agent = Text(str(row.agent_id))
        since = f"{ago(row.updated_at)} ago" if row.updated_at is not None else ""
        table.add_row(row.run_id, agent, Text(status, colour_of(status)), since)
    return table
