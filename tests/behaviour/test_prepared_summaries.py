"""Summaries prepared after an answer, so that no later answer waits for one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.agent.agent import ExecutionBudget
from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.models import Usage
from actors._kernel.runtime.commit import Commit
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.scheduler import Lease, RunStatus
from actors.context import (
    CompactionPipeline,
    ContextConfig,
    StoreHistory,
    SummarizationCompaction,
    TokenBudgetComposedStrategy,
    TokenCounter,
)
from actors.testing import FunctionModel, ModelReply
from tests.behaviour.agents import Acting
from tests.behaviour.test_moves import give_back, waiting_host
from tests.harness.faulty_store import Faults, Manner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors._kernel.agent.message import Message
    from actors._kernel.agent.models import GenerationOptions
    from actors._kernel.runtime.ids import AgentId
    from actors._kernel.runtime.log_entry import RunLogEntry
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

BY_TENS = TokenCounter(lambda _: 6)
"""Each turn of one block has ten tokens."""
BUDGET = 100
AHEAD = 0.65
SUMMARY_TOKENS = 5_000
"""The cost of a summary; an answer costs less than a tenth of it."""


@dataclass
class Desk:
    """An agent whose history is summarised ahead, and all requests to its models.

    Attributes: asked: ``answer`` and ``summary``, in the order of the requests. gate: The
    summariser answers once it is open. fails: The summariser's requests fail. given_up: How many of
    them were cancelled. written: How many were answered.
    """

    asked: list[str] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    fails: bool = False
    given_up: int = 0
    written: int = 0

    def answer(self, messages: Sequence[ChatMessage], _: GenerationOptions) -> ModelReply:
        """Return a text for the question."""
        self.asked.append("answer")
        return ModelReply(text=f"to {messages[-1].text}")

    async def summarise(self, _: Sequence[ChatMessage], __: GenerationOptions) -> ModelReply:
        """Return a short text."""
        self.asked.append("summary")
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        if self.fails:
            raise ConnectionError("the line is cut")
        self.written += 1
        return ModelReply(text="so far", usage=Usage(input=SUMMARY_TOKENS))

    def attributes(self, prepare: float | None = AHEAD) -> dict[str, Any]:
        """Return the agent's attributes as another process makes them: its strategy has no summary."""
        writer = FunctionModel(self.summarise, model="writer")
        summaries = SummarizationCompaction(writer, 20, 20, prepare=prepare, counter=BY_TENS)
        budget = TokenBudgetComposedStrategy([summaries], BUDGET, counter=BY_TENS)
        context = ContextConfig(StoreHistory(), CompactionPipeline([budget], counter=BY_TENS))
        return {"model": FunctionModel(self.answer), "context": context, "session": "s"}

    async def serve(
        self, bed: Bed, *, turns: int = 6, prepare: float | None = AHEAD, is_open: bool = True
    ) -> AgentId:
        """Serve the agent, with this many earlier turns of ten tokens."""
        if is_open:
            self.gate.set()
        agent = await bed.serve(self.act, **self.attributes(prepare))
        early = [ChatMessage.of("user", f"fact {n}") for n in range(turns)]
        await bed.runtime.history.append_many(agent, early, session_id="s")
        return agent

    async def move(self, bed: Bed, agent: AgentId, *, prepare: float | None = AHEAD) -> None:
        """Let the agent continue in another process."""
        bed.agents[agent].context = self.attributes(prepare)["context"]  # type: ignore[attr-defined]
        await bed.restart()

    async def is_over(self, bed: Bed, *, requests: int) -> None:
        """Return once this many summaries were requested, and the last request has ended."""
        await bed.until(lambda: self.asked.count("summary") == requests)
        await bed.until(lambda: not preparing(bed))

    @staticmethod
    async def mark() -> None:
        """Notify the test that the run is about to wait."""

    @staticmethod
    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        """Answer a question, and wait for a signal if the question asks for it."""
        reply = await ctx.chat(str(inbox[0].payload))
        if "twice" in reply.text:
            reply = await ctx.chat("again")
        if "wait" in reply.text:
            await ctx.step("mark", Desk.mark)
            await ctx.sleep_until_signal("go")
        return reply.text


async def ask(bed: Bed, agent: AgentId, question: str) -> list[str]:
    """Ask, and return the positions at which summaries are recorded in the log of the run."""
    run = await bed.submit(agent, question)
    assert await bed.result(run) == f"to {question}"
    return bought(await bed.log(run, K.LLM_CALL))


def bought(calls: Sequence[RunLogEntry]) -> list[str]:
    """Return the positions at which summaries are recorded."""
    return [entry.position for entry in calls if entry.payload["model"] == "writer"]


def preparing(bed: Bed) -> int:
    """Return for how many agents the current host prepares summaries."""
    return len(bed.runtime._host.worker._preparation)


async def cut_of(bed: Bed, agent: AgentId) -> int | None:
    """Return the ordinal of the last turn that a stored summary replaces."""
    view = await bed.runtime.store.data.transcripts.view(agent, "s", limit=1)
    return None if view.cut is None else view.cut.upto


@pytest.mark.item(296, 300)
async def test_no_summary_call_delays_an_answer(bed: Bed) -> None:
    """The summary is written after an answer, outside the store.

    The next call records it, and cuts with it.
    """
    desk = Desk()
    agent = await desk.serve(bed)

    first = await ask(bed, agent, "one")
    await desk.is_over(bed, requests=1)
    before, cut_before = await bed.runtime.window(agent), await cut_of(bed, agent)
    second = await ask(bed, agent, "two")
    third = await ask(bed, agent, "three")

    assert desk.asked == ["answer", "summary", "answer", "answer"]
    assert (first, second, third) == ([], ["0~0"], [])
    assert (cut_before, await cut_of(bed, agent)) == (None, 5)
    assert "so far" in before.messages[0].text
    texts = [message.text for message in (await bed.runtime.window(agent)).messages]
    assert "so far" in texts[0]
    assert texts[1:] == ["one", "to one", "two", "to two", "three", "to three"]


async def test_a_message_cancels_a_preparation(bed: Bed) -> None:
    """Its answer does not wait, and no summary is recorded. The next preparation starts again."""
    desk = Desk()
    agent = await desk.serve(bed, is_open=False)

    await ask(bed, agent, "one")
    await bed.until(lambda: desk.asked[1:] == ["summary"])
    second = await ask(bed, agent, "two")
    desk.gate.set()
    await desk.is_over(bed, requests=2)
    third = await ask(bed, agent, "three")

    assert desk.asked == ["answer", "summary", "answer", "summary", "answer"]
    assert (desk.given_up, second, third) == (1, [], ["0~0"])


async def test_a_window_that_would_overflow_waits_for_its_summary(bed: Bed) -> None:
    """No summary is prepared: the call makes and records it, as without `prepare`."""
    desk = Desk()
    agent = await desk.serve(bed, turns=12)

    assert await ask(bed, agent, "one") == ["0~0"]

    assert desk.asked == ["summary", "answer"]
    assert await cut_of(bed, agent) == 9


@pytest.mark.parametrize("is_ahead", [True, False])
async def test_a_summary_counts_against_the_budget_of_the_run_that_uses_it(
    bed: Bed, is_ahead: bool
) -> None:
    """A prepared summary counts like one made by the call: the next call is refused."""
    desk = Desk()
    agent = await desk.serve(bed, turns=6 if is_ahead else 12)
    if is_ahead:
        await ask(bed, agent, "one")
        await desk.is_over(bed, requests=1)
    answers = desk.asked.count("answer")

    budget = ExecutionBudget(max_tokens=SUMMARY_TOKENS)
    row = await bed.ended(await bed.submit(agent, "twice", execution_budget=budget))

    assert row.error is not None
    assert (row.status, row.error["status"]) == (RunStatus.FAILED, "budget_exhausted")
    assert desk.asked.count("answer") == answers + 1
    assert bought(await bed.log(row.run_id, K.LLM_CALL)) == ["0~0"]


@pytest.mark.parametrize("is_shared", [True, False])
async def test_agents_of_a_factory_share_the_summaries_of_one_context(
    bed: Bed, caplog: pytest.LogCaptureFixture, is_shared: bool
) -> None:
    """A summary is not prepared by a context that the next run does not share: it would be lost."""
    desk, agent = Desk(), bed.name()
    desk.gate.set()
    shared = desk.attributes()
    await bed.runtime.register_type(
        agent.type,
        lambda agent_id: Acting(agent_id, desk.act, **(shared if is_shared else desk.attributes())),
    )
    early = [ChatMessage.of("user", f"fact {n}") for n in range(6)]
    await bed.runtime.history.append_many(agent, early, session_id="s")

    await ask(bed, agent, "one")
    await bed.until(lambda: desk.written or "no summary is prepared" in caplog.text)
    await bed.until(lambda: not preparing(bed))

    assert await ask(bed, agent, "two") == (["0~0"] if is_shared else [])
    assert desk.asked == ["answer", *(["summary"] if is_shared else []), "answer"]


async def test_a_failed_preparation_records_nothing(bed: Bed) -> None:
    """Later answers are not affected."""
    desk = Desk(fails=True)
    agent = await desk.serve(bed)

    await ask(bed, agent, "one")
    await desk.is_over(bed, requests=1)

    assert await ask(bed, agent, "two") == []
    assert await cut_of(bed, agent) is None


@pytest.mark.parametrize("ends", ["stop", "crash"])
async def test_a_shutdown_cancels_a_preparation(bed: Bed, ends: str) -> None:
    """Its request is cancelled. The next host answers without a wait, and prepares again."""
    desk = Desk()
    agent = await desk.serve(bed, is_open=False)
    await ask(bed, agent, "one")
    await bed.until(lambda: desk.asked[1:] == ["summary"])

    await (bed.stop() if ends == "stop" else bed.crash())
    given_up = desk.given_up
    desk.gate.set()
    bed.agents[agent].context = desk.attributes()["context"]  # type: ignore[attr-defined]
    await bed.start()
    second = await ask(bed, agent, "two")
    await desk.is_over(bed, requests=2)

    assert (given_up, second) == (1, [])
    assert desk.asked == ["answer", "summary", "answer", "summary"]
    assert await ask(bed, agent, "three") == ["0~0"]


async def test_a_host_that_lost_the_agent_writes_no_cut(bed: Bed) -> None:
    """Its request is answered after another host has taken over the agent and made its own summaries."""
    desk = Desk()
    agent = await desk.serve(bed, is_open=False)
    await ask(bed, agent, "one")
    await bed.until(lambda: desk.asked[1:] == ["summary"])
    away, gate = bed.runtime._host.worker._preparation, desk.gate
    async with waiting_host(bed, agent, Acting(agent, desk.act, **desk.attributes())) as other:
        give_back(bed.runtime, agent)
        await bed.until(lambda: other._host.worker.lease_of(agent) is not None)
        desk.gate = asyncio.Event()
        desk.gate.set()
        await ask(bed, agent, "two")
        await bed.until(lambda: desk.written == 1 and not other._host.worker._preparation)
        await ask(bed, agent, "three")
        assert (len(away), desk.asked.count("summary")) == (1, 2)
        view = await other.store.data.transcripts.view(agent, "s", limit=9)

        gate.set()
        await bed.until(lambda: desk.written == 2 and not away)
        assert await other.store.data.transcripts.view(agent, "s", limit=9) == view
        assert view.cut is not None


@pytest.mark.parametrize("recorded", [AHEAD, None])
async def test_a_replay_does_not_ask_whether_summaries_are_prepared(
    bed: Bed, recorded: float | None
) -> None:
    """A run that was recorded with `prepare` continues without it, and vice versa."""
    desk = Desk()
    agent = await desk.serve(bed, turns=6 if recorded else 12, prepare=recorded)
    if recorded:
        await ask(bed, agent, "one")
        await desk.is_over(bed, requests=1)
    run = await bed.submit(agent, "wait")
    await bed.marked(run)
    requests = list(desk.asked)

    await desk.move(bed, agent, prepare=None if recorded else AHEAD)
    await bed.runtime.signal(run, "go")

    assert await bed.result(run) == "to wait"
    assert bought(await bed.log(run, K.LLM_CALL)) == ["0~0"]
    assert desk.asked[: len(requests)] == requests
    assert desk.asked.count("answer") == requests.count("answer")


def is_a_runs(*args: object) -> bool:
    """Return True if a call of the store writes entries or the end of a run."""
    return bool(args) and isinstance(args[0], Commit | Lease)


@pytest.mark.parametrize("manner", [Manner.DIE_BEFORE, Manner.DIE_AFTER])
async def test_a_prepared_summary_survives_a_crash_at_each_write(bed: Bed, manner: Manner) -> None:
    """A crash at each write of the call that uses it.

    It is recorded once or lost with its process; no turn is missing.
    """
    if bed.backend != "memory":
        pytest.skip("in memory each call is a place to die; system tests kill processes")
    nth, is_struck = 0, True
    while is_struck:
        desk, died, open_store = Desk(), asyncio.Event(), bed.open_store
        faults = Faults(nth=nth, manner=manner, wanted=is_a_runs)
        bed.go_wrong(faults, died.set)
        await bed.restart()
        bed.open_store = open_store
        agent = await desk.serve(bed)
        positions: list[str] = []
        for question in ("one", "two", "three"):
            run = await bed.submit(agent, question)
            ended = asyncio.ensure_future(bed.runtime.wait(run))
            dead = asyncio.ensure_future(died.wait())
            await asyncio.wait({ended, dead}, return_when=asyncio.FIRST_COMPLETED)
            for task in (ended, dead):
                task.cancel()
            await asyncio.wait({ended, dead})
            if died.is_set():
                died.clear()
                await desk.move(bed, agent)
            assert await bed.result(run) == f"to {question}"
            await bed.until(lambda: not preparing(bed))
            positions += bought(await bed.log(run, K.LLM_CALL))
        turns = await bed.runtime.store.data.transcripts.page(agent, "s")
        assert [turn.ordinal for turn in turns] == list(range(12)), f"died {manner} at {nth}"
        assert [turn.message.text for turn in turns[6::2]] == ["one", "two", "three"]
        assert len(positions) <= desk.written, f"died {manner} at {nth}: recorded twice"
        assert desk.written - len(positions) <= 1 + faults.struck
        is_struck, nth = faults.struck, nth + 1
    assert nth > 3
