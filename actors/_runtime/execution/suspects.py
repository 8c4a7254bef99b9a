"""Runs that may have killed hosts: which of them may have been executing, and who executes next.

A host that dies leaves no word about the code that it executed. Its heir writes a mark into the log of each
run that may have been broken off, before that run's code is called again. A run with marks of two deaths and
no progress since is a suspect. Rules: docs/replay.md, "Deaths of hosts".
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Final, Generic, TypeVar

from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.log_entry import OUTLIVED, EntryKind
from actors._kernel.runtime.rows import RunRow
from actors._kernel.runtime.scheduler import RunStatus
from actors._runtime.journal.run_log import RunLog
from actors._runtime.replay.history import History
from actors._runtime.replay.verdict import Verdict, parked_verdict

E = TypeVar("E")

MAX_DEATHS: Final = 5
"""A run that was executing at so many deaths of hosts in a row, without progress between, is parked."""

SUSPECT_DEATHS: Final = 2
"""Number of such deaths after which a run executes only while no other suspect does."""


TURN_S: Final = 2.0
"""Seconds of a suspect's turn, if others wait; each further turn without progress is twice as long."""

CHOOSE_S: Final = 0.2
"""Seconds in which the suspects of shards that were taken over together are collected."""


@dataclass(slots=True)
class Legacy:
    """The state in which a host that died left a shard.

    Attributes:
        arrival: Number of the next arrival at the take-over: later ones were never executed before.
        at: The time of the take-over.
        awake: Agents whose run had something to do at the take-over, as its row said.
        settled: Agents that have executed since, with a mark.
    """

    arrival: int
    at: datetime
    awake: set[AgentId] = field(default_factory=set)
    settled: set[AgentId] = field(default_factory=set)

    def may_have_begun(self, run: RunRow, *, was_running: bool, has_mail: bool) -> bool:
        """Return True if the host that died may have been executing this run.

        An agent is serial: only what it executes next can have been executing.

        Args:
            run: The run that the agent executes next.
            was_running: The run was found RUNNING.
            has_mail: Messages wait for the agent that the dead host may have read.
        """
        if run.agent_id in self.settled or was_running:
            return run.agent_id not in self.settled
        if run.last_seq < 0:
            return run.arrival < self.arrival
        is_due = run.wake_at is not None and run.wake_at <= self.at
        if run.status is RunStatus.PENDING:
            return is_due
        is_fed = has_mail and run.wake is not None and run.wake.message
        return is_due or is_fed or run.agent_id in self.awake


@dataclass(slots=True)
class Standing:
    """The deaths of hosts that may have been the work of one run, as its execution knows them.

    Attributes:
        was_running: True if an execution before this one was broken off.
        broken: True if the owner before died, and may have been executing this run.
        deaths: Number of such deaths in a row, without progress between.
        turns: Number of turns among suspects that its hosts have outlived since then.
        is_marked: True if a mark of the last one is durable.
        on_clear: Called when a suspect has made progress, or its host has outlived its turn.
        log: The run's log while its code executes.
    """

    was_running: bool = False
    broken: bool = False
    deaths: int = 0
    turns: int = 0
    is_marked: bool = False
    on_clear: Callable[[], None] | None = None
    log: RunLog | None = None
    _is_death: bool = False
    _has_outlived: bool = False

    def read(self, history: History) -> None:
        """Count the deaths that a run's log has, and the last one if it came in the run's turn."""
        self._is_death = self.broken and not history.has_outlived
        self.deaths, self.turns = history.deaths + self._is_death, history.turns

    @property
    def is_suspect(self) -> bool:
        """True if the run's code may be called only while no other suspect's is."""
        return SUSPECT_DEATHS <= self.deaths < MAX_DEATHS

    @property
    def is_counted(self) -> bool:
        """True if a death of this host counts for the run, as long as nothing is written after the mark."""
        return self.is_marked or self.is_suspect

    @property
    def mark(self) -> dict[str, JsonValue] | None:
        """Payload of the entry that says that the execution before was broken off, or None if it was not."""
        if self._is_death:
            return {"reason": "recovered"}
        is_mark = self.broken or self.was_running
        return {"reason": "recovered", "died": False} if is_mark else None

    @property
    def turn_s(self) -> float:
        """Seconds for which the run executes as the only suspect of its host, while others wait."""
        return TURN_S * (1 << min(self.turns, 16))

    @property
    def verdict(self) -> Verdict | None:
        """The parking of a run that has killed too many hosts, or None if its code may be called."""
        if not self._is_death or self.deaths < MAX_DEATHS:
            return None
        return parked_verdict(
            "poison", f"{self.deaths} hosts in a row died while executing this run"
        )

    def end_turn(self) -> None:
        """Write that the host has outlived the run's turn: from then on its death counts for another run."""
        if self.log is None:
            return  # the code has ended, and what became of it is written
        if not self._has_outlived:
            self._has_outlived = True
            self.log.record(EntryKind.RUN_RESUMED, "", {"reason": OUTLIVED})
        self.log.flush_behind(idle=False)


@dataclass(slots=True)
class _Suspect(Generic[E]):
    item: E
    standing: Standing
    number: int

    @property
    def rank(self) -> tuple[int, int, int]:
        return self.standing.turns, self.standing.deaths, self.number


class SuspectLane(Generic[E]):
    """Lets one suspect at a time execute: those with the fewest turns first, then those with the fewest deaths.

    A suspect leaves the lane when it makes progress, suspends, ends, or is given up. If others wait, it also
    leaves when its host has outlived its turn, and goes on beside them.

    Args:
        wake: Makes an item ready to execute, if it may.
        is_coming: Returns whether an item is ready or executes.
    """

    def __init__(self, wake: Callable[[E], None], is_coming: Callable[[E], bool]) -> None:
        self._wake, self._is_coming = wake, is_coming
        self._holder: E | None = None
        self._turn: tuple[float, Standing] | None = None
        """When the turn of the holder ends, once it executes."""
        self._waiting: dict[int, _Suspect[E]] = {}
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    def admits(self, item: E, standing: Standing) -> bool:
        """Return True if a suspect may execute now. If not, it is woken when its turn comes."""
        if self._holder is item:
            self._turn = asyncio.get_running_loop().time() + standing.turn_s, standing
            standing.on_clear = partial(self.leave, item)
            return True
        self._waiting[id(item)] = _Suspect(item, standing, next(self._numbers))
        self._arm()
        return False

    def leave(self, item: E) -> None:
        """Note that an item does not execute as a suspect any more; the next suspect may."""
        if self._holder is item:
            self._holder = None
            self._choose()

    def clear(self) -> None:
        """Forget all suspects."""
        self._holder = self._turn = None
        self._waiting.clear()

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(CHOOSE_S, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if self._holder is None or not self._is_coming(self._holder):
            self._choose()  # one that was to execute may be lost with its shard
        elif self._waiting and self._turn is not None:
            ends_at, standing = self._turn
            if asyncio.get_running_loop().time() >= ends_at:
                standing.end_turn()
        if self._waiting:
            self._arm()

    def _choose(self) -> None:
        self._holder = self._turn = None
        for suspect in sorted(self._waiting.values(), key=lambda suspect: suspect.rank):
            self._holder = suspect.item
            del self._waiting[id(suspect.item)]
            self._wake(suspect.item)
            if self._is_coming(suspect.item):
                return
            self._holder = None
