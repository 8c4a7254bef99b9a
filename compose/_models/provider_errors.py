"""Conversion of pydantic-ai's errors into `ModelError`, and the pause that a provider asks for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import inf, isfinite
from typing import Final

from pydantic_ai import exceptions as theirs

from actors._kernel.json_data import clean_text
from actors._runtime.loop.clock import SystemClock
from actors.errors import TRANSIENT_MODEL_ERRORS, ModelError, ModelErrorKind

_MAX_PROBLEM: Final = 1_000
"""Maximum number of characters of a provider's error text that are kept."""

_KINDS: Final[tuple[tuple[type[Exception], ModelErrorKind], ...]] = (
    (theirs.ModelRateLimitError, "rate_limited"),
    (theirs.ModelQuotaExceededError, "quota"),
    (theirs.ModelUnavailableError, "overloaded"),
    (theirs.ModelServerError, "overloaded"),
    (theirs.ModelTimeoutError, "timeout"),
    (theirs.ModelRequestTimeout, "timeout"),
    (theirs.ModelConnectionError, "connection"),
    (theirs.ModelContextWindowExceededError, "context_too_long"),
    (theirs.ModelAuthenticationError, "auth"),
    (theirs.ModelRequestRejectedError, "invalid"),
    (theirs.ContentFilterError, "refused"),
    (theirs.UserError, "invalid"),
    (TimeoutError, "timeout"),
    (OSError, "connection"),
)
"""Kinds by class, subclasses first."""
_PASSING: Final[dict[int, ModelErrorKind]] = {
    408: "timeout",
    409: "overloaded",
    425: "overloaded",
    504: "timeout",
}
"""Kinds by statuses that are transient, whatever a provider's error is called."""
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_DURATION: Final = re.compile(rf"(?:{_PART.pattern})+")
_LIMITS: Final = ("requests", "tokens")
"""OpenAI's limits: each has a header with what remains, and one with the time until it is whole again."""


def model_error(exc: Exception, model: str) -> ModelError | None:
    """Return the error that a client raises in place of this one; None if it is not a failure of a model."""
    kind = _kind(exc)
    if kind is None:
        return None
    return ModelError(kind, _retry_after(exc, kind), clean_text(f"{model}: {exc}", _MAX_PROBLEM))


def _kind(exc: Exception) -> ModelErrorKind | None:
    status = exc.status_code if isinstance(exc, theirs.ModelHTTPError) else 0
    if status in _PASSING:
        return _PASSING[status]
    for cls, kind in _KINDS:
        if isinstance(exc, cls):
            return kind
    if isinstance(exc, theirs.ModelHTTPError):
        if status == 429:  # noqa: PLR2004 - HTTP's "too many requests"
            return "rate_limited"
        return "overloaded" if status >= 500 else "invalid"  # noqa: PLR2004 - HTTP's classes
    if isinstance(exc, theirs.ModelAPIError | theirs.UnexpectedModelBehavior):
        return "connection"  # the answer is incomplete or malformed
    return None


def _retry_after(exc: Exception, kind: ModelErrorKind) -> float | None:
    """Return the pause that the provider asks for. Only of a transient error: others have no later."""
    if kind not in TRANSIENT_MODEL_ERRORS:
        return None
    headers = getattr(exc, "headers", None)
    pause_s = pause_of(headers) if isinstance(headers, Mapping) else None
    if pause_s is not None:
        return pause_s
    wait = getattr(exc, "retry_after", None)
    return float(wait) if isinstance(wait, int | float) and 0 <= wait < inf else None


def pause_of(headers: Mapping[str, str], *, now: datetime | None = None) -> float | None:
    """Return the seconds that a provider asks to wait, or None if its headers name no time.

    ``retry-after-ms`` counts first, then ``retry-after`` in seconds or as a date, then OpenAI's
    ``x-ratelimit-reset-requests`` and ``x-ratelimit-reset-tokens``.

    Args:
        headers: The headers, with names in lower case.
        now: The time with which a date is compared; by default that of the header ``date``, because the
            provider's clock may differ from this machine's.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1_000
    text = headers.get("retry-after")
    if text is None:
        return _until_reset(headers)
    seconds, date = _number(text), _date(text)
    if seconds is not None or date is None:
        return seconds
    now = now or _date(headers.get("date")) or SystemClock().now()
    return max(0.0, (date - now).total_seconds())


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if isfinite(number) and number >= 0 else None


def _date(text: str | None) -> datetime | None:
    try:
        date = parsedate_to_datetime(text or "")
    except (ValueError, TypeError, OverflowError):
        return None
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)


def _until_reset(headers: Mapping[str, str]) -> float | None:
    """Return the time until the limits that are used up are whole again; if none says so, the shortest."""
    resets = {
        limit: seconds
        for limit in _LIMITS
        if (seconds := _duration(headers.get(f"x-ratelimit-reset-{limit}"))) is not None
    }
    used_up = [
        seconds
        for limit, seconds in resets.items()
        if _number(headers.get(f"x-ratelimit-remaining-{limit}")) == 0
    ]
    return max(used_up) if used_up else min(resets.values(), default=None)


def _duration(text: str | None) -> float | None:
    """Return the seconds of a text such as ``6m0s`` or ``20ms``, or of a plain number."""
    text = (text or "").strip()
    if _DURATION.fullmatch(text) is None:
        return _number(text)
    return sum(float(count) * _UNITS_S[unit] for count, unit in _PART.findall(text))
