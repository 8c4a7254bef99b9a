"""Counts of the rows that were deleted while an agent is forgotten."""

from __future__ import annotations

from dataclasses import dataclass

from actors._kernel.runtime.ids import RunId


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """The counts of one batch of deletions, or of all batches.

    Attributes:
        open_run: A run of the agent that has not ended: no more than `messages` was taken.
        state: Keys of its state.
        follows: Subscriptions, also ended ones.
        messages: Messages that waited, and ones that were done an hour ago or less.
        letters: Dead letters.
        runs: Ended runs, with logs and results.
        more: There may be more: ask again.
    """

    open_run: RunId | None = None
    state: int = 0
    follows: int = 0
    messages: int = 0
    letters: int = 0
    runs: int = 0
    more: bool = False

    def and_then(self, batch: Forgotten) -> Forgotten:
        """Return both together; `batch` was the later one."""
        return Forgotten(
            open_run=batch.open_run,
            state=self.state + batch.state,
            follows=self.follows + batch.follows,
            messages=self.messages + batch.messages,
            letters=self.letters + batch.letters,
            runs=self.runs + batch.runs,
            more=batch.more,
        )
