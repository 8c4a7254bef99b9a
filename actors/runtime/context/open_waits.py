"""The open waits of a run's branches, indexed by what ends them.

The cost of finding the branch that waits for a signal or an answer, and of adding or removing a wait, does
not depend on the number of open waits.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from operator import attrgetter
from typing import Literal, NamedTuple, TypeAlias

from actors.kernel.runtime.rows import Arrived, BufferedSignal
from actors.kernel.runtime.waits import FROM_OUTSIDE, Answer, Wait, WakeSet
from actors.runtime.context.call import Call, Entry, Payload
from actors.runtime.replay.branches import Branch

_Place: TypeAlias = "list[tuple[int, ...]]"
Source: TypeAlias = Literal["signal", "answer", "mail"]


@dataclass(frozen=True, slots=True)
class Trigger:
    """The event that ends a wait."""

    signal: BufferedSignal | None = None
    mail: Arrived | None = None
    answer: Answer | None = None
    entry: Entry | None = None
    """Entry that is recorded as it is: the end of a time limit, or a refusal."""
    is_refusal: bool = False
    is_unasked: bool = False
    """True if no agent answered: the time is over, or the run that was to be asked has ended."""

    @property
    def is_input(self) -> bool:
        """True if the branch continues before the event is durable: the store writes it as it is, or nothing.

        A message may have to wait for an older one, and an answer may come before the end of its time.
        """
        return self.mail is None and not self.is_unasked


class WaitResult(NamedTuple):
    """The event that ended a wait, and its entry."""

    found: Trigger
    seq: int
    payload: Payload


@dataclass(slots=True, eq=False)
class PendingWait:
    """The wait of one branch.

    Attributes:
        row: What an answer ends, as others see it; set by `OpenWaits.show`.
        keep: Whether the answer stays for others who wait for it.
        n: Grows with each wait that paused for the first time.
        place: The position of `row` among the others.
    """

    branch: Branch
    verb: str
    at: datetime | None = None
    signal: str | None = None
    mail: bool = False
    row: Wait | None = None
    keep: bool = False
    ended: WaitResult | None = None
    n: int = -1
    place: _Place = field(default_factory=list)

    @property
    def source(self) -> tuple[Source, str] | None:
        """The source of the awaited event; None: the clock alone."""
        if self.signal is not None:
            return "signal", self.signal
        if self.row is not None:
            return "answer", self.row.key
        return ("mail", "") if self.mail else None


class AnswerWait:
    """A wait that an answer ends.

    Attributes:
        key: Key of the answer that replaces the end of the time, if it comes before that end is recorded.
        keep: Whether the answer stays for others who wait for it.
    """

    key: str | None = None
    keep = False

    def __init__(self, call: Call) -> None:
        self.call, self.run = call, call.run

    async def prepare(self) -> Wait | Answer | Exception:
        """Return the wait as others see it, or what ends it at once."""
        raise NotImplementedError

    def answered(self, answer: Answer) -> Entry:
        """Return the entry that records an answer."""
        raise NotImplementedError

    async def timed_out(self) -> Entry:
        """Return the entry that records the end of its time."""
        raise NotImplementedError

    def take_back(self) -> None:
        """The refusal of the call is recorded."""


class PausedWaits:
    """The waits for which nothing is there that ends them, by where that comes from."""

    __slots__ = ("_by_source", "_first_pauses", "_waits")

    def __init__(self) -> None:
        self._waits: set[PendingWait] = set()
        self._first_pauses = 0
        self._by_source: dict[Source, dict[str, list[PendingWait]]]
        self._by_source = {"signal": {}, "answer": {}, "mail": {}}

    def __len__(self) -> int:
        return len(self._waits)

    def add(self, wait: PendingWait) -> None:
        """Add a paused wait: nothing that ends it is there."""
        if wait.n < 0:
            wait.n = self._first_pauses
            self._first_pauses += 1
        self._waits.add(wait)
        if wait.source is not None:
            kind, name = wait.source
            insort(self._by_source[kind].setdefault(name, []), wait, key=_n_of)

    def remove(self, wait: PendingWait) -> None:
        """The wait polls again, or was broken off."""
        self._waits.remove(wait)
        if wait.source is not None:
            kind, name = wait.source
            waits = self._by_source[kind][name]
            del waits[bisect_left(waits, wait.n, key=_n_of)]
            if not waits:
                del self._by_source[kind][name]

    def first(self, kind: Source) -> PendingWait | None:
        """Return one that pauses for this: for messages the first, else any."""
        found = self._by_source[kind]
        return next(iter(found.values()))[0] if found else None

    def for_signals(self, counts: Iterable[tuple[str, int]]) -> list[PendingWait]:
        """Return the branches that can take signals of these names, given their counts, in order."""
        waits = self._by_source["signal"]
        return sorted((w for name, n in counts for w in waits.get(name, ())[:n]), key=_n_of)

    def for_answers(self, keys: Iterable[str]) -> list[PendingWait]:
        """Return the branches that wait for answers with these keys, in order."""
        waits = self._by_source["answer"]
        return sorted((w for key in keys for w in waits.get(key, ())), key=_n_of)

    def wake_set(self) -> WakeSet:
        """Return everything that they wait for."""
        return WakeSet(
            at=min((wait.at for wait in self._waits if wait.at is not None), default=None),
            signals=tuple(sorted(self._by_source["signal"])),
            message=bool(self._by_source["mail"]),
            runs=tuple(sorted(self._by_source["answer"])),
        )


class OpenWaits:
    """The open waits of one execution.

    Attributes:
        paused: Those of them that pause.
    """

    def __init__(self) -> None:
        self.paused = PausedWaits()
        self._open: set[PendingWait] = set()
        self._shown: list[PendingWait] = []
        """The open waits that have a row, by position."""
        self._by_position: dict[str, PendingWait] = {}
        self._outside_count = 0
        self._rows: dict[bool, tuple[Wait, ...]] = {}
        """Results of `rows` since the last change, by `must`."""

    def __len__(self) -> int:
        return len(self._open)

    def open(self, wait: PendingWait) -> None:
        """Take in a wait that begins, or goes on."""
        self._open.add(wait)

    def show(self, wait: PendingWait, row: Wait) -> None:
        """Let others see an open wait as this row."""
        wait.row, wait.place = row, _place(row)
        insort(self._shown, wait, key=_place_of)
        self._by_position[row.position] = wait
        self._outside_count += row.kind in FROM_OUTSIDE
        self._rows.clear()

    def close(self, wait: PendingWait) -> None:
        """Forget a wait that is over, if that was not done."""
        if wait not in self._open:
            return
        self._open.remove(wait)
        if wait.row is not None:
            del self._shown[bisect_left(self._shown, wait.place, key=_place_of)]
            del self._by_position[wait.row.position]
            self._outside_count -= wait.row.kind in FROM_OUTSIDE
            self._rows.clear()

    @property
    def polling_count(self) -> int:
        """The number of branches that check, just now, whether their event has happened."""
        return len(self._open) - len(self.paused)

    def at(self, position: str) -> PendingWait | None:
        """Return the open wait for an answer at this position."""
        return self._by_position.get(position)

    def rows(self, *, must: bool) -> tuple[Wait, ...]:
        """Return what others see, by position; whether the run can do nothing else is given.

        The same tuple, until something changes.
        """
        must = must and len(self._shown) == len(self._open) == len(self.paused)
        must = must and not self._outside_count
        if must not in self._rows:
            rows = [wait.row for wait in self._shown if wait.row is not None]
            if must and rows:
                rows[0] = replace(rows[0], must=True)
            self._rows[must] = tuple(rows)
        return self._rows[must]


_n_of: Callable[[PendingWait], int] = attrgetter("n")
_place_of: Callable[[PendingWait], _Place] = attrgetter("place")


def _place(wait: Wait) -> _Place:
    return [
        tuple(int(part) for part in piece.split(".") if part) for piece in wait.position.split(":")
    ]
