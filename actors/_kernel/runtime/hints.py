"""Hints among hosts and within one, which may be lost, late or doubled, and are never stored.

A nudge says that there is something to read. A delta is a piece of what a run says while it says it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import AgentId, RunId, ShardId
from actors._kernel.runtime.log_entry import RunLogEntry

FOLLOWED_S: Final = 60.0
"""Seconds that a log counts as followed after an announcement; followers repeat it three times as often."""


@dataclass(frozen=True, slots=True)
class Nudge:
    """A hint that something changed for an agent; facts are read from the store.

    `kind` run: a new queued run. mail: pending messages. signal: a buffered signal or an answer for
    `run_id`. cancel: `run_id` was asked to stop. fanout: posts for followers in `shard`.
    schedule: a schedule of the agent was written. shards: look for shards to claim.
    limits: a limit was changed. slots: slots of a limit are free, or wanted.
    incarnation: another server, or another incarnation of it, answers; it may be behind what was read
    before. Called before anything is asked of it. held: this host has other shards than before; never
    leaves it.
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
        "slots",
        "incarnation",
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
        # Not at each call: removal goes through all logs, and each reader's refresh calls this.
        if now >= self._next_sweep:
            self._until = {run: until for run, until in self._until.items() if until > now}
            self._next_sweep = now + FOLLOWED_S
        self._until[run_id] = now + FOLLOWED_S

    def includes(self, run_id: RunId) -> bool:
        """Return True if another process follows the log."""
        until = self._until.get(run_id)
        return until is not None and until > self._now()


DeltaKind: TypeAlias = Literal["text.delta", "reasoning.delta", "custom.delta"]

MAX_DELTA_BYTES: Final = 64 * 1024
"""Largest content of one delta, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """A piece of a run's live output.

    Attributes:
        run_id: The run of the model call, or the run that shows the piece.
        agent_id: The run's agent.
        attempt: Of the run, from 1, grows with every retry and every recovery after a crash: what an
            attempt before said is void. From 1 again after `continue_as_new`.
        position: Of the model call in the run; of a custom one of the effect, or else the branch, that
            shows it.
        n: Its position among the pieces of this call in this execution, from 0. One that begins at 0
            again voids what was said at this position before. Those of a branch are counted from its
            beginning, what a replay does not show again included.
        kind: A model's answer or reasoning, or what the agent's code shows by itself (custom).
        text: The piece; empty for a custom one that is no text.
        data: That one: JSON data. Of an answer of a graph's model: its ``node_id`` and ``step_id``. Of one
            in another conversation than the run's own: its ``session``.
        is_whole: `text` is all of the answer so far, up to the piece `n`.
        after: Seq of the last entry of the run that was durable when the piece was shown, -1 if none was,
            or None if a host of an earlier release did not say.
    """

    run_id: RunId
    agent_id: AgentId
    attempt: int
    position: str
    n: int
    kind: DeltaKind
    text: str
    data: JsonValue = None
    is_whole: bool = False
    after: int | None = None


class DeltaBus(Protocol):
    """Carries deltas and hints of ends between processes. May lose them, never doubles or reorders them.

    What this process publishes does not come back to it.
    """

    def publish(self, delta: Delta) -> None:
        """Hand a piece to who looks, on whatever host; returns at once and never raises."""

    def subscribe(
        self, agent_id: AgentId, run_id: RunId, *, whole: bool = False
    ) -> AsyncGenerator[Delta | None, None]:
        """Yield the pieces of a run from now on, until closed; a slow reader misses the oldest.

        Args:
            agent_id: The run's agent.
            run_id: The run.
            whole: Ask other processes once, and again after a lost connection, for answers that are under
                way there. Each comes whole (`Delta.is_whole`), behind all of its pieces up to `Delta.n` and
                before all others; None follows the last one. Nothing comes where no answer is under way.
        """

    def answer_by(self, open_answers: Callable[[AgentId, RunId], Sequence[Delta]]) -> None:
        """Answer those who ask for the answers of a run by what this returns: whole ones, by `n`."""

    def announce_end(self, agent_id: AgentId, run_id: RunId) -> None:
        """Tell other processes that a run has ended: a hint to look; returns at once, never raises."""

    def watch_end(
        self, agent_id: AgentId, run_id: RunId, on_end: Callable[[], None]
    ) -> Callable[[], None]:
        """Call `on_end` when another process announces the run's end; return what ends the watch."""

    @property
    def is_connected(self) -> bool:
        """True if hints arrive at the moment. A caller that waits without them polls more often."""
