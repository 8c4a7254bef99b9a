"""Tables for people, JSON for programs."""

from __future__ import annotations

import json
import math
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.console import Console
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from actors.runtime.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.console import ConsoleOptions, RenderableType

    from actors.kernel.json import JsonValue

PIPE_WIDTH = 200
"""Columns when the output is no terminal: nobody wants a run id cut at 80."""
CELL = 100
"""Characters of a value in a table."""
_VISIBLE = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
}
"""Control characters as signs."""


class Terminal(Console):
    """Where people read. What agents and outsiders wrote is shown there, and cannot steer it."""

    @override
    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(text.translate(_VISIBLE), style)

    @override
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would end the program, with 1


def console(*, stderr: bool = False) -> Console:
    """Return where text for people goes."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPE_WIDTH
    return Terminal(stderr=stderr, width=width, highlight=False, emoji=False, soft_wrap=False)


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
        table.add_row(*map(_cell, row))
    console().print(table)


def _cell(text: str) -> Text:
    # Now, not when it is printed: a column is as wide as what is shown.
    return Text(text.translate(_VISIBLE))


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Print names and values, one pair a line; empty values are left out."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        if value:
            table.add_row(name, _cell(value))
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


@contextmanager
def working(what: str) -> Iterator[Callable[[int], None]]:
    """Show on a terminal's stderr that something goes on; call what is yielded with a number so far."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with console(stderr=True).status(f"{what}…") as status:
        yield lambda number: status.update(f"{what}: {number}")


def iso(at: datetime | None) -> str | None:
    """Return an instant as ISO 8601."""
    return at.isoformat() if at is not None else None


def short(value: JsonValue) -> str:
    """Return a value as one line of at most 100 characters; nothing for None."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.split())
    return text if len(text) <= CELL else text[: CELL - 1] + "…"


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
