"""Input and output files of commands. An output file is complete or does not exist, and has the mode 0600."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from rich.progress import Progress

from actors.errors import ContractError
from compose._commands.terminal import console


@contextmanager
def writing(output: Path | None) -> Iterator[TextIO]:
    """Yield standard output, or a file that is renamed to `output` after the last write.

    A lone surrogate, which UTF-8 cannot encode, is written as its JSON escape.

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
        ContractError: The file cannot be read, or is not text in UTF-8.
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
        raise ContractError(f"{file} is not text in UTF-8, so it is not an export") from exc


def _privately(path: str, flags: int) -> int:
    # Exported content of the database must not be readable by other users of the machine.
    return os.open(path, flags, 0o600)


@contextmanager
def progress(output: Path | None, what: str) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes the count so far. A terminal shows it if the output is a file."""
    out = console(stderr=True)
    if output is None or not out.is_terminal:
        yield lambda _: None
        return
    with Progress(console=out, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda count: bar.update(task, completed=count)
