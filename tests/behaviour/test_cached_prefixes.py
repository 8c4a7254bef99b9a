"""Requests of one conversation, as a provider's cache sees them: a cut changes their beginning once."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.tools import Tool, ToolCall
from actors._kernel.runtime.commit import Commit
from actors.agents import ReActAgent
from actors.context import (
    ContextConfig,
    SlidingWindowCompaction,
    StoreHistory,
    SummarizationCompaction,
    TokenBudgetComposedStrategy,
    ToolResultCompactionStrategy,
)
from actors.testing import ScriptedModel
from tests.harness.faulty_store import Faults

if TYPE_CHECKING:
    from actors._kernel.agent.models import CompactionStrategy
    from actors._testing.model_reply import Line
    from actors.testing import Asked
    from tests.behaviour.bed import Bed

QUESTIONS = 30
LOOK_UPS = 3
"""Calls of a tool behind each question; the fifth part of them has a large result."""
HUGE = 40
"""Number of the call whose result is larger than the model's window.

Not with summaries: turns that are left out beyond a summary come back, so that the next one has them.
"""


class SmallModel(ScriptedModel):
    """A model that calls a tool three times and then answers, in a window of 6,000 tokens."""

    context_window = 6_000


@dataclass
class Cuts:
    """Number of cuts in the commits of a host."""

    count: int = 0

    def see(self, *args: object) -> bool:
        """Count a call of the store."""
        if args and isinstance(args[0], Commit):
            self.count += len(args[0].cuts)
        return False


def contexts() -> dict[str, ContextConfig | None]:
    """Return contexts whose budgets are used up several times; None: the default."""
    shorter = ToolResultCompactionStrategy(100)
    summaries = SummarizationCompaction(
        ScriptedModel(otherwise="so far"), 1_000, 200, max_summary_tokens=50
    )
    sliding = SlidingWindowCompaction(12)
    kinds: dict[str, list[CompactionStrategy]] = {
        "shortened": [shorter],
        "sliding": [shorter, sliding],
        "summaries": [shorter, summaries],
    }
    budgets = {
        name: TokenBudgetComposedStrategy(kind, 4_000, target_tokens=2_000, always_fits=True)
        for name, kind in kinds.items()
    }
    return {
        "default": None,
        **{name: ContextConfig(StoreHistory(), budget) for name, budget in budgets.items()},
    }


def lines_of(question: int) -> list[Line]:
    """Return the answers of the model to a question."""
    calls = range(question * LOOK_UPS, (question + 1) * LOOK_UPS)
    tool_calls = [ToolCall(id=f"c{n}", name="look_up", arguments={"n": n}) for n in calls]
    return [*tool_calls, "that is all I found " * 10]


def breaks(requests: list[Asked]) -> int:
    """Return the number of requests that do not begin with the whole request before them."""
    texts = [[turn.model_dump_json() for turn in request.messages] for request in requests]
    return sum(after[: len(before)] != before for before, after in itertools.pairwise(texts))


@pytest.mark.parametrize("kind", contexts())
async def test_a_cut_changes_the_beginning_of_requests_once(bed: Bed, kind: str) -> None:
    """Each request begins with the request before it, but for one behind each cut, also across runs."""
    cuts, open_store = Cuts(), bed.open_store
    bed.go_wrong(Faults(wanted=cuts.see))
    await bed.restart()
    bed.open_store = open_store

    async def look_up(n: int) -> str:
        is_huge = n == HUGE and kind != "summaries"
        return f"row {n}: " + "word " * (5_000 if is_huge else 400 if n % 5 == 0 else 20)

    script = [line for n in range(QUESTIONS) for line in lines_of(n)]
    model = SmallModel(*script)
    agent = ReActAgent(
        bed.name(),
        model=model,
        tools=[Tool("look_up", "A row.", look_up, idempotent=True)],
        context=contexts()[kind],
    )
    await bed.runtime.register(agent)
    for n in range(QUESTIONS):
        await bed.result(await bed.submit(agent.id, f"question {n} " + "please " * 10))

    assert model.calls == len(script)
    assert breaks(model.asked) == cuts.count > 2
