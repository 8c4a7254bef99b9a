"""Pieces of what a run says while it says it: shown to who looks, never stored."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

from actors.kernel.json import JsonValue
from actors.kernel.runtime.ids import AgentId, RunId

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
        after: Seq of the last entry of the run that was durable when the piece was shown, -1 if none was;
            None: a host of an earlier release did not say.
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
