"""The loops, sequences and branches that contain the run's current node, the innermost last."""

from __future__ import annotations

from typing import Any, Final

FORK: Final = "parallel"

Frame = dict[str, Any]
"""The node and kind of a frame, and its progress. A loop has the `index` of its next pass."""


class FrameStack:
    """The frames of a run, and the counts of its limits. Both are stored in `kept`, which is changed."""

    def __init__(self, kept: dict[str, Any]) -> None:
        self._kept = kept

    def _frames(self) -> list[Frame]:
        frames = self._kept.get("frames") or {}
        return [frames[str(depth)] for depth in range(len(frames))]

    def _leave(self, depth: int) -> None:
        """Leave all frames at or below a depth."""
        frames = self._kept.get("frames") or {}
        for above in range(depth, len(frames)):
            del frames[str(above)]

    def top(self) -> Frame | None:
        """Return the innermost frame, which may be changed. None: there is no frame."""
        return next(reversed(self._frames()), None)

    def push(self, node: str, kind: str, **more: Any) -> None:
        """Begin a frame. A frame of the same node in this branch is left first, with all frames within it."""
        frames = self._frames()
        for depth in reversed(range(len(frames))):
            if frames[depth]["kind"] == FORK:
                break
            if frames[depth]["node"] == node:
                self._leave(depth)
                break
        limits = self._kept.get("limits", {})
        for name in [one for one, kept in limits.items() if node in kept["scope"]]:
            del limits[name]
        kept = self._kept.setdefault("frames", {})
        kept[str(len(kept))] = {"node": node, "kind": kind, **more}

    def pop(self) -> None:
        """Leave the innermost frame."""
        self._leave(len(self._frames()) - 1)

    def leave_branch(self) -> None:
        """Leave all frames that began in this branch."""
        frames = self._frames()
        forks = [depth for depth, one in enumerate(frames) if one["kind"] == FORK]
        self._leave(forks[-1] + 1 if forks else 0)

    def count(self, node: str, most: int) -> int | None:
        """Count a pass of a limit; return the count. None: the limit is reached, and the count starts again.

        A count belongs to the current passes of the loops that contain the limit.
        """
        scope = {one["node"]: one["index"] for one in self._frames() if "index" in one}
        limits = self._kept.setdefault("limits", {})
        kept = limits.get(node) or {}
        done = kept["count"] if kept.get("scope") == scope else 0
        is_reached = done >= most
        limits[node] = {"scope": scope, "count": 0 if is_reached else done + 1}
        return None if is_reached else done + 1
