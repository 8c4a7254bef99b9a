"""The countable costs of conversations: the same on every machine."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pytest

from actors import (
    AgentId,
    CompactionPipeline,
    ContextConfig,
    Runtime,
    SlidingWindowCompaction,
    StoreHistory,
    SummarizationCompaction,
    Tool,
    ToolCall,
)
from actors._kernel.json import canonical_json
from actors._runtime.verbs.conversation import windows
from actors.agents import ReActAgent
from actors.sessions import AgentRuntime
from actors.testing import FunctionModel, ModelReply, ScriptedModel
from persistence._postgres.conversations import fact_readers
from persistence._postgres.conversations.transcripts import Transcripts
from persistence._postgres.reads import reads
from tests.benchmarks import http
from tests.benchmarks.bench import TYPE, agent_id, open_runtime, woken_s
from tests.benchmarks.generates import LONG, REPLAYED, Caller, suspended
from tests.benchmarks.windows import SESSION, fill
from tests.harness.slow import IS_SLOW

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from actors._kernel.agent.message import ChatMessage, Message
    from actors._kernel.agent.models import GenerationOptions
    from actors._kernel.runtime.ids import RunId

KIB: Final = 1_024
CHAT_TURNS: Final = 2_000 if IS_SLOW else 400
RESULT: Final = "A line of a result that a tool gave. " * 40
SAID: Final = "These are some words of a user. " * 10


async def log_bytes(runtime: Runtime, run_id: RunId, position: str | None = None) -> int:
    """Return the bytes of a run's log as JSON; with a position those of its entries alone."""
    entries = [entry async for entry in runtime.entries(run_id)]
    return sum(
        len(canonical_json(dict(entry.payload)))
        for entry in entries
        if position in (None, entry.position)
    )


async def test_a_replay_of_fifty_calls_reads_no_history_and_makes_no_window(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a session of 2,000 turns. The log of a call has its answer and at most 1 KiB more."""
    counts: Counter[str] = Counter()

    def counted(name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            counts[name] += 1
            return inner(*args, **options)

        return call

    for name in ("view", "page", "count"):
        monkeypatch.setattr(Transcripts, name, counted("reads", getattr(Transcripts, name)))
    assembled = counted("assemblies", windows.assembled_window)
    monkeypatch.setattr(windows, "assembled_window", assembled)
    async with open_runtime(postgres_dsn, suspend_after=0.0) as runtime:
        await runtime.register_type(TYPE, Caller)
        agent = agent_id("long")
        await fill(runtime, agent, LONG)
        run_id = await suspended(runtime, "generate", agent, REPLAYED)
        live = Counter(counts)
        counts.clear()
        await woken_s(runtime, run_id)

        assert live["assemblies"] == REPLAYED
        assert live["reads"] <= 10  # the run's own turns are added to what was read
        assert counts == {}
        calls = [entry async for entry in runtime.entries(run_id) if entry.kind == "llm.call"]
        assert len(calls) == REPLAYED
        for call in calls:
            answer = len(canonical_json(call.payload["value"]))
            assert await log_bytes(runtime, run_id, call.position) <= answer + KIB


def looks_then_tells(messages: Sequence[ChatMessage], _: GenerationOptions) -> str | ModelReply:
    """Return a call of the tool for a question, and a text for its result."""
    if messages[-1].role == "user":
        return ModelReply(calls=[ToolCall(id=f"c{len(messages)}", name="look", arguments={})])
    return "This is what I found."


async def look() -> str:
    """Return the tool's result."""
    return RESULT


async def test_windows_of_a_chat_with_tools_start_with_the_previous_window() -> None:
    """At least 90 % of them, with the default context: a provider's cache has the start of the others."""
    model = FunctionModel(looks_then_tells)
    agent = ReActAgent("helper", model=model, tools=[Tool("look", "", look, idempotent=True)])
    async with Runtime() as runtime:
        await runtime.register(agent)
        for n in range(CHAT_TURNS // 4):
            await runtime.result(await runtime.submit(agent.id, f"{n}: {SAID}"))
        assert await runtime.history.count_messages(agent.id, session_id="main") == CHAT_TURNS

    windows = [request.messages for request in model.asked]
    same = sum(later[: len(earlier)] == earlier for earlier, later in pairwise(windows))
    assert len(windows) == CHAT_TURNS // 2
    assert len(windows[-1]) < CHAT_TURNS  # it was cut
    assert same >= 0.9 * (len(windows) - 1), f"{same} of {len(windows) - 1}"


class Wordy:
    """An agent that returns the same answer many times in one run."""

    session = SESSION

    def __init__(self, id: AgentId) -> None:  # noqa: A002
        self.id, self.model = id, ScriptedModel(otherwise=SAID)
        often = SummarizationCompaction(ScriptedModel(otherwise="All well."), 400, 400)
        window = often if id.key == "often" else SlidingWindowCompaction(10_000)
        self.context = ContextConfig(StoreHistory(), CompactionPipeline([window]))

    async def run(self, ctx: Any, inbox: list[Message]) -> None:
        """Say it."""
        for n in range(60):
            await ctx.generate(f"{n}: {SAID}")


async def test_a_compaction_writes_no_turn_a_second_time(postgres_dsn: str) -> None:
    """The rows of turns are the same without compactions and with many; each logs a summary and 1 KiB."""
    turns, logged, compactions = {}, {}, {}
    async with open_runtime(postgres_dsn) as runtime:
        await runtime.register_type(TYPE, Wordy)
        for key in ("never", "often"):
            run_id = await runtime.submit(agent_id(key), None)
            await runtime.result(run_id)
            page = await runtime.store.data.transcripts.page(agent_id(key), SESSION)
            turns[key] = [(turn.ordinal, turn.message, turn.tokens) for turn in page]
            logged[key] = await log_bytes(runtime, run_id)
            compactions[key] = len(
                [entry async for entry in runtime.entries(run_id) if "~" in entry.position]
            )

    assert turns["often"] == turns["never"]
    assert len(turns["often"]) == 120
    assert compactions["never"] == 0
    assert compactions["often"] >= 10
    assert logged["often"] - logged["never"] <= compactions["often"] * KIB


def count_reads(runtime: Runtime, counts: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the reads of sessions and of logs."""
    store: Any = runtime.store
    for part, name in (
        (store.data.sessions, "_facts"),
        (store.data.sessions, "_queued"),
        (store.data.sessions, "_nodes"),
        (store.data.sessions, "_rows"),
        (store.reads, "_new"),
        (store.reads, "_runs"),
    ):
        batcher = getattr(part, name)

        def call(key: Any, inner: Any = batcher.call, name: str = name) -> Any:
            counts[name] += 1
            return inner(key)

        monkeypatch.setattr(batcher, "call", call)


async def test_a_turn_over_http_reads_no_row(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The submit checks the session. A refused run reads the session's row, and then whether it was deleted."""
    counts: Counter[str] = Counter()
    for module, name in ((reads, "TAIL_POLL_S"), (fact_readers, "POLL_S")):
        monkeypatch.setattr(module, name, 3_600)
    async with http.served(postgres_dsn) as server:
        await http.make_session(server, "s")
        count_reads(server.runtime, counts, monkeypatch)
        await http.talk(server, "s", 2)
        assert counts == {}
        line = await http.Line.to(server.url)
        line.ask("POST", "/v1/sessions/nowhere/runs", {"text": "x"})
        assert b"404 Not Found" in await line.until(b"unknown_session")
        line.close()
    assert counts == {"_rows": 1}


async def test_a_watched_turn_reads_no_row(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its facts, entries and nodes are handed over with the submit and with commits."""
    counts: Counter[str] = Counter()
    for module, name in ((reads, "TAIL_POLL_S"), (reads, "FIRST_POLL_S"), (fact_readers, "POLL_S")):
        monkeypatch.setattr(module, name, 3_600)
    agent = ReActAgent(
        "bench", model=FunctionModel(looks_then_tells), tools=[Tool("look", "", look)]
    )
    async with (
        open_runtime(postgres_dsn) as runtime,
        AgentRuntime(agents=agent, runtime=runtime, app="talk") as talks,
    ):
        await (await talks.start("hello", session_id="s")).result()
        count_reads(runtime, counts, monkeypatch)
        run = await talks.start("again", session_id="s")
        types = [event.type async for event in run.events()]

    assert [t for t in types if t not in ("text_delta", "reasoning_delta")] == [
        "loop_started",
        "message",
        "message",
        "tool_started",
        "tool_finished",
        "message",
        "message",
        "run_completed",
    ]
    assert counts == {}
