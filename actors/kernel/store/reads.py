"""Reads by id, and rows that commits hand over to readers."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from actors.kernel.json import JsonValue
from actors.kernel.runtime.ids import AgentId, RunId
from actors.kernel.runtime.log_entry import RunLogEntry
from actors.kernel.runtime.rows import BufferedSignal, LoadedRun, RunRow
from actors.kernel.runtime.waits import Answer
from actors.kernel.storage.session import SessionFact

T = TypeVar("T")

SMALL_STATE_KEYS: Final = 100
SMALL_STATE_BYTES: Final = 16_384
"""A state of no more keys and bytes is read as a whole."""


@dataclass(frozen=True, slots=True)
class StatePart:
    """Keys of an agent's state and their values; `is_whole`: it has no others."""

    values: Mapping[str, JsonValue]
    is_whole: bool


class ReadStore(Protocol):
    """A run or an agent's state, by its id."""

    async def load(self, run_ids: Sequence[RunId]) -> list[LoadedRun]:
        """Return rows and logs of several runs in one round trip; unknown ids are left out."""

    async def run(self, run_id: RunId) -> RunRow | None:
        """Return one run's row."""

    async def started_by(self, run_id: RunId) -> str | None:
        """Return the sender of all messages that the run's tree began with, started or not.

        None: there were several, or none, or it is not known any more, or there is no such run.
        """

    async def signals(self, run_id: RunId) -> list[BufferedSignal]:
        """Return the run's signals that are not consumed, in arrival order."""

    async def answers(self, run_id: RunId) -> list[Answer]:
        """Return the run's answers that are not consumed, whether it waits for them or not."""

    async def state(self, agent_id: AgentId) -> dict[str, JsonValue]:
        """Return the agent's state."""

    async def state_at(self, agent_id: AgentId, key: str) -> StatePart:
        """Return one key of the agent's state if it is there; of a small state all keys."""

    async def tokens_left(self, run_id: RunId) -> int | None:
        """Return how many tokens the run's tree may still use; None: its budget limits none."""

    def entries(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        """Yield the log from `from_seq` to its present end."""

    def tail(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        """Yield the log from `from_seq`, then what is appended.

        Ends after a terminal entry, and when a run that was there is there no more.
        """


class Handed(Generic[T]):
    """Numbered rows that commits of this process have handed to a reader, which then need not read them.

    Args:
        number: Returns the number of a row.
        begin: Number of the first row that is wanted.
        most: Number of rows from which on a slow reader is handed no more. It reads them instead.

    Attributes:
        begin: Number of the next row.
        on_news: Called when there are more rows.
        has_to_read: True if there may be rows that were not handed over.
    """

    def __init__(self, number: Callable[[T], int], begin: int, most: int) -> None:
        self.begin, self.has_to_read = begin, True
        self.on_news: Callable[[], object] = lambda: None
        self._number, self._most = number, most
        self._rows: deque[T] = deque()

    def hand(self, rows: Sequence[T]) -> None:
        """Take the rows of a commit; none: they have to be read."""
        if not rows or len(self._rows) >= self._most:
            self._rows.clear()
            self.has_to_read = True
        else:
            self._rows += rows
        self.on_news()

    def take(self) -> list[T]:
        """Return the handed rows from `begin` on. If rows before them are missing, all have to be read."""
        found: list[T] = []
        while self._rows:
            row = self._rows.popleft()
            number = self._number(row)
            if number > self.begin:
                self._rows.clear()
                self.has_to_read = True
            elif number == self.begin:
                found.append(row)
                self.begin += 1
        return found


class FollowedRuns(Protocol):
    """Runs that this process has submitted lately and executes: their rows are kept for one reader each.

    The reader has to read the store if the rows say so, or if no entry comes for a while.
    """

    def entries_of(self, run_id: RunId) -> AbstractContextManager[Handed[RunLogEntry] | None]:
        """Yield the entries of a run from its first one on; None: they are not kept."""

    def facts_of(
        self, agent: AgentId, *, after: int
    ) -> AbstractContextManager[Handed[SessionFact] | None]:
        """Yield the facts of a session after this one; None: they are not kept."""
