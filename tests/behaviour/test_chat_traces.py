"""Traces of a conversation with a model: spans of calls and tools, and events of windows."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import SpanKind, StatusCode

from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.models import Usage
from actors._kernel.agent.tools import Tool, ToolCall
from actors._kernel.hidden import HiddenNames
from actors.agents import ReActAgent
from actors.context import (
    CompactionPipeline,
    ContextConfig,
    SlidingWindowCompaction,
    StoreHistory,
    SummarizationCompaction,
    TokenBudgetComposedStrategy,
    TokenCounter,
)
from actors.errors import ModelError
from actors.testing import ModelReply, ScriptedModel
from compose._assembly.telemetry import Redaction
from compose._host.metrics import of_model_calls
from tests.behaviour.test_traces import CANARY, Backend, in_memory

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import AgentId, RunId
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

BY_TENS = TokenCounter(lambda _: 6)
"""Each turn of one block has ten tokens."""


async def look_up(q: str) -> str:
    """Return a text that counts as content."""
    return f"{CANARY} {q}"


async def _served(bed: Bed) -> AgentId:
    """Return an agent that makes a summary, calls a tool and answers."""
    call = ToolCall(id="c-17", name="look_up", arguments={"q": CANARY})
    usage = Usage(input=40, cached=30, output=3)
    replies = (ModelReply(calls=[call], usage=usage), ModelReply(text=CANARY, usage=usage))
    writer = ScriptedModel(otherwise=f"so far: {CANARY}", model="writer-1")
    budget = TokenBudgetComposedStrategy(
        [SummarizationCompaction(writer, 20, 30, counter=BY_TENS)],
        70,
        target_tokens=40,
        counter=BY_TENS,
    )
    agent = ReActAgent(
        bed.name(),
        model=ScriptedModel(*replies, model="openai-chat:gpt-9"),
        tools=[Tool("look_up", "Look up.", look_up, idempotent=True)],
        context=ContextConfig(StoreHistory(), CompactionPipeline([budget], counter=BY_TENS)),
        session="letters",
    )
    await bed.runtime.register(agent)
    early = [ChatMessage.of("user", f"{CANARY} {n}") for n in range(8)]
    await bed.runtime.history.append_many(agent.id, early, session_id="letters")
    return agent.id


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    """Return the attributes of a span."""
    return dict(span.attributes or {})


async def _told_bed(bed: Bed, **settings: Any) -> Backend:
    """Yield a trace backend, and a host that exports to it."""
    backend = Backend(**settings)
    await bed.stop()
    await bed.start(tracing=backend.tracing)
    return backend


async def _chatted(bed: Bed, **settings: Any) -> tuple[Backend, RunId]:
    backend = await _told_bed(bed, **settings)
    run_id = await bed.submit(await _served(bed), CANARY)
    await bed.result(run_id)
    await backend.root_span(bed, run_id)
    return backend, run_id


@pytest.mark.item(483)
async def test_a_chat_has_spans_of_its_calls_and_tools(bed: Bed) -> None:
    """One span for each of: the run, two calls, the tool, and the summary below its call."""
    backend, run_id = await _chatted(bed)
    root = backend.span_named("invoke_agent", run_id)
    turns = {span.context.span_id for span in backend.spans_named("runtime.turn") if span.context}
    first, second = backend.spans_named("chat gpt-9")
    summary, tool = backend.span_named("chat writer-1"), backend.span_named("execute_tool")

    assert len(backend.spans) == 5 + len(turns)
    assert first.context is not None
    assert summary.parent is not None
    assert summary.parent.span_id == first.context.span_id
    assert {span.parent.span_id for span in (first, second, tool) if span.parent} <= turns
    assert {attributes_of(span)["gen_ai.operation.name"] for span in (first, second, summary)} == {
        "chat"
    }
    assert (first.kind, summary.kind, tool.kind) == (
        SpanKind.CLIENT,
        SpanKind.CLIENT,
        SpanKind.INTERNAL,
    )
    spans = (root, first, second, summary, tool)
    assert {attributes_of(span)["gen_ai.conversation.id"] for span in spans} == {"letters"}
    assert {attributes_of(span)["gen_ai.agent.name"] for span in spans} == {
        attributes_of(root)["gen_ai.agent.name"]
    }
    chat = attributes_of(second)
    assert chat["gen_ai.provider.name"] == "openai"
    assert chat["gen_ai.request.model"] == "gpt-9"
    assert chat["gen_ai.usage.input_tokens"] == 40
    assert chat["gen_ai.usage.cache_read.input_tokens"] == 30
    assert chat["gen_ai.usage.output_tokens"] == 3
    assert attributes_of(tool)["gen_ai.tool.name"] == "look_up"
    assert attributes_of(tool)["gen_ai.tool.call.id"] == "c-17"
    assert CANARY not in "".join(span.to_json() for span in backend.spans)
    standard_names = {name for name in vars(gen_ai_attributes).values() if isinstance(name, str)}
    names = {name for span in spans for name in attributes_of(span) if name.startswith("gen_ai.")}
    assert names <= standard_names


@pytest.mark.item(483)
@in_memory
async def test_the_receipt_of_a_window_is_an_event(bed: Bed) -> None:
    """Its attributes: head, cut, tokens of each part, and tokens that each strategy dropped.

    A summary has no event.
    """
    backend, _ = await _chatted(bed)
    first, second = backend.spans_named("chat gpt-9")

    [event] = first.events
    assert event.name == "callboard.window"
    window: dict[str, Any] = dict(event.attributes or {})
    assert (window["callboard.window.head"], window["callboard.window.cut"]) == (7, -1)
    assert window["callboard.window.dropped.SummarizationCompaction"] == 6
    parts = [window[f"callboard.window.tokens.{name}"] for name in ("summary", "history", "new")]
    assert all(parts)
    assert window["callboard.window.tokens"] == sum(parts)
    assert dict(second.events[0].attributes or {})["callboard.window.cut"] == 5
    assert not backend.span_named("chat writer-1").events


@pytest.mark.item(483)
@in_memory
async def test_the_event_has_the_window_that_was_answered(bed: Bed) -> None:
    """The event has the second window; the provider called the first too long. Both are one call."""
    backend = await _told_bed(bed)
    strategies = [SlidingWindowCompaction(n) for n in (8, 5)]
    budget = TokenBudgetComposedStrategy(strategies, 1_000, counter=BY_TENS)
    model = ScriptedModel(ModelError("context_too_long"), "fine")

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        return (await ctx.generate("hi")).text

    context = ContextConfig(StoreHistory(), CompactionPipeline([budget], counter=BY_TENS))
    agent = await bed.serve(act, model=model, context=context, session="main")
    early = [ChatMessage.of("user", str(n)) for n in range(8)]
    await bed.runtime.history.append_many(agent, early, session_id="main")
    run_id = await bed.submit(agent)
    assert await bed.result(run_id) == "fine"
    await backend.root_span(bed, run_id)

    [event] = backend.span_named("chat").events
    assert model.calls == 2
    assert dict(event.attributes or {})["callboard.window.turns"] == len(model.asked[1].messages)
    [meters] = bed.runtime.meters.calls.models.values()
    assert (meters.duration_s.count, meters.failed_s.count, meters.window.count) == (1, 0, 1)


@pytest.mark.item(483)
@in_memory
async def test_a_replayed_call_has_no_second_span_and_is_not_counted_again(bed: Bed) -> None:
    """One host crashes in a call whose summary is recorded, another one after the call."""
    backend = await _told_bed(bed)
    model = ScriptedModel(ModelReply(before=partial(bed.world.hang, "asked")), "fine", model="m-1")
    writer = ScriptedModel(otherwise="so far", model="writer-1")

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        text = (await ctx.generate("hi")).text
        await ctx.step("behind", bed.world.hang, "behind")
        return text

    strategy = SummarizationCompaction(writer, 20, 30, counter=BY_TENS)
    context = ContextConfig(StoreHistory(), CompactionPipeline([strategy], counter=BY_TENS))
    agent = await bed.serve(act, model=model, context=context, session="main")
    early = [ChatMessage.of("user", str(n)) for n in range(8)]
    await bed.runtime.history.append_many(agent, early, session_id="main")
    run_id = await bed.submit(agent)
    counted = []
    for _ in range(2):
        await bed.world.entered.wait()
        bed.world.entered.clear()
        counted.append(set(bed.runtime.meters.calls.models))
        await bed.crash()
        await bed.start(tracing=backend.tracing)
    assert await bed.result(run_id) == "fine"
    await backend.root_span(bed, run_id)
    counted.append(set(bed.runtime.meters.calls.models))

    assert counted == [{("", "writer-1")}, {("", "m-1")}, set()]
    assert len(backend.spans_named("chat writer-1")) == 1
    assert [span.status.status_code for span in backend.spans_named("chat m-1")] == [
        StatusCode.ERROR,
        StatusCode.UNSET,
    ]


@pytest.mark.item(483)
@in_memory
async def test_a_run_that_ends_before_its_code_has_the_session_of_submit(bed: Bed) -> None:
    """Without `submit` only the code would know the session."""
    backend = await _told_bed(bed)

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.step("mark", bed.world.do, "mark")
        await ctx.sleep_until_signal("never")

    run_id = await bed.submit(await bed.serve(act, session="own"), session_id="given")
    await bed.marked(run_id)
    await bed.runtime.cancel(run_id)

    assert attributes_of(await backend.root_span(bed, run_id))["gen_ai.conversation.id"] == "given"


async def _without_a_summary(bed: Bed) -> None:
    """A call goes on without a summary if the model of its strategy fails."""
    writer = ScriptedModel(ModelError("auth"), model="broken-writer")
    strategy = SummarizationCompaction(writer, 20, 30, counter=BY_TENS)
    context = ContextConfig(StoreHistory(), CompactionPipeline([strategy], counter=BY_TENS))
    agent = ReActAgent(bed.name(), model=ScriptedModel("fine"), context=context)
    await bed.runtime.register(agent)
    early = [ChatMessage.of("user", str(n)) for n in range(8)]
    await bed.runtime.history.append_many(agent.id, early, session_id="main")
    assert await bed.result(await bed.submit(agent.id, "hi")) == "fine"


@in_memory
async def test_metrics_count_calls_of_models_and_their_windows(bed: Bed) -> None:
    """Tokens, time, windows, the cached part and compactions, as on the metrics page; failures separately."""
    await bed.result(await bed.submit(await _served(bed), CANARY))

    async def fail(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.llm("hi")

    broken = ScriptedModel(ModelError("auth"), model="broken-1")
    await bed.ended(await bed.submit(await bed.serve(fail, model=broken), max_retries=0))
    await _without_a_summary(bed)

    families = list(of_model_calls(bed.runtime.meters.calls))
    values = {
        (
            sample.name,
            *(sample.labels[key] for key in sorted(sample.labels) if key != "le"),
        ): sample.value
        for family in families
        for sample in family.samples
        if sample.labels.get("le", "+Inf") == "+Inf"
    }
    gpt = ("openai", "gpt-9")
    assert values["gen_ai_client_token_usage_sum", "chat", *gpt, "input"] == 80
    assert values["gen_ai_client_token_usage_sum", "chat", *gpt, "output"] == 6
    duration = "gen_ai_client_operation_duration_seconds_count"
    assert values[duration, "", "chat", *gpt] == 2
    assert values[duration, "", "chat", "", "writer-1"] == 1
    assert values[duration, "_OTHER", "chat", "", "broken-1"] == 1
    assert values[duration, "_OTHER", "chat", "", "broken-writer"] == 1
    assert values["callboard_model_cache_share_sum", *gpt] == 1.5
    assert values["callboard_window_tokens_count", *gpt] == 2
    assert ("callboard_window_tokens_count", "", "writer-1") not in values
    assert values["callboard_context_compactions_total", "SummarizationCompaction"] == 1


@pytest.mark.item(483)
@in_memory
async def test_the_span_of_a_failed_call_has_its_window(bed: Bed) -> None:
    """The span has the error's class and no usage if there was no answer."""
    backend = await _told_bed(bed)

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.generate("hi", session="other")

    model = ScriptedModel(ModelError("auth"))
    run_id = await bed.submit(await bed.serve(act, model=model), max_retries=0)
    await bed.ended(run_id)
    await backend.root_span(bed, run_id)

    span = backend.span_named("chat")
    assert (span.status.status_code, attributes_of(span)["error.type"]) == (
        StatusCode.ERROR,
        "ModelError",
    )
    assert attributes_of(span)["gen_ai.conversation.id"] == "other"
    assert "gen_ai.usage.input_tokens" not in attributes_of(span)
    assert [event.name for event in span.events] == ["callboard.window"]


@pytest.mark.item(483)
@in_memory
async def test_content_of_a_chat_is_the_turns_that_it_adds(bed: Bed) -> None:
    """If content is enabled: new turns and the answer, but not the session's name."""
    backend, _ = await _chatted(bed, show=Redaction(HiddenNames("")))
    first, _ = backend.spans_named("chat gpt-9")

    assert '"role":"user"' in attributes_of(first)["gen_ai.input.messages"]
    assert "letters" not in attributes_of(first)["gen_ai.input.messages"]
    assert CANARY in attributes_of(backend.span_named("chat writer-1"))["gen_ai.output.messages"]
