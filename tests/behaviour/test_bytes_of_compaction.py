"""Bytes that a conversation writes: a compaction adds a cut and a summary, and rewrites no turn."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.transcript import message_json
from actors._kernel.json import canonical_json
from actors._kernel.runtime.commit import Commit
from actors._kernel.runtime.scheduler import Lease
from actors.context import (
    CompactionPipeline,
    ContextConfig,
    StoreHistory,
    SummarizationCompaction,
    TokenBudgetComposedStrategy,
    TokenCounter,
)
from actors.testing import ScriptedModel
from tests.harness.faulty_store import Faults

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.log_entry import NewEntry
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

BY_HUNDREDS = TokenCounter(lambda _: 96)
QUESTIONS = 40


@dataclass
class Written:
    """Turns, calls and cuts in the commits of a host, in bytes of JSON.

    Attributes: turns: How often each turn is written, by id. turn_bytes: Of all turns. entry_bytes:
    Of the log entries of calls, without those of summaries and without receipts. cuts: How many
    there are. cut_bytes: Of cuts and of the log entries of summaries.
    """

    turns: Counter[str] = field(default_factory=Counter)
    turn_bytes: int = 0
    entry_bytes: int = 0
    cuts: int = 0
    cut_bytes: int = 0

    def see(self, *args: object) -> bool:
        """Count a call of the store."""
        if args and isinstance(args[0], Commit):
            self._add(args[0])
        elif args and isinstance(args[0], Lease):
            self._add_entries(cast("Sequence[NewEntry]", args[1]))
        return False

    def _add(self, commit: Commit) -> None:
        for turn in commit.turns:
            self.turns[turn.id] += 1
            self.turn_bytes += len(canonical_json(message_json(turn.message)))
        self._add_entries(commit.entries)
        for cut in commit.cuts:
            self.cuts += 1
            assert cut.summary is not None
            self.cut_bytes += len(canonical_json(message_json(cut.summary)))

    def _add_entries(self, entries: Sequence[NewEntry]) -> None:
        for entry in entries:
            aside = ("receipt", "usage")  # numbers of the window, which has other turns
            payload = {key: value for key, value in entry.payload.items() if key not in aside}
            if "~" in entry.position:
                self.cut_bytes += len(canonical_json(payload))
            elif entry.position:
                self.entry_bytes += len(canonical_json(payload))


async def talk(bed: Bed, budget: int) -> Written:
    """Return the counts of a conversation whose window has this many turns before it is compacted."""
    written, open_store = Written(), bed.open_store
    bed.go_wrong(Faults(wanted=written.see))
    await bed.restart()
    bed.open_store = open_store
    writer = ScriptedModel(otherwise="so far")
    summaries = SummarizationCompaction(writer, 200, 100, counter=BY_HUNDREDS)
    strategy = TokenBudgetComposedStrategy([summaries], budget * 100, counter=BY_HUNDREDS)
    pipeline = CompactionPipeline([strategy], counter=BY_HUNDREDS)

    async def act(ctx: RunContext, inbox: list[Message]) -> int:
        del inbox
        for n in range(QUESTIONS):
            turn = ChatMessage.of("user", f"{n:03} " + "word " * 40)
            await ctx.generate(turn.model_copy(update={"metadata": {"tokens": "100"}}))
        return QUESTIONS

    model = ScriptedModel(otherwise="yes " * 40)
    context = ContextConfig(StoreHistory(), pipeline)
    agent = await bed.serve(act, model=model, context=context, session="s")
    await bed.result(await bed.submit(agent))
    assert writer.calls == written.cuts
    return written


async def test_no_compaction_writes_a_turn_again(bed: Bed) -> None:
    """Turns and calls have the same bytes with many compactions as with none. Each cut adds a constant."""
    never, often = await talk(bed, 1_000), await talk(bed, 6)

    assert (never.cuts, never.cut_bytes) == (0, 0)
    assert often.cuts >= 10
    assert set(often.turns.values()) == set(never.turns.values()) == {1}
    assert len(often.turns) == len(never.turns) == 2 * QUESTIONS
    assert often.turn_bytes == never.turn_bytes
    assert often.entry_bytes <= never.entry_bytes
    assert often.cut_bytes < 1_500 * often.cuts
