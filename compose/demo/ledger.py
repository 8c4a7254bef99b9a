"""The ledger: a file with a line for every execution of a step on any host.

The runtime does not use this file, so it is independent evidence about the runtime.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

from actors.runtime import idempotency_key

P = ParamSpec("P")
T = TypeVar("T")


class LedgerEntry(NamedTuple):
    """A line of the ledger, which records one call of a step's function."""

    effect: str
    """The effect's id, which is the same for every execution of one step of one run."""
    name: str
    pid: int


def noted(ledger: str, step: Callable[P, T]) -> Callable[P, T]:
    """Return a function that appends a line to the ledger, and then calls `step`."""

    @functools.wraps(step)
    def execute(*args: P.args, **kwargs: P.kwargs) -> T:
        line = LedgerEntry(idempotency_key(), step.__name__, os.getpid())
        append_line(ledger, json.dumps(line._asdict()))
        return step(*args, **kwargs)

    return execute


def executions(ledger: Path) -> list[LedgerEntry]:
    """Return the lines of the ledger so far, in order."""
    return [LedgerEntry(**json.loads(line)) for line in lines_of(str(ledger))]


def lines_of(path: str) -> list[str]:
    """Return the complete lines of a file to which other processes append; empty if there is no file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return text.rpartition("\n")[0].splitlines()


def append_line(path: str, line: str) -> None:
    """Append one line by one write, so that a killed process leaves a whole line or none."""
    data = (line.replace("\n", " ") + "\n").encode()
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, data)
    finally:
        os.close(file)
