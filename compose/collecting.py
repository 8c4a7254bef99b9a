"""How often Python looks for garbage in a process that is a host and nothing else."""

from __future__ import annotations

import gc
from typing import Final

THRESHOLDS: Final = (50_000, 5, 10)
"""Python's own are (700, 10, 10), with which a busy host spends half its time looking, and finds nothing.

A run that has ended is free without the collector, but a thousand that are under way are many objects
more and then fewer again. What is found late is what authors' code leaves: some ten MiB at most.
"""


def collect_rarely() -> None:
    """Let the collector run when it may find something. For processes of ours, not of those who embed us."""
    gc.set_threshold(*THRESHOLDS)
