"""A run is exported from one store and replayed in memory: nothing is executed, differences are named."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from actors import RetryPolicy, Runtime, agent
from actors._kernel.agent.hooks import HookEvent
from actors._kernel.agent.tools import Tool, ToolCall
from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.scheduler import RunStatus
from actors._runtime.loop.clock import SystemClock
from actors._runtime.registry import Registry
from actors.context import (
    CompactionPipeline,
    ContextConfig,
    InMemoryHistoryProvider,
    SlidingWindowCompaction,
    StoreHistory,
)
from actors.testing import ModelReply, ScriptedModel
from compose._tools.export import Exporter, ExportError, read_export
from compose._tools.replay import replay_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors._kernel.agent.agent import Agent
    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import RunId
    from actors._runtime import RunContext
    from actors._runtime.registry import FunctionAgent
    from compose._tools.export import ExportedRun
    from compose._tools.replay import Replayed

DESK: Final = AgentId("desk", "main")
FIRST: Final = ("read", "write")


def desk(
    calls: list[str],
    steps: Sequence[str] = FIRST,
    *,
    output: str = "done",
    fails: bool = False,
    version: str | None = None,
) -> FunctionAgent:
    """An agent with these steps, a sleep beside a step, a message and an output; it notes each call."""

    async def run(ctx: RunContext, inbox: list[Message]) -> dict[str, Any]:
        def step(name: str) -> str:
            calls.append(name)
            return name.upper()

        async def nap() -> str:
            await ctx.sleep(0.001)
            return str(await ctx.now())

        values = [await ctx.step(name, step, name) for name in steps]
        values += await ctx.gather(nap(), ctx.step("beside", step, "beside"))
        await ctx.send(AgentId("other", "one"), {"n": len(inbox)})
        if fails:
            raise ValueError(output)
        return {"values": values, "output": output}

    return agent("desk", version=version)(run)


async def exported(desk_agent: Agent, **options: Any) -> ExportedRun:
    """The run of an agent that was given a message, as its file says."""
    async with Runtime(suspend_after=0.0) as runtime:
        await runtime.register(desk_agent)
        run_id = await runtime.submit(DESK, {"n": 1}, **options)
        await runtime.wait(run_id)
        text = await export_of(runtime, run_id)
    [run] = read_export(text, file="run.jsonl")
    return run


async def export_of(runtime: Runtime, run_id: RunId) -> list[str]:
    """The lines of a run's export."""
    row = await runtime.store.reads.run(run_id)
    assert row is not None
    lines = Exporter(runtime.store).lines(row, tree=True, at=SystemClock().now())
    return [json.dumps(line) async for line in lines]


async def again(run: ExportedRun, desk_agent: Agent, until: int | None = None) -> Replayed:
    """How the run goes with this code."""
    agents = Registry()
    agents.add(desk_agent)
    return await replay_run(run, agents, until=until)


@pytest.mark.item(70, 74)
async def test_the_same_code_reproduces_the_run_and_executes_nothing() -> None:
    """Branches, waits, messages and steps are served from the log; hooks hear nothing."""
    run = await exported(desk([]))
    calls: list[str] = []
    hook_events: list[HookEvent] = []

    async def hook(event: HookEvent) -> None:
        hook_events.append(event)

    desk_agent = desk(calls)
    desk_agent.hooks = [hook]  # type: ignore[attr-defined] # an optional attribute of agents
    replay = await again(run, desk_agent)

    assert replay.outcome == "reproduced"
    assert replay.entries == len(run.entries)
    assert calls == []
    assert hook_events == []


@pytest.mark.parametrize(
    ("steps", "output", "position", "expected", "actual"),
    [
        (("write", "read"), "done", "0", "effect.result read", "step write"),
        (("read",), "done", "1", "effect.result write", "timer.set sleep"),
        ((*FIRST, "more"), "done", "2.0.0", "timer.set sleep", "effect.intent more"),
        (FIRST, "other", "the end", "'output': 'done'", "'output': 'other'"),
    ],
)
async def test_code_that_does_something_else_is_named_with_place_and_difference(
    *, steps: Sequence[str], output: str, position: str, expected: str, actual: str
) -> None:
    """What the log has, and what the code does instead; nothing is executed."""
    run = await exported(desk([]))
    calls: list[str] = []
    replay = await again(run, desk(calls, steps, output=output))

    assert (replay.outcome, replay.position, calls) == ("diverged", position, [])
    assert expected in replay.expected
    assert actual in replay.found


async def test_code_that_goes_on_where_the_log_ends_is_told_from_one_that_diverges() -> None:
    """The next thing it would do is named."""

    async def short(ctx: RunContext, inbox: list[Message]) -> int:
        return await ctx.step("one", lambda: len(inbox))

    async def longer(ctx: RunContext, inbox: list[Message]) -> int:
        await short(ctx, inbox)
        return await ctx.step("two", lambda: 1 // 0)

    run = await exported(agent("desk")(short))
    replay = await again(run, agent("desk")(longer))

    assert (replay.outcome, replay.position) == ("past_end", "1")
    assert "two" in replay.found
    assert replay.expected == "run.completed 1"


@pytest.mark.item(71)
async def test_a_run_that_failed_after_retries_is_reproduced() -> None:
    """Its end is the same error; another error, or none, is a difference."""
    policy = RetryPolicy(max_retries=1, backoff_s=0.0)
    run = await exported(desk([], fails=True), retry_policy=policy)

    assert (await again(run, desk([], fails=True))).outcome == "reproduced"
    assert (await again(run, desk([]))).outcome == "diverged"


async def test_every_first_part_of_a_log_is_reproduced_and_tells_what_comes_next() -> None:
    """`until` cuts the log anywhere, and nothing is executed behind the cut."""
    run = await exported(desk([]))
    calls: list[str] = []
    replays = [await again(run, desk(calls), until=entry.seq) for entry in run.entries]

    assert {replay.outcome for replay in replays} == {"reproduced"}
    assert all(replay.found for replay in replays[:-1])
    assert "read" in replays[1].found
    assert calls == []


async def test_every_generation_of_a_run_that_continued_as_new_is_replayed() -> None:
    """A difference in an earlier one is found, too."""

    def counting(first: str) -> FunctionAgent:
        async def run(ctx: RunContext, inbox: list[Message]) -> Any:
            job: Any = inbox[0].payload
            await ctx.step(first if job["n"] == 1 else "later", lambda: None)
            if job["n"] < 3:
                await ctx.continue_as_new({"n": job["n"] + 1})
            return job["n"]

        return agent("desk")(run)

    run = await exported(counting("first"))

    assert (await again(run, counting("first"))).outcome == "reproduced"
    assert (await again(run, counting("else"))).outcome == "diverged"


async def test_another_version_is_tried_and_an_agent_that_is_not_there_is_told() -> None:
    """So it is known before a deployment whether open runs survive it."""
    run = await exported(desk([], version="1"))
    newer = await again(run, desk([], version="2"))
    nobody = await replay_run(run, Registry())

    assert newer.outcome == "reproduced"
    assert "1" in newer.note
    assert "2" in newer.note
    assert nobody.outcome == "unserved"


class Talker:
    """Asks a model that knows a tool, and looks at its history."""

    id, session = DESK, "main"

    def __init__(self, *lines: str | ModelReply, context: ContextConfig | None = None) -> None:
        self.model, self.context = ScriptedModel(*lines), context
        self.tools = [Tool("look", "", lambda: self.looks.append(1), idempotent=True)]
        self.looks: list[int] = []

    async def run(self, ctx: RunContext, inbox: list[Message]) -> list[Any]:
        """Return what was said."""
        await ctx.history.append("by hand")
        answers = [(await ctx.chat(f"question {inbox[0].payload}")).text]
        answers += [(await ctx.generate("beside", session="side")).text]
        return [*answers, await ctx.history.count()]


async def test_a_conversation_is_exported_with_its_turns_and_replayed_without_them() -> None:
    """With what was there before the run and what it added, nothing of later runs; no model is asked."""
    call = ModelReply(calls=[ToolCall(id="1", name="look", arguments={})])
    talker = Talker("one", "first", call, "two", "second", "three", "third")
    async with Runtime(suspend_after=0.0) as runtime:
        await runtime.register(talker)
        runs = [await runtime.submit(DESK, n) for n in range(3)]
        outputs = [await runtime.result(run_id) for run_id in runs]
        text = await export_of(runtime, runs[1])
        turns = await runtime.store.data.transcripts.page(DESK, "main")
    [run] = read_export(text, file="run.jsonl")
    other_window = ContextConfig(
        StoreHistory(), CompactionPipeline([SlidingWindowCompaction(max_messages=1)])
    )
    silent = Talker(context=other_window)
    head = json.loads(text[0]) | {"callboard_export": 1}
    lines = [json.loads(line) for line in text[1:]]
    first_version = [head, *(line for line in lines if line["line"] != "turn")]
    del first_version[-1]["turns"]
    [old] = read_export(map(json.dumps, first_version), file="old.jsonl")
    replayed = [await again(export, silent) for export in (run, old)]

    assert outputs[1] == ["two", "second", 8]
    assert run.turns["main"] == turns[:8]
    assert [turn.message.text for turn in run.turns["main"]][:3] == ["by hand", "question 0", "one"]
    beside = ["beside", "first", "beside", "second"]
    assert [turn.message.text for turn in run.turns["side"]] == beside
    assert old.turns == {}
    assert [replay.outcome for replay in replayed] == ["reproduced", "reproduced"]
    assert (silent.model.calls, silent.looks) == (0, [])


async def test_a_call_that_failed_is_exported_with_the_turns_that_it_saw() -> None:
    """A run that a provider has refused is the one that is wanted on a laptop; replay needs no provider."""
    talker = Talker("one", "first")
    async with Runtime(suspend_after=0.0) as runtime:
        await runtime.register(talker)
        await runtime.result(await runtime.submit(DESK, 0))
        refused = await runtime.submit(DESK, 1, retry_policy=RetryPolicy(max_retries=0))
        row = await runtime.wait(refused)
        text = await export_of(runtime, refused)
        turns = await runtime.store.data.transcripts.page(DESK, "main")
    [run] = read_export(text, file="run.jsonl")

    assert row.status is RunStatus.FAILED
    assert run.turns == {"main": turns}
    assert turns[-1].message.text == "question 1"
    assert (await again(run, Talker())).outcome == "reproduced"


async def test_a_conversation_in_a_history_outside_is_replayed_without_it() -> None:
    """The file has no turns of it; what was read and answered is in the log."""
    context = ContextConfig(InMemoryHistoryProvider(), CompactionPipeline([]))
    run = await exported(Talker("one", "first", context=context))
    silent = Talker()

    assert run.turns == {}
    assert (await again(run, silent)).outcome == "reproduced"
    assert silent.model.calls == 0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ([], "it is empty"),
        (["nonsense"], "not a JSON object"),
        (["[1]"], "not a JSON object"),
        (['{"callboard_export": 9}'], "not an export of version 1 or 2"),
        (['{"callboard_export": 1}'], "cut off"),
        (['{"callboard_export": 1}', '{"line": "what"}'], "not known"),
        (['{"callboard_export": 1}', '{"line": "run"}'], "does not fit"),
        (['{"callboard_export": 1}', '{"line": "end", "runs": 2, "entries": 0}'], "missing"),
        (
            ['{"callboard_export": 2}', '{"line": "end", "runs": 0, "entries": 0, "turns": 1}'],
            "missing",
        ),
    ],
)
def test_a_file_that_is_no_whole_export_is_refused(text: list[str], complaint: str) -> None:
    """The error names the file, the line and the way out."""
    with pytest.raises(ExportError, match=complaint) as caught:
        read_export(text, file="x.jsonl")

    assert "x.jsonl, line " in str(caught.value)
    assert "callboard export" in str(caught.value)
