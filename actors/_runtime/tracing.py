"""`Tracing`, under the name that it has in docs/tracing.md."""

from __future__ import annotations

from actors._runtime.telemetry.spans import Tracing

__all__ = ["Tracing"]
