"""Pauses between attempts at something that fails."""

from __future__ import annotations


class Backoff:
    """Each pause is twice the one before, up to a longest; a success begins anew."""

    __slots__ = ("_first_s", "_longest_s", "pause_s")

    def __init__(self, first_s: float = 0.05, longest_s: float = 1.0) -> None:
        self._first_s, self._longest_s = first_s, longest_s
        self.pause_s = first_s
        """Seconds that `next_s` returns next."""

    def next_s(self) -> float:
        """Return how many seconds to wait now; the next pause is longer."""
        pause_s, self.pause_s = self.pause_s, min(2 * self.pause_s, self._longest_s)
        return pause_s

    def reset(self) -> None:
        """Begin again with the first pause, as an attempt succeeded."""
        self.pause_s = self._first_s
