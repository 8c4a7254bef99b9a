"""Raising what the log has as an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.runtime.error_record import mark_recorded, rebuild_error

if TYPE_CHECKING:
    from actors.kernel.json import JsonValue


def raise_if_refused(seq: int, payload: dict[str, JsonValue]) -> None:
    """Return if the entry is no refusal.

    Raises:
        Exception: What was recorded, rebuilt; it may be the error that ends an attempt.
    """
    if payload.get("status") != "error":
        return
    record = payload.get("error")
    exc = rebuild_error(record if isinstance(record, dict) else {})
    mark_recorded(exc, seq, may_repeat=True)
    raise exc
