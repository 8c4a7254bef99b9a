"""What a person, or a program, sees of `callboard dev`: a view that keeps itself current, or lines."""

from __future__ import annotations

import json
import sys
from collections import deque
from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from compose.commands.output import ago, console

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from actors.kernel.runtime.commit import RunRow
    from compose.development import Snapshot

LINES_KEPT: Final = 12
RUNS_SHOWN: Final = 10
STYLES: Final[Mapping[str, str]] = {
    "COMPLETED": "green", "FAILED": "red", "CANCELLED": "yellow", "RUNNING": "cyan",
}  # fmt: skip


class Lines:
    """One line for each thing that happens; as JSON for programs. Runs are told when they change."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._known: dict[str, str] = {}

    def happened(self, event: str, text: str, facts: Mapping[str, object] | None = None) -> None:
        """See `compose.development.View.happened`."""
        line = json.dumps({"event": event, "text": text, **(facts or {})}, default=str)
        sys.stdout.write(f"{line if self._as_json else text}\n")
        sys.stdout.flush()

    def show(self, now: Snapshot) -> None:
        """See `compose.development.View.show`."""
        known, self._known = self._known, {row.run_id: _status(row) for row in now.runs}
        for row in reversed(now.runs):
            status = _status(row)
            if known.get(row.run_id) != status:
                facts = {"run": row.run_id, "agent": str(row.agent_id), "status": status}
                self.happened("run", f"run {row.run_id}  {row.agent_id}  {status}", facts)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        """Nothing is to be put back."""


class Screen:
    """A view on a terminal: totals, the newest runs, the last lines."""

    def __init__(self) -> None:
        self._lines: deque[Text] = deque(maxlen=LINES_KEPT)
        self._now: Snapshot | None = None
        self._live = Live(console=console(), refresh_per_second=4, transient=False)

    def happened(self, event: str, text: str, facts: Mapping[str, object] | None = None) -> None:
        """See `compose.development.View.happened`."""
        del facts
        self._lines.append(Text(text, "red" if event in ("error", "failed") else ""))
        self._live.update(self._drawn())

    def show(self, now: Snapshot) -> None:
        """See `compose.development.View.show`."""
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
    opened = ", ".join(f"{n} {status.lower()}" for status, n in sorted(now.open.items()) if n)
    facts = [
        f"hosts {now.hosts}", f"open runs: {opened or 'none'}", f"{now.per_second:.1f} runs/s",
        f"mail {now.pending}",
    ]  # fmt: skip
    text = Text("  ·  ".join(facts), "bold")
    if now.parked:
        text += Text(f"  ·  {now.parked} parked: callboard runs list --parked", "yellow")
    if now.dead_letters:
        text += Text(f"  ·  {now.dead_letters} dead letters: callboard dlq list", "red")
    return text


def _runs(now: Snapshot) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("run", "agent", "status", "changed"):
        table.add_column(name, no_wrap=True)
    for row in now.runs[:RUNS_SHOWN]:
        status = _status(row)
        agent = Text(str(row.agent_id))
        since = f"{ago(row.updated_at)} ago" if row.updated_at is not None else ""
        table.add_row(row.run_id, agent, Text(status, STYLES.get(status, "")), since)
    return table


def _status(row: RunRow) -> str:
    return f"PARKED ({row.parked})" if row.parked else row.status.value
