"""The agents of a shard whose runs sleep: rows in the store, and 12 bytes of a host's memory for each."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Mapping


class Sleepers:
    """A set of agents, each with the priority of its run.

    An agent is known by the 64-bit hash of its text, in sorted arrays. Two agents with one hash count as
    one: when one of them wakes, the other would be taken for free. Among a million agents of one shard the
    chance of such a pair is less than 1 in 30 million. Nobody can choose such names, since Python's hash has
    a random key in each process (unless `PYTHONHASHSEED` is set).
    """

    __slots__ = ("_hashes", "_priorities")

    def __init__(self) -> None:
        self._hashes, self._priorities = array("q"), array("i")

    def __len__(self) -> int:
        return len(self._hashes)

    def add(self, agent: str, priority: int) -> None:
        """Put in an agent; if it is there, its priority changes."""
        key = hash(agent)
        index = bisect_left(self._hashes, key)
        if self._is_at(index, key):
            self._priorities[index] = priority
        else:
            self._hashes.insert(index, key)
            self._priorities.insert(index, priority)

    def update(self, agents: Mapping[str, int]) -> None:
        """Put in many agents at once."""
        found = dict(zip(self._hashes, self._priorities, strict=True))
        found.update((hash(agent), priority) for agent, priority in agents.items())
        self._hashes = array("q", sorted(found))
        self._priorities = array("i", map(found.__getitem__, self._hashes))

    def pop(self, agent: str) -> int | None:
        """Take out an agent and return its priority; None if it is not there."""
        key = hash(agent)
        index = bisect_left(self._hashes, key)
        if not self._is_at(index, key):
            return None
        self._hashes.pop(index)
        return self._priorities.pop(index)

    def _is_at(self, index: int, key: int) -> bool:
        return index < len(self._hashes) and self._hashes[index] == key
