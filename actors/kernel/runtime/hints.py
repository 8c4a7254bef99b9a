"""Hints: notifications among hosts, and within one. A hint may be lost, late or doubled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from actors.kernel.runtime.ids import AgentId, RunId, ShardId
from actors.kernel.runtime.log_entry import RunLogEntry

FOLLOWED_S: Final = 60.0
"""Seconds that a log counts as followed after an announcement; followers repeat it three times as often."""


@dataclass(frozen=True, slots=True)
class Nudge:
    """A hint that something changed for an agent; facts are read from the store.

    `kind` run: a new queued run. mail: pending messages. signal: a buffered signal or an answer for
    `run_id`. cancel: `run_id` was asked to stop. fanout: posts for followers in `shard`.
    schedule: a schedule of the agent was written. shards: look for shards to claim.
    limits: a limit was changed. places: slots of a limit are free, or wanted.
    life: another server, or another incarnation of it, answers; it may be behind what was read before. Called
    before anything is asked of it. held: this host has other shards than before; never leaves it.
    """

    kind: Literal[
        "run",
        "mail",
        "signal",
        "cancel",
        "fanout",
        "schedule",
        "shards",
        "limits",
        "places",
        "life",
        "held",
    ]
    agent_id: AgentId | None = None
    run_id: RunId | None = None
    shard: ShardId | None = None


class LogHints(Protocol):
    """Tells processes that follow a run's log that another one has written to it, and no others."""

    @property
    def is_connected(self) -> bool:
        """True if what this process says reaches others at the moment, and what they say comes here."""

    def say_followed(self, run_id: RunId) -> None:
        """Tell the other processes that this one follows a log; returns at once, never raises."""

    def follow(
        self, run_id: RunId, on_growth: Callable[[Sequence[RunLogEntry]], None]
    ) -> Callable[[], None]:
        """Call `on_growth` when another process says that the log has grown; return what ends that.

        It is called with the new entries, or with none if they have to be read.
        """

    def takes_entries(self, run_id: RunId) -> bool:
        """Return True if a process follows the log, and a hint of growth can have the entries with it."""

    def announce_growth(self, run_id: RunId, entries: Sequence[RunLogEntry] = ()) -> None:
        """Tell the processes that follow the log; nothing is sent if none has said so lately.

        Args:
            run_id: The log.
            entries: The durable entries by which it grew; none: readers have to read them.
        """


class FollowedLogs:
    """The logs that other processes follow, as far as this one was notified.

    Args:
        now: Returns seconds of a clock that never goes back.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._until: dict[RunId, float] = {}
        self._next_sweep = 0.0

    def note(self, run_id: RunId) -> None:
        """Another process has said that it follows a log."""
        now = self._now()
        if now >= self._next_sweep:
            self._until = {one: until for one, until in self._until.items() if until > now}
            self._next_sweep = now + FOLLOWED_S
        self._until[run_id] = now + FOLLOWED_S

    def includes(self, run_id: RunId) -> bool:
        """Return True if another process follows the log."""
        until = self._until.get(run_id)
        return until is not None and until > self._now()
