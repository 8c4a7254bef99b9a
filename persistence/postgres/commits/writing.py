"""A group of commits in one round trip: appends, the fast path, or the general function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, LiteralString

from persistence.errors import DRIVER_ERRORS
from persistence.postgres.commits.fast_path import FAST_ARGUMENTS, fast_arguments
from persistence.postgres.commits.hand_over import Asked
from persistence.postgres.commits.unit import Unit
from persistence.postgres.commits.unit_columns import (
    COMMIT_ARGUMENTS,
    append_arguments,
    commit_arguments,
    talk_arguments,
    transcripts_argument,
    usage_argument,
)
from persistence.postgres.connection.link import Connection, Row
from persistence.postgres.connection.settings import StoreSettings

SQL_APPEND_ENTRIES: Final[LiteralString] = (
    "select turn, outcome, actual, detail"
    " from append_entries($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14)"
)
SQL_APPEND_ASKED: Final[LiteralString] = (
    SQL_APPEND_ENTRIES  # noqa: S608 - constants only
    + " union all select turn, outcome, actual, detail from written($15,$16,$17,$18,$19)"
)


def _call(function: str, count: int, first: int = 1) -> str:
    args = ",".join(f"${n}" for n in range(first, first + count))
    return f"select * from {function}({args})"  # noqa: S608


def _asking(statement: str, count: int) -> str:
    """Return a statement with these arguments that also calls `written`, behind its own function."""
    return f"{statement} union all {_call('written', 5, count + 1)}"


SQL_COMMIT_TURNS: Final = _call("commit_turns", COMMIT_ARGUMENTS + 6)
SQL_COMMIT_TURNS_ASKED: Final = _asking(SQL_COMMIT_TURNS, COMMIT_ARGUMENTS + 6)
SQL_COMMIT_FAST: Final = _call("commit_fast", FAST_ARGUMENTS)
SQL_COMMIT_FAST_ASKED: Final = _asking(SQL_COMMIT_FAST, FAST_ARGUMENTS)
_GENERAL: Final = "general"
"""The outcome of the one row that says: nothing was written, `commit_turns` decides."""
_NOT_THERE: Final = "CB002"
"""The SQLSTATE that says the same."""


def are_appends(units: list[Unit]) -> bool:
    """Return True if the units only add entries to the logs of runs that execute."""
    return all(unit.parts is None and unit.log_from is None for unit in units)


async def write_appends(
    connection: Connection, units: list[Unit], settings: StoreSettings, asked: Asked | None
) -> list[Row]:
    """Write a group of appends; return what its function says of it, and what is `asked` of `written`."""
    args = append_arguments(units)
    if asked is None:
        return await connection.fetch(SQL_APPEND_ENTRIES, *args, timeout=settings.answer_s)
    return await connection.fetch(SQL_APPEND_ASKED, *args, *asked, timeout=settings.answer_s)


async def write_commits(
    connection: Connection, units: list[Unit], settings: StoreSettings, asked: Asked | None
) -> tuple[list[Row], bool]:
    """Write any group; return what its function says of it, and whether that was the fast path.

    What is `asked` of `written` comes behind.
    """
    timeout, more = settings.answer_s, asked or ()
    if (args_or_none := fast_arguments(units)) is not None:
        statement = SQL_COMMIT_FAST if asked is None else SQL_COMMIT_FAST_ASKED
        rows = await _fast(connection, statement, [*args_or_none, *more], timeout)
        if rows is not None:
            return rows, True
    args = commit_arguments(units)
    mode = (settings.brokered, settings.local_delivery)
    rare = (*talk_arguments(units), transcripts_argument(units), usage_argument(units))
    statement = SQL_COMMIT_TURNS if asked is None else SQL_COMMIT_TURNS_ASKED
    found = await connection.fetch(statement, *args, *mode, *rare, *more, timeout=timeout)
    return found, False


async def _fast(
    connection: Connection, statement: str, args: Sequence[object], timeout: float
) -> list[Row] | None:
    """Return the rows of the fast path; None: it has written nothing, for something is not as usual."""
    try:
        rows: list[Row] = await connection.fetch(statement, *args, timeout=timeout)
    except DRIVER_ERRORS as exc:
        if getattr(exc, "sqlstate", None) != _NOT_THERE:
            raise
        return None
    return None if rows and rows[0]["outcome"] == _GENERAL else rows
