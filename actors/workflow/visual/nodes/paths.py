"""Paths of variables in drawings: names with dots, and indexes of items."""

from __future__ import annotations

import re
from typing import Any, Final

from actors.workflow.machine.variables import with_path

_STEPS: Final = re.compile(r"[^.\[\]]+")


def look_up(value: Any, path: str, default: Any = None) -> Any:
    """Return the value at a path such as ``a.b`` or ``a[0].b``. If there is none, return `default`."""
    steps = _STEPS.findall(path)
    for step in steps:
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            return default
    return value if steps else default


def put(variables: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return objects with a value at a path.

    Values on the path that are not objects are replaced by objects.
    """
    steps = [one for one in path.split(".") if one]
    below: Any = variables
    for place, step in enumerate(steps[:-1]):
        below = below.get(step)
        if not isinstance(below, dict):
            variables = with_path(variables, steps[: place + 1], {})
            below = {}
    return with_path(variables, steps, value)
