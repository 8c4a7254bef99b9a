"""Executions that were broken off: which run is loaded again at once, after a pause, or not any more.

Kept in memory: a host that takes over begins to count anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from actors.errors import (
    ActorsError,
    ContractError,
    IllegalTransitionError,
    StoreRefusedError,
    UnknownRunError,
)
from actors.kernel.json import is_unreadable_row
from actors.kernel.json_data import clean_text
from actors.kernel.runtime.ids import RunId
from actors.runtime.replay.failures import text_of

PASSING: Final = frozenset({"08", "40", "53", "55", "57", "58"})
"""Classes of SQLSTATEs that say nothing of what was given: connection, rollback, resources, system."""
MAX_REFUSALS: Final = 2
"""Number of times that the store may refuse the entries after one end of a log; then the run is parked."""
MAX_UNREADABLE: Final = 3
"""Number of times that rows of a run may be unreadable at one end of its log; then the run is parked."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
JITTER: Final = 0.2
"""Random part by which a pause is longer: what failed together is not loaded again together."""


@dataclass(frozen=True, slots=True)
class Setback:
    """The reason why an execution was broken off.

    Attributes:
        at: The last seq of the log at that time.
        refusal: What the store said of what it was given; None: it was something else.
        is_unreadable: True if a row of the run is there and cannot be read.
    """

    at: int
    refusal: str | None = None
    is_unreadable: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """The reason to park a run without its code, and the detail for its operator."""

    reason: Literal["store_refused", "unreadable"]
    detail: str


@dataclass(slots=True)
class _Count:
    at: int
    setbacks: int = 0
    refusals: int = 0
    said: str = ""
    is_unreadable: bool = False

    @property
    def limit(self) -> int:
        """Number of refusals after which the run has to be parked."""
        return MAX_UNREADABLE if self.is_unreadable else MAX_REFUSALS


class Setbacks:
    """The setbacks of runs whose last executions were broken off, and the pause before the next one."""

    def __init__(self, chance: Callable[[], float] = lambda: 0.0) -> None:
        self._chance = chance
        self._counts: dict[RunId, _Count] = {}

    def note(self, run_id: RunId, setback: Setback) -> float:
        """Return the seconds to wait before the run is loaded again.

        The first transient failure returns 0. A refusal always waits, unless it parks the run, because the
        code would make the same refused commit again at once.
        """
        count = self._counts.get(run_id)
        if count is None or count.at != setback.at:
            count = self._counts[run_id] = _Count(setback.at)
        count.setbacks += 1
        if setback.refusal is not None:
            count.refusals += 1
            count.said, count.is_unreadable = setback.refusal, setback.is_unreadable
            if count.refusals == count.limit:
                return 0.0  # it is parked now; if that is refused, too, the next pause is longer
        elif count.setbacks == 1:
            return 0.0
        before = count.setbacks - (2 if setback.refusal is None else 1)
        pause_s = min(FIRST_PAUSE_S * 2 ** min(max(before, 0), 9), LONGEST_PAUSE_S)
        return float(pause_s * (1 + JITTER * self._chance()))

    def refused(self, run_id: RunId, at: int) -> Refused | None:
        """Return why the run has to be parked, if its log ends there."""
        count = self._counts.get(run_id)
        if count is None or count.at != at or count.refusals < count.limit:
            return None
        again = f"run it again: callboard runs resolve {run_id} - --retry"
        if count.is_unreadable:
            tried = f"a row of the run could not be read {count.refusals} times"
            return Refused(
                "unreadable", f"{tried}: {count.said}. Restore or cancel the run, or {again}"
            )
        return Refused(
            "store_refused",
            f"the store refused {count.refusals} times what the run writes next, and will again: "
            f"{count.said}. Correct the code, then {again}",
        )

    def forget(self, run_id: RunId) -> None:
        """The run was suspended or ended, or is another host's."""
        self._counts.pop(run_id, None)


def refusal_of(why: object) -> str | None:
    """Return what was refused, if an execution was broken off for what it wanted to write or read."""
    match why:
        case StoreRefusedError(sqlstate=str(code)) if code[:2] in PASSING:
            return None
        case UnknownRunError() | IllegalTransitionError():
            return None  # the run has ended meanwhile
        case StoreRefusedError() | ContractError():
            return f"{why.doing}: {why.problem}" if is_unreadable_row(why) else text_of(why)
        case ActorsError():
            return None
        case Exception():
            return clean_text(f"{type(why).__name__}: {text_of(why)}")
        case _:
            return None
