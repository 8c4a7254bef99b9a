"""Times as options take them: spans such as 90s, 15m, 12h and 30d, and instants."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Final

from actors.errors import ContractError
from actors.runtime.clock import SystemClock

_SPAN: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(s|m|h|d)")
SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
"""Of the units in which options tell times and rates."""
MOST_S: Final = 100 * 365 * 86_400


def span_s(text: str) -> float:
    """Return a span such as ``90s``, ``15m``, ``12h`` or ``30d`` in seconds.

    Raises:
        ContractError: It is none, or longer than a hundred years.
    """
    found = _SPAN.fullmatch(text.strip())
    seconds = float(found[1]) * SECONDS[found[2]] if found is not None else math.inf
    if seconds > MOST_S:
        raise ContractError(f"{text!r} is no span: give a number with s, m, h or d, such as 30d")
    return seconds


def instant(option: str, text: str | None) -> datetime | None:
    """Return an instant that was given as such, or as a span back from now; None for none.

    Raises:
        ContractError: It is neither.
    """
    if text is None:
        return None
    try:
        if _SPAN.fullmatch(text.strip()):
            return SystemClock().now() - timedelta(seconds=span_s(text))
        at = datetime.fromisoformat(text)
        return at.astimezone(UTC) if at.tzinfo is not None else at.replace(tzinfo=UTC)
    except (ContractError, ValueError, OverflowError):
        msg = f"{option} {text!r}: give an instant such as 2026-01-31T08:00, or a span such as 2h"
        raise ContractError(msg) from None
