"""Cache of the cards of open runs. A page is loaded again after each event, and only new entries are read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from actors.kernel.agent.transcript import Turn
from actors.kernel.runtime.ids import AgentId, RunId
from actors.kernel.runtime.rows import RunRow
from actors.runtime.runtime import Runtime
from actors.sessions.translation import RunTranslator
from compose.web.pages.cards import RunCards

MOST_FOLDS: Final = 64
"""Maximum number of open runs whose cards are kept: those that were read last."""
MOST_CARDS: Final = 2_000
"""A run with more cards than this is read from its start each time."""

Nodes: TypeAlias = Callable[[Sequence[str]], Awaitable[list[Turn]]]


@dataclass(slots=True)
class Fold:
    """The cards of a run up to an entry.

    Attributes:
        translator: Translates entries into events.
        cards: The cards of the entries so far.
        next_seq: The number of the next entry to read.
    """

    translator: RunTranslator
    cards: RunCards = field(default_factory=RunCards)
    next_seq: int = 0

    async def read_on(self, runtime: Runtime) -> None:
        """Apply the entries that are new since the last call."""
        async for entry in runtime.entries(self.translator.run_id, from_seq=self.next_seq):
            self.cards.take_all(await self.translator.of(entry))
            self.next_seq = entry.seq + 1


class Folds:
    """The cached folds of open runs in this process."""

    def __init__(self) -> None:
        self._kept: dict[RunId, Fold] = {}

    async def cards_of(
        self, runtime: Runtime, agent: AgentId, row: RunRow, nodes: Nodes
    ) -> RunCards:
        """Return the cards of a run. For an open run, only entries that are new since the last call are read.

        A fold in use is not in the cache. If two requests read a run at once, one of them reads it from the
        start.
        """
        fold = self._kept.pop(row.run_id, None)
        if (
            fold is None or fold.next_seq > row.last_seq + 1
        ):  # or the database lost its last commits
            names = runtime.hidden_names
            fold = Fold(RunTranslator(agent.key, row.run_id, agent, names, nodes))
        await fold.read_on(runtime)
        if not row.status.is_terminal and len(fold.cards.cards) <= MOST_CARDS:
            self._kept[row.run_id] = fold
            if len(self._kept) > MOST_FOLDS:
                del self._kept[next(iter(self._kept))]
        return replace(fold.cards, cards={**fold.cards.cards})
