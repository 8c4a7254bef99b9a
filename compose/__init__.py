"""The composition root: build a runtime from settings and adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from actors._exports import lazy_exports

if TYPE_CHECKING:
    from compose._assembly.runtime import build_local_runtime, build_postgres_runtime, build_runtime
    from compose._assembly.settings import Settings

__all__ = ["Settings", "build_local_runtime", "build_postgres_runtime", "build_runtime"]

_HOMES: Final = {
    "compose._assembly.runtime": ("build_local_runtime", "build_postgres_runtime", "build_runtime"),
    "compose._assembly.settings": ("Settings",),
}

if not TYPE_CHECKING:
    __getattr__ = lazy_exports(__name__, _HOMES)
