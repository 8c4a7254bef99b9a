"""Ids and instants that are drawn where the caller gave none, and the one form of instants."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any


def new_id() -> str:
    """Return 32 random hexadecimal digits."""
    return uuid.uuid4().hex


def utc_now_iso() -> str:
    """Return the current instant: ISO 8601 in UTC."""
    return datetime.now(UTC).isoformat()


def normalize_utc_iso(text: Any) -> str | None:
    """Return an ISO 8601 instant in UTC, so that instants compare as text; None: it is none.

    ``Z`` and any offset are understood; an instant without one is in UTC.
    """
    if not isinstance(text, str) or not text.strip():
        return None
    try:
        instant = datetime.fromisoformat(text.strip())
        aware = instant if instant.tzinfo else instant.replace(tzinfo=UTC)
        return aware.astimezone(UTC).isoformat()
    except (ValueError, OverflowError):  # the latter: in UTC it is in no year from 1 to 9999
        return None
