"""Output for people: lines and tables. Its library is imported by commands that have something to show."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from compose.host.visible import visible

PIPE_WIDTH = 200
"""Columns when the output is no terminal: a run id must not be cut at 80."""


class Terminal(Console):
    """A terminal. Text that agents and external clients wrote is shown there, and cannot steer it."""

    @override
    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(visible(text), style)

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


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str) -> None:
    """Print rows under headings, or `empty` when there are none; None is an empty cell."""
    if not rows:
        say(empty)
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, no_wrap=index == 0, overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row))
    console().print(table)


def _cell(value: object) -> Text:
    # Now, not when it is printed: a column is as wide as what is shown.
    return Text(visible("" if value is None else str(value)))


def print_facts(facts: Sequence[tuple[str, object]]) -> None:
    """Print names and values, one pair a line; None and empty texts are left out."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        if value not in (None, ""):
            table.add_row(name, _cell(value))
    console().print(table)


@contextmanager
def working(what: str) -> Iterator[Callable[[int], None]]:
    """Show on a terminal's stderr that something goes on; call what is yielded with a number so far."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with console(stderr=True).status(f"{what}…") as status:
        yield lambda number: status.update(f"{what}: {number}")
