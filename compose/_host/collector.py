"""Settings of Python's garbage collector in Callboard's processes, and not in programs that embed Callboard."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

GC_THRESHOLDS: Final = (50_000, 5, 10)
"""Thresholds of the collector. With Python's defaults (700, 10, 10) a busy host spends half its time in it.

An ended run is freed without the collector, so the collector finds nothing there, but a thousand executing runs
allocate and free many objects, which start it. With these thresholds it finds garbage of authors' code later,
some 10 MiB at most.
"""


def collect_rarely() -> None:
    """Set `GC_THRESHOLDS` in this process."""
    gc.set_threshold(*GC_THRESHOLDS)


@contextmanager
def loading() -> Iterator[None]:
    """Disable the collector during imports, whose time it would extend by a tenth, and exempt their objects."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
