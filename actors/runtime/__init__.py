"""The runtime: worker, contexts, replay. Drivers are elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.exports import lazy_exports

if TYPE_CHECKING:
    from actors.runtime.context import RunContext
    from actors.runtime.groups import Selected
    from actors.runtime.journaling import idempotency_key
    from actors.runtime.runtime import Runtime
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "actors.runtime.context": ("RunContext",),
            "actors.runtime.groups": ("Selected",),
            "actors.runtime.journaling": ("idempotency_key",),
            "actors.runtime.runtime": ("Runtime",),
        },
    )

__all__ = ["RunContext", "Runtime", "Selected", "idempotency_key"]
