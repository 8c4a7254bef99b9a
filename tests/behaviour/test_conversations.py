"""Conversations with a model: each turn is kept once, each answer is billed once, also after crashes."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import date
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict
from pydantic_core import to_json
from typing_extensions import override

from actors._kernel.agent.agent import HistoryRetention
from actors._kernel.agent.message import ChatMessage, ContentBlock
from actors._kernel.agent.models import GenerationOptions
from actors._kernel.agent.tools import Tool, ToolCall
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors.agents import ReActAgent
from actors.context import (
    CompactionPipeline,
    ContextConfig,
    InMemoryHistoryProvider,
    SlidingWindowCompaction,
    StoreHistory,
    SummarizationCompaction,
    TokenBudgetComposedStrategy,
)
from actors.errors import MessageTooLargeError, ModelError, RunFailedError
from actors.testing import FunctionModel, ModelReply, ScriptedModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import AgentId
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


def requests_of(model: ScriptedModel | FunctionModel) -> list[list[str]]:
    """Return the texts of each request."""
    return [[message.text for message in request.messages] for request in model.asked]


async def turns(bed: Bed, agent: AgentId, session: str) -> list[str]:
    """Return the turns of a session in the store."""
    messages = await bed.runtime.history.get_messages(agent, session_id=session)
    return [f"{message.role}: {message.text}" for message in messages]


@pytest.mark.item(257, 283, 286)
async def test_turns_are_kept_once_though_the_code_runs_again(bed: Bed) -> None:
    """Live and after a crash. The model is not called again, and gets the earlier turns."""
    model = ScriptedModel("one", "two")

    async def body(ctx: RunContext) -> list[str]:
        first = await ctx.generate("a", session="s")
        second = await ctx.generate("b", "c", session="s")
        return [first.text, second.text]

    values = await bed.live_and_replayed(body, model=model)

    assert all(value == ["one", "two"] for value in values)
    assert requests_of(model) == [["a"], ["a", "one", "b", "c"]]
    [agent] = bed.agents
    assert await turns(bed, agent, "s") == [
        "user: a",
        "assistant: one",
        "user: b",
        "user: c",
        "assistant: two",
    ]


@pytest.mark.item(273, 283)
async def test_a_session_outlives_its_runs_and_its_host(bed: Bed) -> None:
    """The next run of the session continues it; another session starts empty."""
    model = ScriptedModel("one", "two", "three")

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        return (await ctx.generate(str(inbox[0].payload))).text

    agent = await bed.serve(act, model=model)
    await bed.result(await bed.submit(agent, "a", session_id="s"))
    await bed.restart()
    await bed.result(await bed.submit(agent, "b", session_id="s"))
    await bed.result(await bed.submit(agent, "c", session_id="t"))

    assert requests_of(model) == [["a"], ["a", "one", "b"], ["c"]]


async def test_the_log_of_a_call_says_how_its_window_was_made(bed: Bed) -> None:
    """The log has one intent and one llm.call as for ctx.llm, with a receipt of the window."""
    model = ScriptedModel("one", "two")

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        await ctx.generate("a")
        return (await ctx.generate(str(inbox[0].payload))).text

    agent = await bed.serve(act, model=model)
    run_id = await bed.submit(agent, "b")
    await bed.result(run_id)

    kinds = await bed.kinds(run_id)
    assert kinds[2:] == ["effect.intent", "llm.call", "effect.intent", "llm.call", "run.completed"]
    calls = await bed.log(run_id, K.LLM_CALL)
    receipts: list[Any] = [call.payload["receipt"] for call in calls]
    assert [(receipt["session"], receipt["head"], receipt["turns"]) for receipt in receipts] == [
        (run_id, -1, 1),
        (run_id, 1, 3),
    ]
    windows = [to_json(request.messages) for request in model.asked]
    assert [receipt["window"] for receipt in receipts] == [
        sha256(text).hexdigest() for text in windows
    ]


@pytest.mark.item(267, 268, 269, 270)
@pytest.mark.parametrize("retention", list(HistoryRetention))
@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
async def test_retention_holds_however_a_run_ends(
    bed: Bed, retention: HistoryRetention, end: str
) -> None:
    """RUN deletes the run's turns with its end, NONE writes none, PERMANENT keeps them."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.generate("hi")
        await ctx.step("mark", bed.world.do, "mark")
        if end == "failed":
            raise ValueError("as asked")
        if end == "cancelled":
            await ctx.sleep_until_signal("never")

    context = ContextConfig(StoreHistory(), retention=retention)
    agent = await bed.serve(act, model=ScriptedModel(otherwise="hello"), context=context)
    await bed.runtime.history.append(
        agent, ChatMessage.of("user", "before"), session_id="s", run_id="other"
    )
    run_id = await bed.submit(agent, session_id="s", retry_policy=RetryPolicy(max_retries=0))
    if end == "cancelled":
        await bed.marked(run_id)
        await bed.runtime.cancel(run_id, reason="enough")

    assert (await bed.ended(run_id)).status is RunStatus[end.upper()]
    run_turns = ["user: hi", "assistant: hello"] if retention is HistoryRetention.PERMANENT else []
    assert await turns(bed, agent, "s") == ["user: before", *run_turns]


@pytest.mark.item(269)
async def test_a_run_whose_turns_are_not_kept_still_has_them(bed: Bed) -> None:
    """They come from the run's log, also after a crash. The next run starts empty."""
    model = ScriptedModel("one", "two", "three")
    context = ContextConfig(StoreHistory(), retention=HistoryRetention.NONE)

    async def body(ctx: RunContext) -> str:
        await ctx.generate("a", session="s")
        return (await ctx.generate("b", session="s")).text

    await bed.live_and_replayed(body, model=model, context=context)

    assert requests_of(model) == [["a"], ["a", "one", "b"]]
    [agent] = bed.agents
    assert await turns(bed, agent, "s") == []


@dataclass
class Recording(InMemoryHistoryProvider):
    """A history provider of the author that records its calls."""

    def __init__(self, calls: list[str]) -> None:
        super().__init__()
        self.calls = calls

    @override
    async def get_messages(self, *args: Any, **options: Any) -> list[ChatMessage]:
        """See `HistoryProvider.get_messages`."""
        self.calls.append("get_messages")
        return await super().get_messages(*args, **options)

    @override
    async def append_many(
        self, agent_id: AgentId, messages: Sequence[ChatMessage], **options: Any
    ) -> None:
        """See `HistoryProvider.append_many`."""
        self.calls.append(f"append_many {len(messages)}")
        await super().append_many(agent_id, messages, **options)


@pytest.mark.item(274, 286)
async def test_a_provider_outside_is_read_asked_and_given_the_turns_once(bed: Bed) -> None:
    """One read, one model call, one append of all new turns; a replay does none of them."""
    calls: list[str] = []
    history = Recording(calls)

    def answer(messages: Sequence[ChatMessage], _: GenerationOptions) -> str:
        calls.append("generate")
        return f"{len(messages)}"

    async def body(ctx: RunContext) -> str:
        return (await ctx.generate("a", "b", session="s")).text

    values = await bed.live_and_replayed(
        body, model=FunctionModel(answer), context=ContextConfig(history)
    )

    assert calls == ["get_messages", "generate", "append_many 3"]
    assert set(values) == {"2"}
    [agent] = bed.agents
    stored_messages = await history.get_messages(agent, session_id="s")
    assert [message.text for message in stored_messages] == ["a", "b", "2"]
    assert await turns(bed, agent, "s") == []


@pytest.mark.item(296, 299, 300)
async def test_a_summary_is_bought_once(bed: Bed) -> None:
    """The summary is recorded beside its call; a crash before the answer does not buy it again."""
    summaries = ScriptedModel(otherwise="they said much")
    model = ScriptedModel(otherwise="yes")
    crashes: list[bool] = []

    def answer(messages: Sequence[ChatMessage], options: GenerationOptions) -> str:
        del messages, options
        if summaries.calls and not crashes:
            crashes.append(True)
            raise ConnectionError("the line is cut")
        return "yes"

    model_of_agent = FunctionModel(answer)
    strategy = SummarizationCompaction(summaries, recent_token_budget=60, min_old_tokens=100)
    context = ContextConfig(StoreHistory(), strategy)

    async def act(ctx: RunContext, inbox: list[Message]) -> int:
        del inbox
        for n in range(8):
            await ctx.generate(f"{n} " + "word " * 30)
        return 8

    agent = await bed.serve(act, model=model_of_agent, context=context, session="s")
    run_id = await bed.submit(agent)
    await bed.result(run_id)
    del model

    paid = [entry for entry in await bed.log(run_id, K.LLM_CALL) if "~" in entry.position]
    assert crashes == [True]
    assert len({entry.payload["hash"] for entry in paid}) == len(paid) == summaries.calls
    assert summaries.calls < 8
    assert len(await turns(bed, agent, "s")) == 16
    view = await bed.runtime.store.data.transcripts.view(agent, "s", limit=100)
    assert view.cut is not None
    assert view.cut.strategy == "SummarizationCompaction"


def tool(name: str, fn: Any, **more: Any) -> Tool:
    """A tool that may be repeated."""
    return Tool(name, "", fn, idempotent=True, **more)


def call(name: str, id_: str = "c", **arguments: Any) -> ToolCall:
    """Return a tool call as a model makes it."""
    return ToolCall(id=id_, name=name, arguments=arguments)


@pytest.mark.item(266)
async def test_a_chat_calls_tools_until_the_model_is_done(bed: Bed) -> None:
    """Calls of one answer run concurrently, and their results keep the calls' order.

    A replay calls nothing.
    """
    used: list[int] = []

    async def double(n: int) -> int:
        used.append(n)
        return 2 * n

    async def broken() -> None:
        raise ValueError("no luck")

    script = (
        ModelReply(calls=[call("double", "1", n=1), call("double", "2", n=2)]),
        ModelReply(text="hm", calls=[call("broken"), call("unknown", "x"), call("double", "3")]),
        "done",
    )
    model = ScriptedModel(*script)
    tools = [tool("double", double), tool("broken", broken)]

    async def body(ctx: RunContext) -> list[Any]:
        reply = await ctx.chat("go", session="s")
        return [reply.text, reply.output, reply.turns, reply.stopped]

    values = await bed.live_and_replayed(body, model=model, tools=tools)

    assert all(value == ["done", "done", 3, "end"] for value in values)
    assert (sorted(used), model.calls) == ([1, 2], 3)
    results = [
        [block.text for block in message.content]
        for message in model.asked[2].messages
        if message.role == "tool"
    ]
    assert results[:2] == [["2"], ["4"]]
    assert "ValueError: no luck" in str(results[2])
    assert "not declared" in str(results[3])
    assert "n: Field required" in str(results[4])
    assert {spec.name for spec in model.asked[0].options.tools} == {"double", "broken"}


async def test_a_call_of_an_answer_that_a_limit_cut_off_is_not_made(bed: Bed) -> None:
    """Its arguments may fit though they are not whole; the model reads why, and calls again."""
    paid: list[int] = []

    async def pay(amount: int = 100) -> str:
        paid.append(amount)
        return "paid"

    model = ScriptedModel(
        ModelReply(text="paying", calls=[call("pay", "1")], stop_reason="max_tokens"),
        ModelReply(calls=[call("pay", "2", amount=1)]),
        ModelReply(text="paid on", stop_reason="length"),
    )

    async def body(ctx: RunContext) -> list[Any]:
        reply = await ctx.chat("pay 1", session="s")
        return [reply.text, reply.output, reply.turns, reply.stopped]

    values = await bed.live_and_replayed(body, model=model, tools=[tool("pay", pay)])

    assert all(value == ["paid on", "paid on", 3, "length"] for value in values)
    assert paid == [1]
    answer = model.asked[1].messages[-1].content[0]
    assert (answer.text, answer.model_extra["is_error"]) == (  # type: ignore[index]
        "not called: a limit of tokens cut the answer off",
        True,
    )


@dataclass
class Count:
    """A typed answer."""

    n: int


class Dated(BaseModel):
    """An answer whose day is a text in JSON only."""

    model_config = ConfigDict(strict=True)

    on: date


class Node(BaseModel):
    """An answer whose schema refers to itself."""

    below: list[Node]


OUTPUTS: tuple[tuple[Any, Any, Any], ...] = (
    (list[int], [1, 2], [1, 2]),
    (int, 5, 5),
    (Literal["yes", "no"], "yes", "yes"),
    (Count | None, None, None),
    (Count | None, {"n": 5}, {"n": 5}),
    (Count | Dated, {"on": "2026-01-02"}, {"on": "2026-01-02"}),
    (Dated, {"on": "2026-01-02"}, {"on": "2026-01-02"}),
    (type(None), None, None),
    (dict[str, int], {"value": 5}, {"value": 5}),
    (Node, {"below": [{"below": []}]}, {"below": [{"below": []}]}),
)


@pytest.mark.parametrize("is_native", [False, True])
@pytest.mark.parametrize("is_wrapped", [False, True])
async def test_an_output_may_be_of_any_type(bed: Bed, is_native: bool, is_wrapped: bool) -> None:
    """Schemas are sent as objects; the value counts, in the object or alone."""
    for kind, value, output in OUTPUTS:
        is_object = kind in {Dated, dict[str, int]}
        data = {"value": value} if is_wrapped and not is_object else value
        if not is_native and not isinstance(data, dict):
            continue  # a call has no arguments but an object
        line: Any = json.dumps(data)
        if not is_native:
            line = ModelReply(calls=[ToolCall(id="1", name="final_result", arguments=data)])
        model = ScriptedModel(line)
        model.has_response_format = is_native  # type: ignore[attr-defined]
        agent = ReActAgent(bed.name(), model=model, output=kind)
        await bed.runtime.register(agent)

        assert await bed.result(await bed.submit(agent.id)) == output, kind

        options = model.asked[0].options
        schema: Any = options.response_format or options.tools[-1].parameters
        assert (schema["type"], "properties" in schema) == ("object", True), kind
        refs = {ref.rpartition("/")[2] for ref in re.findall(r'"#/\$defs/\w+', json.dumps(schema))}
        assert refs <= schema.get("$defs", {}).keys(), kind


async def test_an_output_call_without_its_value_is_corrected(bed: Bed) -> None:
    """It is a mistake of the model, not of the run."""
    calls = [
        ToolCall(id=id_, name="final_result", arguments=arguments)
        for id_, arguments in WRONG_THEN_RIGHT
    ]
    agent = ReActAgent(bed.name(), model=ScriptedModel(*calls), output=int)
    await bed.runtime.register(agent)

    assert await bed.result(await bed.submit(agent.id)) == 5


WRONG_THEN_RIGHT: tuple[tuple[str, dict[str, Any]], ...] = (("1", {}), ("2", {"value": 5}))


async def test_half_of_an_output_is_none(bed: Bed) -> None:
    """Half of a number is a number: the model is asked for it again."""
    model = ScriptedModel(ModelReply(text="12", stop_reason="length"), "123")
    model.has_response_format = True  # type: ignore[attr-defined]

    async def act(ctx: RunContext, inbox: list[Message]) -> list[Any]:
        del inbox
        reply = await ctx.chat("how many?", output=int)
        return [reply.output, reply.stopped]

    agent = await bed.serve(act, model=model)

    assert await bed.result(await bed.submit(agent)) == [123, "end"]


@pytest.mark.parametrize("is_native", [False, True])
async def test_an_output_fits_its_type_or_is_corrected(bed: Bed, is_native: bool) -> None:
    """The model gets the mismatch twice; then the chat fails with it."""

    def bad() -> Any:
        return '{"n": "x"}' if is_native else ModelReply(calls=[call("final_result", n="x")])

    def good() -> Any:
        return (
            '```json\n{"n": 5}\n```' if is_native else ModelReply(calls=[call("final_result", n=5)])
        )

    def model_of(*script: Any) -> ScriptedModel:
        model = ScriptedModel(*script)
        if is_native:
            model.has_response_format = True  # type: ignore[attr-defined]
        return model

    async def act(ctx: RunContext, inbox: list[Message]) -> dict[str, int]:
        del inbox
        reply = await ctx.chat("how many?", output=Count)
        assert reply.output is not None
        return {"n": reply.output.n, "turns": reply.turns}

    agent = await bed.serve(act, model=model_of(bad(), good()))
    assert await bed.result(await bed.submit(agent)) == {"n": 5, "turns": 2}
    agent = await bed.serve(act, model=model_of(bad(), bad(), bad()))
    with pytest.raises(RunFailedError, match="does not fit: n: Input should be"):
        await bed.result(await bed.submit(agent, retry_policy=RetryPolicy(max_retries=0)))


async def test_a_chat_stops_at_its_limit_and_can_go_on(bed: Bed) -> None:
    """The tools' results so far are kept."""
    model = ScriptedModel(ModelReply(calls=[call("look")]), "seen")

    async def act(ctx: RunContext, inbox: list[Message]) -> list[Any]:
        del inbox
        first = await ctx.chat("look", session="s", max_turns=1)
        second = await ctx.chat("and now?", session="s")
        return [first.stopped, first.output, second.text]

    async def look() -> str:
        return "a cat"

    agent = await bed.serve(act, model=model, tools=[tool("look", look)])

    assert await bed.result(await bed.submit(agent)) == ["max_turns", None, "seen"]
    assert [message.role for message in model.asked[1].messages] == [
        "user",
        "assistant",
        "tool",
        "user",
    ]


@pytest.mark.parametrize(
    "odd",
    [
        {"arguments": "{no JSON"},
        {"arguments": [1]},
        {"arguments": {}, "invalid_arguments": "{no JSON"},
    ],
)
async def test_arguments_that_cannot_be_read_are_an_error_for_the_model(
    bed: Bed, odd: dict[str, Any]
) -> None:
    """The tool is not called."""
    used: list[int] = []

    async def look(n: int = 0) -> int:
        used.append(n)
        return n

    block = ContentBlock.model_validate({"type": "tool_call", "id": "c", "name": "look", **odd})
    model = ScriptedModel(ModelReply(blocks=[block]), "sorry")

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        return (await ctx.chat("look")).text

    agent = await bed.serve(act, model=model, tools=[tool("look", look)])

    assert await bed.result(await bed.submit(agent)) == "sorry"
    [result] = [b for m in model.asked[1].messages for b in m.content if b.type == "tool_result"]
    assert "arguments of 'look' are no JSON object" in str(result.text)
    assert used == []


async def test_calls_without_unique_ids_get_new_ones(bed: Bed) -> None:
    """Two calls with one id, and one without: each result can be assigned to its call."""
    calls = [call("look", "same", n=1), call("look", "same", n=2), call("look", "", n=3)]
    model = ScriptedModel(ModelReply(calls=calls), "seen")

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        return (await ctx.chat("look")).text

    async def look(n: int) -> int:
        return n

    agent = await bed.serve(act, model=model, tools=[tool("look", look)])
    await bed.result(await bed.submit(agent))

    blocks = [b for m in model.asked[1].messages for b in m.content if b.type == "tool_result"]
    ids = [(block.model_extra or {})["id"] for block in blocks]
    assert (len(set(ids)), [block.text for block in blocks]) == (3, ["1", "2", "3"])


@pytest.mark.item(265, 266, 288)
async def test_a_react_agent_keeps_its_conversation(bed: Bed) -> None:
    """Over runs and a crash, with the given history, window and retention."""
    windows: list[int] = []

    class Counted(SlidingWindowCompaction):
        @override
        async def compact(self, raw_history: list[ChatMessage]) -> list[ChatMessage]:
            windows.append(len(raw_history))
            return await super().compact(raw_history)

    context = ContextConfig(StoreHistory(), CompactionPipeline([Counted(max_messages=4)]))
    model = ScriptedModel("one", "two", "three")
    agent = ReActAgent(bed.name(), model=model, instructions="Be brief.", context=context)
    bed.agents[agent.id] = agent
    await bed.runtime.register(agent)

    for text in ("a", "b", "c"):
        await bed.result(await bed.submit(agent.id, {"text": text}))
        await bed.restart()

    assert requests_of(model) == [["a"], ["a", "one", "b"], ["a", "one", "b", "two", "c"]]
    assert windows == [1, 3, 5]
    assert model.asked[0].options.system_instructions == "Be brief."
    assert len(await turns(bed, agent.id, "main")) == 6


async def test_history_by_hand_is_recorded(bed: Bed) -> None:
    """Appended once. Reads and counts are the same on replay although others write meanwhile."""

    async def body(ctx: RunContext) -> list[Any]:
        await ctx.history.append("a", ChatMessage.of("assistant", "b"), session="s")
        await ctx.step("flush", bed.world.do, "flush")
        await bed.runtime.history.append(
            ctx.agent_id, ChatMessage.of("user", "other"), session_id="s"
        )
        messages = await ctx.history.get(session="s", limit=2)
        return [[message.text for message in messages], await ctx.history.count(session="s")]

    values = await bed.live_and_replayed(body)

    assert all(value == [["a", "b"], 3] for value in values)


@pytest.mark.item(285)
async def test_a_large_turn_is_kept_whole_and_a_larger_one_is_refused(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for each method of the context. A refused turn calls no model and is not stored."""
    monkeypatch.setattr("actors._kernel.agent.transcript.MAX_TURN_BYTES", 700_000)
    model, large, larger = ScriptedModel("one"), "é" * 300_000, "x" * 700_000

    async def body(ctx: RunContext) -> list[str]:
        await ctx.history.append(large, session="s")
        for add in (ctx.history.append, ctx.generate):
            with pytest.raises(MessageTooLargeError, match="turn of the user"):
                await add(larger, session="s")
        return [(await ctx.generate("a", session="s")).text]

    values = await bed.live_and_replayed(body, model=model)
    [agent] = bed.agents
    with pytest.raises(MessageTooLargeError, match="turn of the user"):
        await bed.runtime.history.append(agent, ChatMessage.of("user", larger), session_id="s")

    assert all(value == ["one"] for value in values)
    assert requests_of(model) == [[large, "a"]]
    assert await turns(bed, agent, "s") == [f"user: {large}", "user: a", "assistant: one"]


async def test_a_window_starts_where_the_last_one_started(bed: Bed) -> None:
    """A long session costs no more than a short one. A larger window reads older turns again."""
    model = ScriptedModel(otherwise="yes")
    context = ContextConfig(StoreHistory(), SlidingWindowCompaction(10))

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        return (await ctx.generate("now", session="s")).text

    agent = await bed.serve(act, model=model, context=context)
    messages = [ChatMessage.of("user", str(n)) for n in range(80)]
    await bed.runtime.history.append_many(agent, messages, session_id="s")
    await bed.result(await bed.submit(agent))

    view = await bed.runtime.store.data.transcripts.view(agent, "s", limit=100)
    assert view.cut is not None
    assert (view.cut.upto, view.count) == (69, 82)
    assert requests_of(model) == [[*(str(n) for n in range(70, 80)), "now"]]
    wider = ContextConfig(StoreHistory(), SlidingWindowCompaction(40))
    bed.agents[agent].context = wider  # type: ignore[attr-defined]
    run_id = await bed.submit(agent)
    await bed.result(run_id)
    assert requests_of(model)[1] == [*(str(n) for n in range(42, 80)), "now", "yes", "now"]
    [call] = await bed.log(run_id, K.LLM_CALL)
    receipt: Any = call.payload["receipt"]
    assert (receipt["cut"], receipt["head"]) == (-1, 81), "turns before the cut were read, too"


async def test_a_window_that_a_provider_calls_too_long_is_made_smaller(bed: Bed) -> None:
    """Strategies with a budget make it smaller. Without one the oldest turns are left out."""

    def answer(messages: Sequence[ChatMessage], _: GenerationOptions) -> str:
        if len(messages) > 60:
            raise ModelError("context_too_long")
        return str(len(messages))

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        return (await ctx.generate("now", session="s")).text

    strategies = [SlidingWindowCompaction(n) for n in (80, 50)]
    budget = TokenBudgetComposedStrategy(strategies, 1_000)
    messages = [ChatMessage.of("user", f"{n} word word word word") for n in range(75)]
    for context, turn_count, strategy in (
        (ContextConfig(StoreHistory(), budget), 51, "SlidingWindowCompaction"),
        (
            ContextConfig(StoreHistory(), SlidingWindowCompaction(500)),
            53,
            "refused by the provider",
        ),
    ):
        model = FunctionModel(answer)
        agent = await bed.serve(act, model=model, context=context)
        await bed.runtime.history.append_many(agent, messages, session_id="s")
        run_id = await bed.submit(agent, retry_policy=RetryPolicy(max_retries=0))
        assert (await bed.ended(run_id)).status is RunStatus.COMPLETED
        assert model.calls == 2
        [call] = await bed.log(run_id, K.LLM_CALL)
        receipt: Any = call.payload["receipt"]
        assert (receipt["turns"], receipt["steps"][-1]["strategy"]) == (turn_count, strategy)


async def test_a_window_that_cannot_fit_is_refused_before_the_call(bed: Bed) -> None:
    """The error names the parts of the window and their sizes."""
    model = ScriptedModel(otherwise="yes")
    model.context_window = 100  # type: ignore[attr-defined]

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        options = GenerationOptions(max_tokens=50, system_instructions="Be brief.")
        return (await ctx.generate("word " * 60, options=options)).text

    agent = await bed.serve(act, model=model)
    with pytest.raises(RunFailedError, match=r"100 tokens.*max_tokens 50, new turns"):
        await bed.result(await bed.submit(agent, retry_policy=RetryPolicy(max_retries=0)))
    assert model.calls == 0
