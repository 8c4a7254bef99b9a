"""Tables for people, JSON for programs."""

from __future__ import annotations

import json
import math
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from actors.runtime.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Sequence

PIPE_WIDTH = 200
"""Columns when the output is no terminal: nobody wants a run id cut at 80."""


def console(*, stderr: bool = False) -> Console:
    """Return where text for people goes."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPE_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=False)


def say(text: str) -> None:
    """Print one line for people."""
    console().print(Text(text), soft_wrap=True)


def print_json(value: object, *, compact: bool = False) -> None:
    """Print one JSON value; compact on one line."""
    text = json.dumps(value, default=_plain, indent=None if compact else 2, ensure_ascii=False)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str) -> None:
    """Print rows under headings, or `empty` when there are none."""
    if not rows:
        say(empty)
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, no_wrap=index == 0, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console().print(table)


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print names and values, one pair a line; empty values are left out."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        if value:
            table.add_row(name, Text(value))
    console().print(table)


def ago(at: datetime | None) -> str:
    """Return how long ago, as `5 s`, `3 min`, `2 h` or `4 d`; the future has a `in` before it."""
    if at is None:
        return ""
    seconds = (SystemClock().now() - at.astimezone(UTC)).total_seconds()
    size = abs(seconds)
    steps = ((100, "s", 1), (5400, "min", 60), (129_600, "h", 3600), (math.inf, "d", 86_400))
    unit, step = next((unit, step) for limit, unit, step in steps if size < limit)
    text = f"{size / step:.0f} {unit}"
    return f"in {text}" if seconds < -1 else text


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
