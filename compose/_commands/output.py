"""The output of commands: JSON for programs, texts of values for people, and exit codes.

The module `terminal` prints tables and lines for people.
"""

from __future__ import annotations

import json
import math
import sys
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, Final

from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import AgentId, TopicId
from actors._runtime.loop.clock import SystemClock
from actors.errors import ContractError

CELL = 100
"""Characters of a value in a table."""
_STEPS: Final = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


class Exit(IntEnum):
    """Exit codes of commands. The program's help documents them."""

    OK = 0
    FAILED = 1
    """The command was executed and its answer is no: a run failed, `doctor` found a problem, a proof does
    not hold. Also the code of an unexpected error."""
    USAGE = 2
    """The command cannot be executed as it was given. The message has the remedy."""
    UNREACHABLE = 3
    """The database or the broker does not answer."""
    NOT_FOUND = 4
    """The run, dead letter or other object does not exist."""
    INTERRUPTED = 130


class NoDataError(ContractError):
    """A folder has no Callboard data, or its servers do not run."""


def print_json(value: object, *, compact: bool = False) -> None:
    """Print one JSON value, indented or, if `compact`, on one line."""
    text = json.dumps(value, default=_plain, indent=None if compact else 2, ensure_ascii=False)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def ago(at: datetime | None) -> str:
    """Return the time since `at` as `5 s`, `3 min`, `2 h` or `4 d`, or `in 5 s` for the future."""
    if at is None:
        return ""
    seconds = (SystemClock().now() - at.astimezone(UTC)).total_seconds()
    size = abs(seconds)
    steps = ((100, "s", 1), (5400, "min", 60), (129_600, "h", 3600), (math.inf, "d", 86_400))
    unit, step = next((unit, step) for limit, unit, step in steps if size < limit)
    text = f"{size / step:.0f} {unit}"
    return f"in {text}" if seconds < -1 else text


def between(begin: datetime | None, end: datetime | None) -> float:
    """Return the seconds from `begin` to `end`, or to now; never below 0."""
    if begin is None:
        return 0.0
    return round(max(0.0, ((end or SystemClock().now()) - begin).total_seconds()), 3)


def seconds_text(seconds: float) -> str:
    """Return a duration as ``12 ms``, ``3.4 s``, ``5 min 10 s``, ``2 h 5 min`` or ``3 d 4 h``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{seconds:.1f} s"
    whole = int(seconds)
    size, unit, lower, lower_unit = next(step for step in _STEPS if whole >= step[0])
    rest = whole % size // lower
    return f"{whole // size} {unit}" + (f" {rest} {lower_unit}" if rest else "")


def pick(row: object, columns_text: str) -> dict[str, Any]:
    """Return attributes of a row as JSON data. `columns_text` lists them in order, as NAME or KEY=NAME.

    Instants are ISO 8601 texts. Ids of agents and topics are texts. Messages and wake conditions have their
    stored form.
    """
    pairs = (name.partition("=") for name in columns_text.split())
    return {key: _data(getattr(row, name or key)) for key, _, name in pairs}


def _data(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, AgentId | TopicId):
        return str(value)
    return value.to_json() if hasattr(value, "to_json") else value


def short(value: JsonValue) -> str:
    """Return a value as one line of at most 100 characters. None is the empty text."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = " ".join(text.split())
    return text if len(text) <= CELL else text[: CELL - 1] + "…"


def _plain(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
