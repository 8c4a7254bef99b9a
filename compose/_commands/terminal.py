"""Output for people: lines and tables. Only commands that print for people import this module and `rich`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from typing_extensions import override

from compose._host.logs import visible

PIPE_WIDTH = 200
"""Width in columns if the output is not a terminal. At 80 columns a run id would be cut."""


class Terminal(Console):
    """A console that shows control characters as signs.

    So text of agents and external clients cannot control the terminal.
    """

    @override
    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(visible(text), style)

    @override
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would end the program with the exit code 1


def console(*, stderr: bool = False) -> Console:
    """Return a console for text for people, on standard output or standard error."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPE_WIDTH
    return Terminal(stderr=stderr, width=width, highlight=False, emoji=False, soft_wrap=False)


def say(text: str) -> None:
    """Print one line for people."""
    console().print(Text(text), soft_wrap=True)


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, empty_text: str
) -> None:
    """Print rows under headings, or the text `empty_text` if there are no rows. None is an empty cell."""
    if not rows:
        say(empty_text)
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, no_wrap=index == 0, overflow="fold")
    for row in rows:
        table.add_row(*map(_cell, row))
    console().print(table)


def _cell(value: object) -> Text:
    # Control characters are replaced here and not at printing, because a column is as wide as its final text.
    return Text(visible("" if value is None else str(value)))


def print_facts(facts: Sequence[tuple[str, object]]) -> None:
    """Print names and values, one pair on a line, without pairs whose value is None or empty."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        if value not in (None, ""):
            table.add_row(name, _cell(value))
    console().print(table)


@contextmanager
def working(what: str) -> Iterator[Callable[[int], None]]:
    """Show progress on standard error if it is a terminal. Yield a function that takes the count so far."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with console(stderr=True).status(f"{what}…") as status:
        yield lambda number: status.update(f"{what}: {number}")
