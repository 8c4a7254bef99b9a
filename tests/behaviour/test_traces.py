"""Traces of runs: one trace for each conversation, also over crashes and suspensions."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from actors._kernel.agent.message import Message
from actors._kernel.agent.tools import Tool
from actors._kernel.hidden import HiddenNames
from actors._kernel.runtime.ids import TopicId
from actors._kernel.tracing import parse_traceparent, root_span, root_span_id
from actors._runtime.telemetry.span_attributes import executing
from actors._runtime.telemetry.spans import Tracing
from compose._assembly.telemetry import Redaction, RunIds
from compose._host.logs import LineFormatter
from tests.behaviour.agents import Acting, greeter

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from actors._kernel.runtime.ids import AgentId, RunId
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

CALLER = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
CANARY = "canary-7f3a"
in_memory = pytest.mark.asyncio(loop_factories=["memory"])


class Backend:
    """A trace backend that keeps the spans of all hosts with its `tracing`."""

    def __init__(self, **settings: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(id_generator=RunIds(), shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = Tracing(self.provider, **settings)

    @property
    def spans(self) -> list[ReadableSpan]:
        """Return all spans, in the order of their ends."""
        return list(self._exporter.get_finished_spans())

    def spans_named(self, name: str, run: RunId | None = None) -> list[ReadableSpan]:
        """Return the spans of one run whose name is this one, or starts with it and a blank."""
        return [
            span
            for span in self.spans
            if (span.name == name or span.name.startswith(f"{name} "))
            and run in (None, _attributes(span).get("callboard.run.id"))
        ]

    def span_named(self, name: str, run: RunId | None = None) -> ReadableSpan:
        """Return the only span of this name."""
        spans = self.spans_named(name, run)
        assert len(spans) == 1, f"{name}: {[span.name for span in self.spans]}"
        return spans[0]

    async def root_span(self, bed: Bed, run: RunId) -> ReadableSpan:
        """Return the run's root span once it was exported, shortly after its end was committed."""
        await bed.until(lambda: self.spans_named("invoke_agent", run))
        return self.span_named("invoke_agent", run)


def _attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def _id(span: ReadableSpan) -> int:
    assert span.context is not None
    span_id: int = span.context.span_id
    return span_id


def _parent(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def _ns_of_turns(backend: Backend, run: RunId) -> list[tuple[str, str]]:
    turns = sorted(backend.spans_named("runtime.turn", run), key=lambda span: span.start_time or 0)
    return [
        (_attributes(t).get("callboard.turn.reason", ""), _attributes(t)["callboard.turn.end"])
        for t in turns
    ]


async def _restarted(bed: Bed, **settings: Any) -> Backend:
    """Return a backend, and a host that exports to it."""
    backend = Backend(**settings)
    await bed.stop()
    await bed.start(tracing=backend.tracing)
    return backend


async def _conversation(bed: Bed) -> RunId:
    """A run that does everything a trace shows, with secrets in all content."""

    async def lookup(order: str) -> str:
        return f"{CANARY} {order}"

    async def answer(ctx: RunContext, inbox: list[Message]) -> str:
        await ctx.reply(inbox[0], {"answer": CANARY})
        return CANARY

    async def work(ctx: RunContext, inbox: list[Message]) -> Any:
        return await ctx.step("count", bed.world.do, "count", inbox[0].payload)

    other, child = await bed.serve(answer), await bed.serve(work)

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        await ctx.llm(CANARY)
        await ctx.tool("lookup", order=CANARY)
        handle = await ctx.spawn(child, {"text": CANARY})
        await ctx.join(handle)
        await ctx.ask(other, {"question": CANARY}, timeout=20)
        await ctx.emit("news/eu", {"post": CANARY})
        return CANARY

    tools = [Tool("lookup", "Look an order up.", lookup, idempotent=True)]
    run_id = await bed.submit(
        await bed.serve(act, tools=tools, model=greeter(CANARY)), {"text": CANARY}
    )
    await bed.result(run_id)
    return run_id


@pytest.mark.item(483)
async def test_a_conversation_is_one_trace(bed: Bed) -> None:
    """Parent, child, ask, tool and model share a trace id, and no span has content."""
    backend = await _restarted(bed)
    run_id = await _conversation(bed)
    root = await backend.root_span(bed, run_id)
    await bed.until(lambda: len(backend.spans_named("invoke_agent")) == 3)

    assert {span.context.trace_id for span in backend.spans if span.context} == {
        root_span(await bed.row(run_id)).trace_id
    }
    assert CANARY not in "".join(span.to_json() for span in backend.spans)
    assert (_id(root), root.parent) == (root_span_id(run_id), None)
    others = [span for span in backend.spans_named("invoke_agent") if span is not root]
    assert {_parent(span) for span in others} == {_id(root)}
    turns = {_id(span) for span in backend.spans_named("runtime.turn", run_id)}
    assert {_parent(span) for span in backend.spans_named("runtime.turn", run_id)} == {_id(root)}
    for name in ("chat scripted-1", "execute_tool lookup"):
        assert _parent(backend.span_named(name)) in turns
    for name in ("spawn", "join", "ask", "publish"):
        assert backend.spans_named(name), name
        assert {_parent(span) for span in backend.spans_named(name)} <= turns
    assert (
        _parent(backend.span_named("step count"))
        in {_id(t) for t in backend.spans_named("runtime.turn")} - turns
    )
    chat = _attributes(backend.span_named("chat scripted-1"))
    assert (chat["gen_ai.usage.input_tokens"], chat["gen_ai.usage.output_tokens"]) == (7, 1)
    assert chat["gen_ai.conversation.id"] == run_id


@pytest.mark.item(483)
async def test_a_run_of_a_crashed_host_continues_in_the_same_trace(bed: Bed) -> None:
    """The next host exports the lost execution's span with a link; replayed effects have no second span."""
    backend = await _restarted(bed)

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        await ctx.step("before", bed.world.do, "before")
        await ctx.step("hangs", bed.world.hang, "hangs")
        return "done"

    run_id = await bed.submit(await bed.serve(act))
    async with asyncio.timeout(20):
        await bed.world.entered.wait()
    await bed.crash()
    await bed.start(tracing=backend.tracing)
    await bed.result(run_id)
    root = await backend.root_span(bed, run_id)

    first, second = sorted(
        backend.spans_named("runtime.turn"), key=lambda span: span.start_time or 0
    )
    assert {_parent(first), _parent(second)} == {_id(root)}
    assert (_attributes(first)["callboard.turn.end"], first.status.status_code) == (
        "lost",
        StatusCode.ERROR,
    )
    assert _attributes(second)["callboard.turn.reason"] == "recovered"
    assert [link.context.span_id for link in second.links] == [_id(first)]
    assert _parent(backend.span_named("step before")) == _id(first)
    assert root.start_time is not None
    assert root.start_time <= (first.start_time or 0)


@pytest.mark.item(483)
async def test_a_suspended_run_has_short_spans_with_links(bed: Bed) -> None:
    """A span of execution ends when its run is evicted.

    The next one links to it and has the reason of its start.
    """
    backend = await _restarted(bed)

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        del inbox
        await ctx.step("mark", bed.world.do, "mark")
        return await ctx.sleep_until_signal("go")

    run_id = await bed.submit(await bed.serve(act))
    await bed.marked(run_id)
    await bed.runtime.signal(run_id, "go")
    await bed.result(run_id)
    await backend.root_span(bed, run_id)

    if bed.drops:
        assert _ns_of_turns(backend, run_id) == [("started", "suspended"), ("woken", "completed")]
        first, second = sorted(
            backend.spans_named("runtime.turn"), key=lambda span: span.start_time or 0
        )
        assert [link.context.span_id for link in second.links] == [_id(first)]
        waits = backend.spans_named("sleep_until_signal")
        assert [_parent(span) for span in waits] == [_id(first), _id(second)]
    else:
        assert _ns_of_turns(backend, run_id) == [("started", "completed")]
        backend.span_named("sleep_until_signal")


@pytest.mark.item(483)
async def test_a_foreign_caller_is_the_parent(bed: Bed) -> None:
    """For runs that a submit, a plain message or a post starts; also its current span is."""
    backend = await _restarted(bed)

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del ctx, inbox

    agent, mailed, follower = [await bed.serve(act) for _ in range(3)]
    metadata = {"traceparent": CALLER}
    run_id = await bed.submit(agent, Message("m", agent, {}, metadata=metadata))
    await bed.runtime.send(mailed, Message("n", mailed, {}, metadata=metadata))
    topic = TopicId(follower.type)
    await bed.runtime.follow(follower, topic.type)
    await bed.runtime.publish(topic.type, "default", Message("p", topic, {}, metadata=metadata))
    with trace.get_tracer("test", tracer_provider=backend.provider).start_as_current_span("mine"):
        second = await bed.submit(agent, {})
    await bed.result(second)
    await bed.until(lambda: len(backend.spans_named("invoke_agent")) == 4)

    caller = parse_traceparent(CALLER)
    assert caller is not None
    own = await backend.root_span(bed, second)
    others = [span for span in backend.spans_named("invoke_agent") if span is not own]
    assert {(s.context.trace_id, _parent(s)) for s in others if s.context} == {
        (caller.trace_id, caller.span_id)
    }
    assert _parent(own) == _id(backend.span_named("mine"))
    await bed.result(run_id)


@pytest.mark.item(483)
@in_memory
async def test_a_message_to_an_open_run_links_to_its_sender(bed: Bed) -> None:
    """The receiving run has its own trace; the receive's span links to the sender's root span."""
    backend = await _restarted(bed)

    async def listen(ctx: RunContext, inbox: list[Message]) -> Any:
        del inbox
        await ctx.step("mark", bed.world.do, "mark")
        message = await ctx.receive()
        return message.payload if message is not None else None

    listener = await bed.serve(listen)

    async def tell(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.send(listener, {"n": 1})

    listening = await bed.submit(listener)
    await bed.marked(listening)
    telling = await bed.submit(await bed.serve(tell))
    assert await bed.result(listening) == {"n": 1}
    await backend.root_span(bed, listening)
    sender = await backend.root_span(bed, telling)

    received = [span for span in backend.spans_named("receive") if span.links]
    assert [link.context.span_id for link in received[0].links] == [_id(sender)]
    root = backend.span_named("invoke_agent", listening)
    assert root.context is not None
    assert sender.context is not None
    assert root.context.trace_id != sender.context.trace_id


@pytest.mark.item(483)
@in_memory
async def test_content_is_exported_only_if_enabled(bed: Bed) -> None:
    """Then values under certain names are left out at any depth, and long texts are cut."""
    backend = await _restarted(bed, show=Redaction(HiddenNames("password,api_key")))
    hidden = {"a": [{"Password": CANARY, "x-api-key": [CANARY]}], "text": "shown " * 1000}

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.step("login", bed.world.do, "login", hidden)
        await ctx.step("fails", bed.world.fail, "fails")

    run_id = await bed.submit(await bed.serve(act), max_retries=0)
    await bed.ended(run_id)
    root = await backend.root_span(bed, run_id)

    attributes = str(_attributes(backend.span_named("step login")))
    assert CANARY not in attributes
    assert "shown" in attributes
    assert len(attributes) < 5000
    failed = backend.span_named("step fails")
    assert (failed.status.description, _attributes(failed)["error.type"]) == (
        "fails is broken",
        "ValueError",
    )
    assert (root.status.status_code, root.status.description) == (
        StatusCode.ERROR,
        "fails is broken",
    )


@pytest.mark.item(483)
@in_memory
async def test_content_that_cannot_be_exported_fails_no_effect(bed: Bed) -> None:
    """Arguments may be nested deeper than the exporter reads; the step executes."""
    backend = await _restarted(bed, show=Redaction(HiddenNames("")))
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.step("deep", len, deep)

    await bed.result(await bed.submit(await bed.serve(act)))

    assert _attributes(backend.span_named("step deep"))["callboard.effect.arguments"] == "null"


@pytest.mark.item(483)
@in_memory
async def test_an_unsampled_trace_exports_no_span(bed: Bed) -> None:
    """No span is exported. Messages of its runs carry the flag, and log lines still have the ids."""
    backend = await _restarted(bed, ratio=0.0)
    got: list[str] = []

    async def take(ctx: RunContext, inbox: list[Message]) -> None:
        del ctx
        here = trace.get_current_span().get_span_context()
        got.extend((inbox[0].metadata["traceparent"][-3:], f"{here.is_valid} {here.trace_flags}"))

    other = await bed.serve(take)

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.ask(other, {}, timeout=20)
        await ctx.sleep(0.01)

    await bed.result(await bed.submit(await bed.serve(act), {}))

    assert got == ["-00", "True 0"]
    assert not backend.spans


@pytest.mark.item(483)
@in_memory
async def test_errors_have_a_type_and_no_message(bed: Bed) -> None:
    """Spans of a failed attempt, a failed run and a cancelled one; the text of an error is content."""
    backend = await _restarted(bed)

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        if inbox[0].payload == "wait":
            await ctx.step("mark", bed.world.do, "mark")
            await ctx.sleep_until_signal("never")
        raise ValueError(CANARY)

    agent = await bed.serve(act)
    failing = await bed.submit(agent, "fail", max_retries=1)
    await bed.ended(failing)
    root = await backend.root_span(bed, failing)
    waiting = await bed.submit(agent, "wait")
    await bed.marked(waiting)
    await bed.runtime.cancel(waiting)
    cancelled = await backend.root_span(bed, waiting)

    assert (root.status.status_code, root.status.description) == (StatusCode.ERROR, None)
    assert _attributes(root)["error.type"].endswith("ValueError")
    assert _ns_of_turns(backend, failing) == [("started", "failed"), ("retry", "failed")]
    assert _attributes(cancelled)["callboard.run.status"] == "CANCELLED"
    assert CANARY not in "".join(span.to_json() for span in backend.spans)


@pytest.mark.item(483)
@in_memory
async def test_a_host_without_traces_passes_on_a_callers_context(bed: Bed) -> None:
    """Sends and spawns of its runs carry the caller's context, for hosts that trace; nothing else is added."""
    got: list[dict[str, str]] = []

    async def take(ctx: RunContext, inbox: list[Message]) -> None:
        del ctx
        got.append(dict(inbox[0].metadata))

    other = await bed.serve(take)

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.join(await ctx.spawn(other, {}))
        await ctx.ask(other, {}, timeout=20)

    agent = await bed.serve(act)
    message = Message("m", agent, {}, metadata={"traceparent": CALLER})
    await bed.result(await bed.submit(agent, message))
    await bed.result(await bed.submit(agent, {}))

    assert got == [{"traceparent": CALLER}, {"traceparent": CALLER}, {}, {}]


@pytest.mark.item(483)
@in_memory
async def test_log_lines_of_an_agent_have_its_run_and_span(bed: Bed) -> None:
    """And the trace id, with and without spans; inside a step it is the step's span."""
    lines: list[dict[str, Any]] = []
    log_record = logging.makeLogRecord({"msg": "said"})

    def log() -> None:
        lines.append(json.loads(LineFormatter(as_json=True).format(log_record)))

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        log()
        await ctx.step("log", log)

    agent = await bed.serve(act)
    first = await bed.submit(agent, {})
    await bed.result(first)
    backend = await _restarted(bed)
    second = await bed.submit(agent, {})
    await bed.result(second)
    await backend.root_span(bed, second)

    traces = [f"{root_span(await bed.row(run)).trace_id:032x}" for run in (first, second)]
    assert [line["run"] for line in lines] == [first] * 2 + [second] * 2
    assert [line["trace_id"] for line in lines] == [traces[0]] * 2 + [traces[1]] * 2
    spans = [f"{_id(backend.span_named(name)):016x}" for name in ("runtime.turn", "step")]
    assert [line.get("span_id") for line in lines] == [None, None, *spans]


@pytest.mark.item(483)
@in_memory
async def test_log_lines_of_a_woken_run_do_not_have_the_other_runs_ids(bed: Bed) -> None:
    """Log lines of the host's own work for it, such as making the agent, have no run."""
    executing_runs: list[object] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del ctx, inbox

    def make(agent_id: AgentId) -> Acting:
        executing_runs.append(executing.get())
        return Acting(agent_id, act)

    agent_id = bed.name()
    await bed.runtime.register_type(agent_id.type, make)

    async def send(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.send(agent_id, {})
        await ctx.step("flush", bed.world.do, "flush")

    await bed.play(send)
    await bed.until(lambda: executing_runs)

    assert set(executing_runs) == {None}


@in_memory
async def test_metrics_count_the_work_of_a_host(bed: Bed) -> None:
    """Commits, effects by method and status, tokens, ends and waits, with and without a reader."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.llm("hi")
        await ctx.sleep(0.01)
        await ctx.step("fails", bed.world.fail, "fails")

    run_id = await bed.submit(await bed.serve(act, model=greeter()), max_retries=0)
    await bed.ended(run_id)

    counters = bed.runtime.meters
    assert counters.effects == {("llm", "ok"): 1, ("step", "error"): 1}
    assert (counters.input_tokens, counters.output_tokens, counters.failed) == (7, 3, 1)
    assert (counters.executions, counters.suspends) == ((2, 1) if bed.drops else (1, 0))
    assert counters.wake_s.count == counters.executions
