"""What the exit codes of `callboard` mean."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes; documented in the CLI's help."""

    OK = 0
    FAILED = 1
    """It was done and the answer is no: a run failed, `doctor` found something, a proof does not hold."""
    USAGE = 2
    """The command cannot be carried out as it was given; the message says what to write instead."""
    UNREACHABLE = 3
    """No answer from the database."""
    NOT_FOUND = 4
    """There is no such run, dead letter or data."""
    INTERRUPTED = 130
