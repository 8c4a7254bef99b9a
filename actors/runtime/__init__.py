"""The runtime: worker, contexts, replay. Drivers are elsewhere."""

from __future__ import annotations

from actors.runtime.context import RunContext
from actors.runtime.groups import Selected
from actors.runtime.journaling import idempotency_key
from actors.runtime.runtime import Runtime

__all__ = ["RunContext", "Runtime", "Selected", "idempotency_key"]
