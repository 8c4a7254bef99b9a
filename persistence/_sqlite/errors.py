"""Errors of SQLite as ours. Only this module knows SQLite's errors."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from actors._kernel.workflow.errors import LedgerBrokenError, StoreBusyError


class LedgerForkError(LedgerBrokenError, sqlite3.IntegrityError):
    """A record would replace another one: the table was changed by hand."""


class translated:  # noqa: N801 - used as a function; a generator costs as much as a statement
    """A context that raises our errors for those of SQLite.

    Raises:
        StoreBusyError: Another writer held the file for `busy_s` seconds.
        LedgerBrokenError: The file is full, read-only, or no database.
    """

    __slots__ = ("_busy_s", "_path")

    def __init__(self, path: Path, busy_s: float) -> None:
        self._path, self._busy_s = path, busy_s

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Translate the error."""
        if not isinstance(error, sqlite3.DatabaseError) or isinstance(
            error, sqlite3.IntegrityError
        ):
            return
        text = str(error)
        if isinstance(error, sqlite3.OperationalError) and ("locked" in text or "busy" in text):
            raise StoreBusyError(str(self._path), self._busy_s) from error
        raise LedgerBrokenError(str(self._path), text) from error
