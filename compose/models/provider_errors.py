"""Conversion of pydantic-ai's errors into `ModelError`."""

from __future__ import annotations

from typing import Final

from pydantic_ai import exceptions as theirs

from actors.errors import ModelError, ModelErrorKind
from actors.kernel.json_data import clean_text

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


def model_error(exc: Exception, model: str) -> ModelError | None:
    """Return the error that a client raises in place of this one; None if it is not a failure of a model."""
    kind = _kind(exc)
    if kind is None:
        return None
    return ModelError(kind, _retry_after(exc), clean_text(f"{model}: {exc}", _MAX_PROBLEM))


def _kind(exc: Exception) -> ModelErrorKind | None:
    for cls, kind in _KINDS:
        if isinstance(exc, cls):
            return kind
    if isinstance(exc, theirs.ModelHTTPError):
        return _kind_of_status(exc.status_code)
    if isinstance(exc, theirs.ModelAPIError | theirs.UnexpectedModelBehavior):
        return "connection"  # the answer is incomplete or malformed
    return None


def _kind_of_status(status: int) -> ModelErrorKind:
    if status in {408, 504}:
        return "timeout"
    return "overloaded" if status >= 500 or status == 409 else "invalid"  # noqa: PLR2004 - HTTP's classes


def _retry_after(exc: Exception) -> float | None:
    wait = getattr(exc, "retry_after", None)
    return float(wait) if isinstance(wait, int | float) and wait >= 0 else None
