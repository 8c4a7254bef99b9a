"""Executions that were broken off: which run is loaded again at once, after a pause, or not any more.

Kept in memory: a host that takes over begins to count anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from actors.errors import (
    ActorsError,
    ContractError,
    IllegalTransitionError,
    StoreRefusedError,
    UnknownRunError,
)
from actors.kernel.json_data import clean_text
from actors.kernel.runtime.ids import RunId
from actors.runtime.replay.failures import text_of

PASSING: Final = frozenset({"08", "40", "53", "55", "57", "58"})
"""Classes of SQLSTATEs that say nothing of what was given: connection, rollback, resources, system."""
MAX_REFUSALS: Final = 2
"""Number of times that the store may refuse the entries after one end of a log; then the run is parked."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Setback:
    """The reason why an execution was broken off.

    Attributes:
        at: The last seq of the log at that time.
        refusal: What the store said of what it was given; None: it was something else.
    """

    at: int
    refusal: str | None = None


@dataclass(slots=True)
class _Count:
    at: int
    setbacks: int = 0
    refusals: int = 0
    said: str = ""


class Setbacks:
    """The setbacks of runs whose last executions were broken off, and the pause before the next one."""

    def __init__(self) -> None:
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
            count.said = setback.refusal
            if count.refusals == MAX_REFUSALS:
                return 0.0  # it is parked now
        elif count.setbacks == 1:
            return 0.0
        return float(min(FIRST_PAUSE_S * 2 ** min(max(count.setbacks - 2, 0), 9), LONGEST_PAUSE_S))

    def refused(self, run_id: RunId, at: int) -> str | None:
        """Return why the run has to be parked, if its log ends there."""
        count = self._counts.get(run_id)
        if count is None or count.at != at or count.refusals < MAX_REFUSALS:
            return None
        return (
            f"the store refused {count.refusals} times what the run writes next, and will again: "
            f"{count.said}. Correct the code, then run it again: callboard runs resolve {run_id} - --retry"
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
            return text_of(why)
        case ActorsError():
            return None
        case Exception():
            return clean_text(f"{type(why).__name__}: {text_of(why)}")
        case _:
            return None
