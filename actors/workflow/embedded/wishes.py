"""Requests to pause, continue or cancel a run. The thread that drives it applies them between steps."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Wish:
    """A request to pause, continue or cancel a run."""

    kind: Literal["pause", "unpause", "cancel"]
    reason: str | None = None
    by: str = "api"


class Wishes:
    """Requests of this process that were not applied yet, by run. Other processes wait for the run's lock."""

    def __init__(self) -> None:
        self._open: defaultdict[str, list[Wish]] = defaultdict(list)
        self._lock = threading.Lock()

    def add(self, run_id: str, wish: Wish) -> None:
        """Keep a wish until it is taken."""
        with self._lock:
            self._open[run_id].append(wish)

    def take(self, run_id: str) -> list[Wish]:
        """Return the wishes for a run in order, and remove them."""
        if run_id not in self._open:
            return []
        with self._lock:
            return self._open.pop(run_id, [])

    def cancelled(self, run_id: str) -> Wish | None:
        """Return a wish to cancel the run, or None. The wish is not removed."""
        with self._lock:
            return next((one for one in self._open.get(run_id, ()) if one.kind == "cancel"), None)
