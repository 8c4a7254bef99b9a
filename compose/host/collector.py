"""When Python's garbage collector runs in processes of ours; not in those of who embed us."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

GC_THRESHOLDS: Final = (50_000, 5, 10)
"""Python's own are (700, 10, 10), with which a busy host spends half its time looking, and finds nothing.

A run that has ended is free without the collector, but a thousand that are under way are many objects
more and then fewer again. What is found late is what authors' code leaves: some ten MiB at most.
"""


def collect_rarely() -> None:
    """Let the collector run when it may find something."""
    gc.set_threshold(*GC_THRESHOLDS)


@contextmanager
def loading() -> Iterator[None]:
    """Pause it during imports, of whose time it takes a tenth, and never collect what they made."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
