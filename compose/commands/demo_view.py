"""What a person sees of the demo."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from rich.table import Table
from rich.text import Text

from compose.commands.output import console

if TYPE_CHECKING:
    from compose.demo.director import Outcome
    from compose.demo.proof import StepProof

BAR: Final = 30
YES, NO = "[green]✓[/]", "[red]✗[/]"


class Silence:
    """Says nothing."""

    def tell(self, text: str) -> None:
        """See `Audience.tell`."""

    def progress(self, done: int, total: int, what: str) -> None:
        """See `Audience.progress`."""


class Screen:
    """Tells the story line by line; on a terminal with a progress bar below."""

    def __init__(self) -> None:
        self._console = console()
        self._began = time.monotonic()
        self._shown = (-1, "")

    def tell(self, text: str) -> None:
        """See `Audience.tell`."""
        self._clear()
        seconds = time.monotonic() - self._began
        style = "bold red" if text.startswith("SIGKILL") else ""
        self._console.print(Text(f"{seconds:5.1f} s  ", "dim") + Text(text, style))

    def progress(self, done: int, total: int, what: str) -> None:
        """See `Audience.progress`."""
        if not self._console.is_terminal or (done, what) == self._shown:
            return
        self._shown = (done, what)
        filled = BAR * done // total
        bar = "█" * filled + "·" * (BAR - filled)
        self._console.file.write(f"\r\033[K         {bar} {done}/{total} steps  {what}")
        self._console.file.flush()
        if done == total:
            self._clear()

    def _clear(self) -> None:
        if self._console.is_terminal:
            self._console.file.write("\r\033[K")


def show_proof(outcome: Outcome) -> None:
    """Print the table, the verdict, and where the report is."""
    out, proof = console(), outcome.proof
    table = Table(title="\nWhat the ledger outside the runtime saw", title_justify="left", box=None)
    for column in ("position", "step", "document", "executed", "by process", "second host", ""):
        table.add_column(column, justify="right" if column == "executed" else "left")
    for step in proof.steps:
        table.add_row(*_row(step))
    out.print(table)
    if any(step.second_host == "repeated" for step in proof.steps):
        out.print(" * it was under way at the kill and had no result", style="dim")
    replayed = sum(step.second_host == "replayed" for step in proof.steps)
    at_most_once = sum(step.mode == "at_most_once" for step in proof.steps)
    out.print()
    for holds, claim in (
        (proof.was_killed, f"host 1 (process {outcome.first_pid}) ended by SIGKILL in mid-run"),
        (
            proof.was_recovered,
            (
                f"host 2 (process {outcome.second_pid}) took the run over and went on after "
                f"{outcome.took_over_after_s:g} s"
            ),
        ),
        (
            all(step.holds for step in proof.steps),
            f"every recorded effect executed once: {replayed} were replayed and not executed again",
        ),
        (proof.published_once, f"each of {at_most_once} at-most-once effects happened once"),
        (proof.is_complete, "the run completed, with one result per step"),
    ):
        out.print(f" {YES if holds else NO} {claim}")
    out.print()
    out.print(Text(f"report  {outcome.report}"), soft_wrap=True)
    out.print(Text(f"ledger  {outcome.ledger}"), soft_wrap=True)
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
