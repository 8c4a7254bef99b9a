"""The outside witness: a file in which every execution of a step, on any host, leaves a line.

The runtime knows nothing of this file, so it can bear witness against it.
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
    """A line of the ledger: a step's function was called."""

    effect: str
    """The effect's id: the same whenever the same step of the same run is executed."""
    name: str
    pid: int


def noted(ledger: str, step: Callable[P, T]) -> Callable[P, T]:
    """Return `step` as a function that first leaves a line in the ledger."""

    @functools.wraps(step)
    def execute(*args: P.args, **kwargs: P.kwargs) -> T:
        line = LedgerEntry(idempotency_key(), step.__name__, os.getpid())
        append_line(ledger, json.dumps(line._asdict()))
        return step(*args, **kwargs)

    return execute


def executions(ledger: Path) -> list[LedgerEntry]:
    """Return what the ledger says so far, in order."""
    return [LedgerEntry(**json.loads(line)) for line in lines_of(str(ledger))]


def lines_of(path: str) -> list[str]:
    """Return the whole lines of a file that others append to; none when there is no file."""
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
