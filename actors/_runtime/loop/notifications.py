"""Hints inside a host: from the part that receives or causes one to the parts that act on it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from actors._kernel.runtime.hints import Nudge

_log = logging.getLogger("callboard.loop")


class Notifications:
    """Passes hints on, by their kind. Made before all parts that publish or subscribe.

    Attributes:
        is_open: True while the host executes; hints that come before are dropped.
    """

    def __init__(self) -> None:
        self._subscribers: dict[str, list[Callable[[Nudge], None]]] = {}
        self.is_open = False

    def subscribe(self, handler: Callable[[Nudge], None], *kinds: str) -> None:
        """Call `handler` with each hint of these kinds, after the handlers that subscribed before."""
        for kind in kinds:
            self._subscribers.setdefault(kind, []).append(handler)

    def publish(self, nudge: Nudge) -> None:
        """Call the handlers that subscribed to the hint's kind."""
        if not self.is_open:
            return
        if nudge.kind not in self._subscribers:
            _log.debug("a hint without a name", extra={"kind": nudge.kind})
            return
        for handler in self._subscribers[nudge.kind]:
            handler(nudge)

    def publish_all(self, nudges: Sequence[Nudge]) -> None:
        """Publish one after the other."""
        for nudge in nudges:
            self.publish(nudge)
