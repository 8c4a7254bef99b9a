"""Files of commands: read, or written whole or not at all, readable by their owner alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from rich.progress import Progress

from actors.errors import ContractError
from compose.commands.terminal import console


@contextmanager
def writing(output: Path | None) -> Iterator[TextIO]:
    """Yield standard output, or a file that gets its name when all is written.

    Half a surrogate pair, which UTF-8 cannot hold, is written as JSON escapes it.

    Raises:
        ContractError: The file cannot be written.
    """
    if output is None:
        yield sys.stdout
        return
    part = output.with_name(f"{output.name}.part")
    try:
        with open(
            part, "w", encoding="utf-8", errors="backslashreplace", opener=_privately
        ) as file:
            yield file
        part.replace(output)
    except OSError as exc:
        problem = exc.strerror or exc
        raise ContractError(f"cannot write {output}: {problem}; name another file") from exc
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def reading(file: str) -> Iterator[TextIO]:
    """Yield standard input for a dash, else the file.

    Raises:
        ContractError: The file cannot be read, or is no text.
    """
    if file == "-":
        yield sys.stdin
        return
    try:
        with Path(file).open(encoding="utf-8") as lines:
            yield lines
    except OSError as exc:
        raise ContractError(f"cannot read {file}: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        raise ContractError(f"{file} is no text in UTF-8, so no export") from exc


def _privately(path: str, flags: int) -> int:
    # What the database keeps from others does not lie open beside it.
    return os.open(path, flags, 0o600)


@contextmanager
def progress(output: Path | None, what: str) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes how far the work is; shown on a terminal if the output is a file."""
    out = console(stderr=True)
    if output is None or not out.is_terminal:
        yield lambda _: None
        return
    with Progress(console=out, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda count: bar.update(task, completed=count)
