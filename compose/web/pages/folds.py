"""Cards of runs that go on: their pages are asked for after each event, and read on where they were."""

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
"""Number of open runs that are kept, the last ones that were read."""
MOST_CARDS: Final = 2_000
"""A run with more cards is read from its start each time."""

Nodes: TypeAlias = Callable[[Sequence[str]], Awaitable[list[Turn]]]


@dataclass(slots=True)
class Fold:
    """A run as far as its log was read.

    Attributes:
        translator: Makes events of entries.
        cards: Of the entries so far.
        next_seq: The next entry.
    """

    translator: RunTranslator
    cards: RunCards = field(default_factory=RunCards)
    next_seq: int = 0

    async def read_on(self, runtime: Runtime) -> None:
        """Take the entries that have come."""
        async for entry in runtime.entries(self.translator.run_id, from_seq=self.next_seq):
            self.cards.take_all(await self.translator.of(entry))
            self.next_seq = entry.seq + 1


class Folds:
    """The folds of open runs in this process."""

    def __init__(self) -> None:
        self._kept: dict[RunId, Fold] = {}

    async def cards_of(
        self, runtime: Runtime, agent: AgentId, row: RunRow, nodes: Nodes
    ) -> RunCards:
        """Return the cards of a run; of one that goes on only the entries are read that are new since.

        A fold in use is not kept: of two requests at once, one reads from the start.
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
