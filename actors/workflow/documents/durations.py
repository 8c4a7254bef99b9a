"""Durations in flow documents: seconds, or texts such as ``90s``, ``15m``, ``2h30m`` and ``3d``."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, WithJsonSchema

LONGEST_S: Final = 100 * 365 * 86400.0
_UNITS: Final = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|d|h|m|s)")
_TEXT: Final = r"^(\d+(\.\d+)?(ms|d|h|m|s))+$"


def seconds_in(duration: Any) -> float:
    """Return a duration in seconds.

    Raises:
        ValueError: The value is not a duration, or not between 0 and 100 years.
    """
    if isinstance(duration, str) and re.fullmatch(_TEXT, duration):
        seconds = sum(float(count) * _UNITS[unit] for count, unit in _PART.findall(duration))
    elif isinstance(duration, int | float) and not isinstance(duration, bool):
        seconds = float(duration)
    else:
        raise ValueError(f"{duration!r} is no duration; write seconds, or 90s, 15m, 2h30m or 3d")
    if not 0 <= seconds <= LONGEST_S:
        raise ValueError(f"{duration!r} is not between 0 and 100 years")
    return seconds


Duration = Annotated[
    float,
    BeforeValidator(seconds_in),
    WithJsonSchema(
        {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": _TEXT}]}
    ),
]
