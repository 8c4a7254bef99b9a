"""Reducers by name. A reducer merges the values that several branches changed at a join."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

from actors.workflow.machine.spec import Reducer

ReducerName: TypeAlias = Literal["add", "append", "merge", "max", "min", "last"]


def add(before: Any, values: list[Any]) -> Any:
    """Return the number plus the changes of all branches."""
    start = before or 0
    return start + sum(value - start for value in values)


def append(before: Any, values: list[Any]) -> list[Any]:
    """Return the list plus the items that each branch appended."""
    start = list(before or [])
    return start + [one for value in values for one in value[len(start) :]]


def merge(before: Any, values: list[Any]) -> dict[str, Any]:
    """Return an object with the names of all branches. Of equal names the value of the last branch is taken."""
    return dict(before or {}) | {name: value for one in values for name, value in one.items()}


def largest(before: Any, values: list[Any]) -> Any:
    """Return the largest value."""
    return max(values if before is None else [before, *values])


def smallest(before: Any, values: list[Any]) -> Any:
    """Return the smallest value."""
    return min(values if before is None else [before, *values])


def last(before: Any, values: list[Any]) -> Any:
    """Return the value of the last branch."""
    del before
    return values[-1]


REDUCERS: Final[Mapping[ReducerName, Reducer]] = {
    "add": add,
    "append": append,
    "merge": merge,
    "max": largest,
    "min": smallest,
    "last": last,
}
