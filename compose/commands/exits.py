"""What the exit codes of `callboard` mean."""

from __future__ import annotations

from enum import IntEnum

from actors.errors import ContractError


class Exit(IntEnum):
    """Exit codes; documented in the CLI's help."""

    OK = 0
    FAILED = 1
    """It was done and the answer is no: a run failed, `doctor` found something, a proof does not hold.
    Or an error that nobody foresaw."""
    USAGE = 2
    """The command cannot be carried out as it was given; the message says what to write instead."""
    UNREACHABLE = 3
    """No answer from the database or the broker."""
    NOT_FOUND = 4
    """There is no such run, dead letter or data."""
    INTERRUPTED = 130


class NoDataError(ContractError):
    """A folder that should hold data does not."""
