"""`callboard demo`: a run that continues after its host is killed, with a proof."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.table import Table
from rich.text import Text

from compose._commands.options import DebugFlag, Flag
from compose._commands.output import Exit, print_json
from compose._commands.terminal import console
from compose.demo.desk import documents_in, write_default_documents
from compose.demo.director import Director, Outcome, Stage, StepProof

BAR: Final = 30
YES, NO = "[green]✓[/]", "[red]✗[/]"


async def demo(
    folder: Path | None = None,
    /,
    *,
    data: Path | None = None,
    json: Flag = False,
    debug: DebugFlag = False,
) -> int:
    """Show that a run survives kill -9, with a proof.

    The command starts embedded NATS, PostgreSQL and Valkey, and a host process. An external client publishes a
    job as plain JSON. The host's agent reads text files, extracts their most central sentences (TextRank)
    and writes a report. In the middle of the run the command kills the host with SIGKILL, and starts another
    host. A ledger outside the runtime counts every execution of a step.

    Examples:
    `callboard demo`;
    `callboard demo ./notes`;
    `callboard demo --json`

    Parameters
    ----------
    folder
        Folder of text files (.txt, .md, .rst). Default: chapters of Python's documentation.
    data
        Folder of the report, the ledger and the database. Default: a temporary folder.
    json
        Print only the proof, as JSON.
    """
    del debug  # `compose._cli` reads this option for every command
    with _stage(folder, data) as stage:
        outcome = await Director(stage, Silence() if json else Narrator()).show()
    if json:
        print_json(_to_json(outcome))
    else:
        show_proof(outcome)
    return Exit.OK if outcome.proof.holds else Exit.FAILED


@contextmanager
def _stage(folder: Path | None, data: Path | None) -> Iterator[Stage]:
    """Yield the folder of this demo. The database of a temporary folder is removed at the end."""
    documents = documents_in(folder.absolute()) if folder is not None else None
    if data is None:
        stage_folder = Path(tempfile.mkdtemp(prefix="callboard-demo-"))
        # PostgreSQL refuses to run as root, so root starts it as another user, who must reach the folder.
        stage_folder.chmod(0o711)
    else:
        stage_folder = data.absolute()
        stage_folder.mkdir(parents=True, exist_ok=True)
    stage = Stage(stage_folder, documents or write_default_documents(stage_folder / "documents"))
    try:
        yield stage
    finally:
        if data is None:
            shutil.rmtree(stage.server_folder, ignore_errors=True)


def _to_json(outcome: Outcome) -> dict[str, object]:
    return {
        "holds": outcome.proof.holds,
        "run": outcome.run_id,
        "hosts": [outcome.first_pid, outcome.second_pid],
        "killed": outcome.first_pid,
        "took_over_after_s": outcome.took_over_after_s,
        "seconds": outcome.seconds,
        "report": str(outcome.stage.report),
        "ledger": str(outcome.stage.ledger),
        "proof": outcome.proof.to_json(),
    }


class Silence:
    """An audience that prints nothing."""

    def tell(self, text: str) -> None:
        """Print nothing."""

    def progress(self, done: int, total: int, what: str) -> None:
        """Print nothing."""


class Narrator:
    """An audience that prints each event as a line, and on a terminal a progress bar below the lines."""

    def __init__(self) -> None:
        self._console = console()
        self._start_s = time.monotonic()
        self._last_progress = (-1, "")

    def tell(self, text: str) -> None:
        """Print an event with the seconds since the start of the demo."""
        self._clear()
        seconds = time.monotonic() - self._start_s
        style = "bold red" if text.startswith("SIGKILL") else ""
        self._console.print(Text(f"{seconds:5.1f} s  ", "dim") + Text(text, style))

    def progress(self, done: int, total: int, what: str) -> None:
        """Draw the progress bar, on a terminal only: `done` of `total` steps, and the current step."""
        if not self._console.is_terminal or (done, what) == self._last_progress:
            return
        self._last_progress = (done, what)
        filled_width = BAR * done // total
        bar = "█" * filled_width + "·" * (BAR - filled_width)
        self._console.file.write(f"\r\033[K         {bar} {done}/{total} steps  {what}")
        self._console.file.flush()
        if done == total:
            self._clear()

    def _clear(self) -> None:
        if self._console.is_terminal:
            self._console.file.write("\r\033[K")


def show_proof(outcome: Outcome) -> None:
    """Print the table of steps, the claims, the paths of the report and the ledger, and the verdict."""
    out, proof = console(), outcome.proof
    table = Table(title="\nWhat the ledger outside the runtime saw", title_justify="left", box=None)
    for column in ("position", "step", "document", "executed", "by process", "second host", ""):
        table.add_column(column, justify="right" if column == "executed" else "left")
    for step in proof.steps:
        table.add_row(*_row(step))
    out.print(table)
    if any(step.second_host == "repeated" for step in proof.steps):
        out.print(" * the host was killed during this step, which had no result", style="dim")
    replayed_count = sum(step.second_host == "replayed" for step in proof.steps)
    at_most_once_count = sum(step.mode == "at_most_once" for step in proof.steps)
    out.print()
    first_pid, second_pid = outcome.first_pid, outcome.second_pid
    delay = f"{outcome.took_over_after_s:g} s"
    executed_once = f"every recorded effect executed once: {replayed_count} were replayed"
    for holds, claim in (
        (proof.was_killed, f"host 1 (process {first_pid}) ended by SIGKILL in mid-run"),
        (
            proof.was_recovered,
            f"host 2 (process {second_pid}) took the run over and continued after {delay}",
        ),
        (all(step.holds for step in proof.steps), f"{executed_once} and not executed again"),
        (proof.published_once, f"each of {at_most_once_count} at-most-once effects happened once"),
        (proof.is_complete, "the run completed, with one result per step"),
    ):
        out.print(f" {YES if holds else NO} {claim}")
    out.print()
    out.print(Text(f"report  {outcome.stage.report}"), soft_wrap=True)
    out.print(Text(f"ledger  {outcome.stage.ledger}"), soft_wrap=True)
    verdict = "the proof holds" if proof.holds else "THE PROOF DOES NOT HOLD"
    out.print(f"\n{verdict}; {outcome.seconds:g} s in all", style="bold")


def _row(step: StepProof) -> tuple[str, ...]:
    pids = ", ".join(dict.fromkeys(map(str, step.pids)))
    note = {
        "replayed": "[cyan]replayed[/]",
        "executed": "executed",
        "repeated": "[yellow]repeated *[/]",
    }[step.second_host]
    mark = YES if step.holds else NO
    return step.position, step.name, step.document, str(step.executed), pids, note, mark
