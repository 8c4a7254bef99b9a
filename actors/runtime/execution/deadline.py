"""The deadlines of an execution: its agent's limit for one attempt, and the deadline of its tree."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from actors.errors import DeadlineExceededError
from actors.kernel.basics import Clock
from actors.kernel.runtime.rows import RunRow
from actors.runtime.loop.timers import Alarm

if TYPE_CHECKING:
    Interrupt: TypeAlias = Callable[[DeadlineExceededError], None]


class Deadline:
    """Interrupts one execution when its time is over.

    Args:
        row: The run; says until when its tree may execute.
        limit_s: Seconds that the agent gives an attempt.

    Attributes:
        expired: Why the attempt has to fail; another one has its time again.
        is_final: Whether the tree has had its time: unlike an attempt's, this end is final.
    """

    __slots__ = ("_clock", "_limit_s", "_row", "_timer", "expired", "is_final")

    def __init__(self, row: RunRow, limit_s: float | None, clock: Clock) -> None:
        self._row, self._limit_s, self._clock = row, limit_s, clock
        self.expired: DeadlineExceededError | None = None
        self.is_final = False
        self._timer: asyncio.TimerHandle | Alarm | None = None

    @property
    def has_passed(self) -> bool:
        """True if the tree's deadline has passed."""
        return self._row.deadline_at is not None and self._clock.now() >= self._row.deadline_at

    def arm(self, interrupt: Interrupt) -> None:
        """Interrupt the execution with an error when the first of the two is over."""
        limit, at = self._limit_s, self._row.deadline_at
        left = None if at is None else (at - self._clock.now()).total_seconds()
        if at is not None and left is not None and (limit is None or left <= limit):
            self._timer = Alarm(self._clock, at, partial(self._end_run, interrupt))
        elif limit is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(limit, self._end_attempt, limit, interrupt)

    def disarm(self) -> None:
        """Cancel the timer, because the execution is over."""
        if self._timer is not None:
            self._timer.cancel()

    def error(self) -> DeadlineExceededError:
        """Return the error of a run whose tree has had its time."""
        terms = self._row.supervision
        limit = (terms and terms.execution_budget.deadline_s) or 0.0
        return DeadlineExceededError(f"run {self._row.run_id}", limit)

    def _end_attempt(self, limit: float, interrupt: Interrupt) -> None:
        self.expired = DeadlineExceededError(f"agent {self._row.agent_id}", limit)
        interrupt(self.expired)

    def _end_run(self, interrupt: Interrupt) -> None:
        self.is_final = True
        interrupt(self.error())
