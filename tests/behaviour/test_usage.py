"""Totals of usage are the sums of the logs, also over failures, retries and crashes."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from actors._kernel.agent.agent import ExecutionBudget
from actors._kernel.agent.models import Usage
from actors._kernel.runtime.log_entry import EntryKind as K
from actors.errors import ModelError
from actors.testing import FunctionModel, ModelReply
from tests.behaviour.bed import FAST

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

    from actors._kernel.agent.message import ChatMessage, Message
    from actors._kernel.agent.models import GenerationOptions
    from actors._kernel.runtime.ids import AgentId, RunId
    from actors._kernel.stores.administration import UsageTotal
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

Sums: TypeAlias = "dict[tuple[AgentId, str, date], tuple[int, int, int, int, int, Decimal, int]]"
"""By agent, model and day: answers, four kinds of tokens, dollars, and answers without a known cost."""


@dataclass
class Office:
    """Agents of three levels that execute a message's plan, and models whose answers depend on the question."""

    bed: Bed
    levels: list[AgentId] = field(default_factory=list)
    stumbled: Counter[str] = field(default_factory=Counter)

    async def open(self) -> None:
        """Serve an agent for each level; the lower two share a model."""
        for name in ("large", "small", "small"):
            model = FunctionModel(self.answer, model=name)
            self.levels.append(await self.bed.serve(self.act, model=model))

    def answer(self, messages: Sequence[ChatMessage], _: GenerationOptions) -> ModelReply:
        """Raise for some questions; else return usage drawn by the question, half without a cost."""
        question = messages[-1].text
        chance = random.Random(question)
        error = ModelError("invalid", problem="drawn") if chance.random() < 0.2 else None
        read, written = chance.randrange(50), chance.randrange(50)
        usage = Usage(
            input=read + written + chance.randrange(1, 900),
            cached=read,
            cache_written=written,
            output=chance.randrange(200),
            cost_usd=chance.choice([None, round(chance.random() / 7, 9)]),
        )
        before = (lambda: self.bed.world.hang("answer")) if question == "hang" else None
        return ModelReply(text="so", usage=usage, error=error, before=before)

    async def act(self, ctx: RunContext, inbox: list[Message]) -> None:
        """Execute the message's plan in order: call a model, chat, fail, spawn."""
        plan: Any = inbox[0].payload
        for verb, what in plan:
            await self.do(ctx, verb, what)

    async def do(self, ctx: RunContext, verb: str, what: Any) -> None:
        """Execute one item of a plan."""
        try:
            if verb == "ask":
                await ctx.llm(what)
            elif verb == "talk":
                await ctx.gather(ctx.generate(what, session="a"), ctx.generate(what, session="b"))
            elif verb == "stumble":
                self.stumble(what)
            else:
                level = self.levels[self.levels.index(ctx.agent_id) + 1]
                await ctx.join(await ctx.spawn(level, what, retry_policy=FAST))
        except ModelError:
            pass  # recorded, and not paid

    def stumble(self, what: str) -> None:
        """Raise: once, or at each attempt."""
        self.stumbled[what] += 1
        if what.endswith("again") or self.stumbled[what] == 1:
            raise ValueError(what)


def drawn(chance: random.Random, levels: int) -> list[tuple[str, Any]]:
    """Draw a plan of a run."""
    plan: list[tuple[str, Any]] = []
    for _ in range(chance.randrange(1, 5)):
        word = f"{chance.random()}"
        below = [("spawn", drawn(chance, levels - 1))] if levels > 1 else []
        last = ("stumble", word + chance.choice(["", "", "again"]))
        plan.append(chance.choice([("ask", word), ("ask", word), ("talk", word), last, *below * 2]))
    return plan


async def sums_of_logs(bed: Bed, runs: Sequence[RunId]) -> Sums:
    """Return the usage of models' answers in the logs of these runs, and of all below."""
    sums: defaultdict[Any, tuple[Any, ...]] = defaultdict(lambda: (0,) * 5 + (Decimal(0), 0))
    waiting = list(runs)
    while waiting:
        run_id = waiting.pop()
        row = await bed.ended(run_id)
        waiting += [handle.run_id for handle in await bed.runtime.children(run_id)]
        for entry in await bed.log(run_id, K.LLM_CALL):
            if entry.payload["status"] == "ok":
                used = Usage.model_validate(entry.payload["usage"])
                cost = Decimal(0 if used.cost_usd is None else repr(used.cost_usd))
                tokens = (used.input, used.cached, used.cache_written, used.output)
                more = (1, *tokens, cost, int(used.cost_usd is None))
                key = row.agent_id, entry.payload["model"], entry.ts.date()
                sums[key] = tuple(a + b for a, b in zip(sums[key], more, strict=True))
    return dict(sums)


def as_sums(totals: Sequence[UsageTotal]) -> Sums:
    """Return the same from totals."""
    return {
        (total.agent_id, total.model, total.day): (  # type: ignore[misc]
            total.calls,
            total.input,
            total.cached,
            total.cache_written,
            total.output,
            total.cost_usd,
            total.unpriced,
        )
        for total in totals
    }


async def check(bed: Bed, seeds: range) -> None:
    """Play a drawn run for each seed and one with a crash; compare totals and logs."""
    office = Office(bed)
    await office.open()
    plan = [("ask", "one"), ("talk", "hang"), ("stumble", "last")]
    runs = [await bed.submit(office.levels[0], plan)]
    await bed.world.entered.wait()
    for seed in seeds:
        chance = random.Random(seed)
        budget = ExecutionBudget(max_turns=chance.choice([None, 5]))
        level = chance.randrange(3)
        plan = drawn(chance, 3 - level)
        runs.append(await bed.submit(office.levels[level], plan, execution_budget=budget))
    await bed.restart()

    sums = await sums_of_logs(bed, runs)
    totals = [
        total
        for agent in office.levels
        for total in await bed.runtime.usage(agent=agent)
        if total.tenant == agent.tenant
    ]
    assert as_sums(totals) == sums
    assert {key[0] for key in sums} == set(office.levels)


async def test_totals_are_the_sums_of_logs(bed: Bed) -> None:
    """Of runs that fail, are retried, have children, exceed their budget, and lose their host."""
    await check(bed, range(40))


@pytest.mark.nats
async def test_totals_are_the_sums_of_logs_on_servers(bed: Bed) -> None:
    """The same in rows of PostgreSQL, with a broker."""
    await check(bed, range(12))
