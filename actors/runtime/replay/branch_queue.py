"""The queue of a run's branches that are ready to continue. Pure."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

from actors.runtime.replay.branches import Branch, BranchState


class BranchQueue:
    """Branches by what they want; one that does not want it any more, when it is next, is left out.

    Attributes:
        new: They have not begun, in the order in which they came.
        hits: A heap of those that go on with an entry of the log, by its seq.
    """

    __slots__ = ("_misses", "_takers", "_takers_together", "hits", "new")

    def __init__(self) -> None:
        self.new: deque[Branch] | None = None  # an empty one takes 0.7 KB, of each run
        self.hits: list[tuple[int, int, Branch]] = []
        self._misses: list[Branch] = []
        self._takers: deque[Branch] | None = None
        self._takers_together: list[Branch] = []

    def add(self, branch: Branch) -> None:
        """Queue a branch that is to begin."""
        if self.new is None:
            self.new = deque()
        self.new.append(branch)

    def hit(self, branch: Branch, seq: int, *, is_input: bool = False) -> None:
        """Queue a branch that goes on with the entry `seq`."""
        branch.resume_seq, branch.has_input = seq, is_input
        heapq.heappush(self.hits, (seq, id(branch), branch))

    def miss(self, branch: Branch, on_begin: Callable[[], None] | None) -> None:
        """Queue a branch that begins a call; `on_begin` is called at that moment."""
        branch.on_begin = on_begin
        self._misses.append(branch)

    def take(self, branch: Branch, on_taken: Callable[[], None], *, together: bool) -> None:
        """Queue a branch that consumes an event; `on_taken` is called at that moment."""
        branch.on_begin = on_taken
        if together:
            self._takers_together.append(branch)
            return
        if self._takers is None:
            self._takers = deque()
        self._takers.append(branch)

    def next_hit(self, durable: int) -> Branch | None:
        """Remove and return the branch that continues with the first entry, if the log is durable up to it.

        An input counts at once: see `BranchScheduler.queue_resume`. Afterwards the first branch in `hits`
        does want to go on.
        """
        hits = self.hits
        while hits:
            seq, _, branch = hits[0]
            if branch.state is BranchState.HIT and branch.resume_seq == seq and not branch.closed:
                may_go = seq <= durable or branch.has_input
                return heapq.heappop(hits)[2] if may_go else None
            heapq.heappop(hits)
        return None

    def next_misses(self) -> list[Branch]:
        """Remove and return all that begin something."""
        misses = [branch for branch in self._misses if branch.state is BranchState.MISS]
        self._misses.clear()
        return misses

    def next_takers(self) -> list[Branch]:
        """Remove and return branches that consume something: all that do so together, or else one."""
        together = [branch for branch in self._takers_together if branch.state is BranchState.TAKE]
        self._takers_together.clear()
        while self._takers and not together:
            branch = self._takers.popleft()
            if branch.state is BranchState.TAKE:
                together.append(branch)
        return together
