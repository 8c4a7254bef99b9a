"""Errors of SQLite as ours. Only this module knows SQLite's errors."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from actors.kernel.workflow.errors import LedgerBrokenError, StoreBusyError


class LedgerForkError(LedgerBrokenError, sqlite3.IntegrityError):
    """A record would replace another one: the table was changed by hand."""


@contextmanager
def translated(path: Path, busy_s: float) -> Iterator[None]:
    """Raise our errors for those of SQLite.

    Raises:
        StoreBusyError: Another writer held the file for `busy_s` seconds.
        LedgerBrokenError: The file is full, read-only, or no database.
    """
    try:
        yield
    except sqlite3.IntegrityError:
        raise
    except sqlite3.OperationalError as exc:
        if "locked" in str(exc) or "busy" in str(exc):
            raise StoreBusyError(str(path), busy_s) from exc
        raise LedgerBrokenError(str(path), str(exc)) from exc
    except sqlite3.DatabaseError as exc:
        raise LedgerBrokenError(str(path), str(exc)) from exc
